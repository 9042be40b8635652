"""Audit of requests: which request codes and HTTP routes are changes, and the hooks that record them.

Each code and route is in one of two tables: audited, with its action and names, or not audited, with the reason. Tests
compare the tables with those of broker, NameServer and HTTP.
"""
