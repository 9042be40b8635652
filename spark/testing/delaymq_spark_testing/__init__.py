"""What tests of the analytics share; not part of the distribution."""
