"""The one exception of this package."""


class ClusterError(Exception):
    """A cluster, or a part of one, could not be made or used; the message says what was tried and what to do."""
