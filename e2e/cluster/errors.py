"""The one exception of this package."""


class ClusterError(Exception):
    """A cluster, or a part of one, could not be created or used; the message states the attempt and what to do."""
