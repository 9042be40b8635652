"""Errors of a broker that follows another one as a plain slave."""


class FollowError(Exception):
    """The master's log cannot be followed at the moment; the message states why, and what to do."""
