"""Real Kubernetes clusters for tests, created by kind, even on a machine without access to an image registry.

`Cluster.create` is all that a test needs; `why_not` says in a sentence where that cannot be. See README.md.
"""

from cluster.errors import ClusterError
from cluster.kind import Cluster
from cluster.modes import why_not

__all__ = ["Cluster", "ClusterError", "why_not"]
