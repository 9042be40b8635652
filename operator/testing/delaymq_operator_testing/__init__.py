"""Test support for the operator; not part of the distribution."""
