"""Real Kubernetes clusters for tests, created by kind, even on a machine without access to an image registry.

Tests need only `Cluster.create`; `why_not` returns the reason if this machine cannot run clusters. See README.md.
"""

from cluster.errors import ClusterError
from cluster.kind import Cluster
from cluster.modes import why_not

__all__ = ["Cluster", "ClusterError", "why_not"]
