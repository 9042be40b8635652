"""Checks and rewrites of messages before they are stored.

A message that is admitted here is stored without further checks.
"""
