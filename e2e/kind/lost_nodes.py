"""Nodes of the cluster that a test stops and starts again."""

from cluster import Cluster

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


class LostNodes:
    """Stops nodes and restarts them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.lost: list[str] = []

    def lose(self, node: str) -> None:
        self.lost.append(node)
        self._cluster.node_stop(node)

    def write_off(self, node: str) -> None:
        """Mark a stopped node as an administrator would, so that its pods are recreated elsewhere."""
        self._cluster.kubectl("taint", "node", node, OUT_OF_SERVICE, "--overwrite")

    def give_back(self, node: str) -> None:
        self._cluster.node_start(node)
        self._cluster.kubectl("taint", "node", node, f"{OUT_OF_SERVICE.partition('=')[0]}-", check=False)
        self.lost.remove(node)
