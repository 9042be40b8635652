"""Errors of the harness, as opposed to failures of the tested programs."""


class HarnessError(Exception):
    """A required program did not start, stop or respond; the message names it and quotes its log."""


class IsolationError(HarnessError):
    """This process cannot create a network namespace; the message explains how to permit it."""
