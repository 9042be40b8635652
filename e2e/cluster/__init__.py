"""Real Kubernetes clusters for tests, by kind, also on a machine that reaches no image registry.

`Cluster.create` is all that a test needs; `why_not` says in a sentence where that cannot be. See README.md.
"""

from cluster.errors import ClusterError
from cluster.kind import Cluster
from cluster.modes import why_not

__all__ = ["Cluster", "ClusterError", "why_not"]
