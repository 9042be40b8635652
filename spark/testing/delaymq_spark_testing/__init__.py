"""Shared helpers of the analytics' tests; not part of the distribution."""
