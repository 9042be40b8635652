"""Table of the API server's kinds that the operator uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from delaymq_operator.api.names import GROUP, MANAGED_BY_LABEL, MANAGED_BY_VALUE, PLURALS, VERSION, selector_text


@dataclass(frozen=True)
class Kind:
    """Location of the objects of a kind in the API."""

    group: str
    """Empty: the core group."""
    version: str
    plural: str
    watched: bool = False
    """Whether objects are kept in the cache."""
    written_as: str = ""
    """Kind in the API, where this entry is a subset of it; empty: the same name."""

    @property
    def api_version(self) -> str:
        """`apps/v1`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """`/apis/apps/v1`, or `/api/v1`."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(
        self, namespace: str | None = None, name: str = "", subresource: str = "", query: dict[str, str] | None = None
    ) -> str:
        """Return the path of an object, or (no name) of a collection, in one namespace or (None) in all."""
        inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        words = [self.root + inside, self.plural]
        if name:
            words.append(quote(name, safe=""))
        if subresource:
            words.append(quote(subresource, safe=""))
        return "/".join(words) + (f"?{urlencode(query)}" if query else "")


KINDS: Final[dict[str, Kind]] = {
    **{kind: Kind(GROUP, VERSION, plural, watched=True) for kind, plural in PLURALS.items()},
    "StatefulSet": Kind("apps", "v1", "statefulsets", watched=True),
    "Pod": Kind("", "v1", "pods", watched=True),
    "Service": Kind("", "v1", "services", watched=True),
    "ConfigMap": Kind("", "v1", "configmaps", watched=True),
    "ServiceAccount": Kind("", "v1", "serviceaccounts", watched=True),
    "PersistentVolumeClaim": Kind("", "v1", "persistentvolumeclaims", watched=True),
    "PodDisruptionBudget": Kind("policy", "v1", "poddisruptionbudgets", watched=True),
    "NetworkPolicy": Kind("networking.k8s.io", "v1", "networkpolicies", watched=True),
    # Not watched: listing them would read every Secret.
    "Secret": Kind("", "v1", "secrets"),
    "Event": Kind("events.k8s.io", "v1", "events"),
    "RoleBinding": Kind("rbac.authorization.k8s.io", "v1", "rolebindings"),
    # Not watched: the Spark operator's CRD may be missing.
    "SparkApplication": Kind("sparkoperator.k8s.io", "v1beta2", "sparkapplications"),
    # Not watched: a report has up to 1 MB, and only people read it.
    "AnalyticsResult": Kind("", "v1", "configmaps", written_as="ConfigMap"),
    # Not watched: the operator may lack the permission, and masters renew their Leases every few seconds.
    "Endpoints": Kind("", "v1", "endpoints"),
    "EndpointSlice": Kind("discovery.k8s.io", "v1", "endpointslices"),
    "Role": Kind("rbac.authorization.k8s.io", "v1", "roles"),
    "Lease": Kind("coordination.k8s.io", "v1", "leases"),
    # Not watched: they are read only for a volume whose broker does not run.
    "PersistentVolume": Kind("", "v1", "persistentvolumes"),
    "Node": Kind("", "v1", "nodes"),
}
OWN_KINDS: Final = tuple(PLURALS)
WATCHED_KINDS: Final = tuple(name for name, kind in KINDS.items() if kind.watched)


def label_selector(kind: str) -> str:
    """Return the label selector of lists and watches: all objects of DelayMQ's kinds, and managed objects of other
    kinds.
    """
    return "" if kind in OWN_KINDS else selector_text({MANAGED_BY_LABEL: MANAGED_BY_VALUE})
