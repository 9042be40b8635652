"""Helpers for tests of the schedule."""
