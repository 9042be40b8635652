"""Errors of the harness, as opposed to failures of the tested programs."""


class HarnessError(Exception):
    """A program that a test needs did not start, stop or answer; the message says which and quotes its log."""


class IsolationError(HarnessError):
    """This process cannot get a network namespace of its own; the message says how to allow it."""
