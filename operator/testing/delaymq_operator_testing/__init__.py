"""What tests of the operator share; not part of the distribution."""
