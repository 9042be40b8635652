"""Table of the permissions that the operator requires, with their reasons.

Tests compare it with the chart's roles, and with the calls that the operator makes to a real API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Permission:
    """Verbs on a resource of an API group."""

    group: str
    """Empty: the core group."""
    resource: str
    """Plural name; `brokers/status` for a subresource."""
    verbs: tuple[str, ...]
    why: str
    scope: str = "watched"
    """Namespaces of the permission. watched: the served namespaces; all, listed: the same, but only if the operator
    serves all namespaces, or those in a list; own: the operator's own namespace; lasting: all namespaces even if only
    some are served, since a Role is deleted with its namespace; cluster: objects without a
    namespace, granted by the chart with rbac.lostVolumes only.
    """
    analytics: bool = False
    """Required for spec.analytics only: omitted by the chart with rbac.analytics disabled."""
    replication: bool = False
    """Required for spec.replicasPerGroup only: omitted by the chart with rbac.replication disabled."""


SEEN: Final = ("get", "list", "watch")

PERMISSIONS: Final[tuple[Permission, ...]] = (
    Permission("delaymq.io", "brokers", SEEN, "read the desired state"),
    Permission("delaymq.io", "brokers/status", ("patch",), "report the observed state"),
    Permission(
        "delaymq.io",
        "brokers/finalizers",
        ("update",),
        "own objects with blockOwnerDeletion, which some clusters check (OwnerReferencesPermissionEnforcement)",
    ),
    Permission(
        "delaymq.io", "topics", (*SEEN, "patch"), ("read the desired state; patch: finalizer and progress annotations")
    ),
    Permission("delaymq.io", "topics/status", ("patch",), "report the observed state"),
    Permission("delaymq.io", "delaylevelconfigs", (*SEEN, "patch"), "as with topics"),
    Permission("delaymq.io", "delaylevelconfigs/status", ("patch",), "report the observed state"),
    Permission("delaymq.io", "users", ("list", "watch"), "read the desired state"),
    Permission("delaymq.io", "users/status", ("patch",), "report the observed state"),
    Permission("delaymq.io", "users/finalizers", ("update",), "own their Secrets, as with brokers/finalizers"),
    Permission(
        "apps",
        "statefulsets",
        (*SEEN, "create", "patch", "delete"),
        "run brokers and NameServers; delete: scale-in, and growing volumes (pods are orphaned and adopted again)",
    ),
    Permission("", "pods", ("list", "watch", "delete"), "observe their state; delete: rollouts"),
    Permission(
        "", "services", (*SEEN, "create", "patch", "delete"), "addresses of brokers and NameServers; delete: scale-in"
    ),
    Permission("", "configmaps", (*SEEN, "create", "patch"), "broker.conf"),
    Permission("", "serviceaccounts", (*SEEN, "create", "patch"), "identity of the broker pods, without permissions"),
    Permission(
        "",
        "persistentvolumeclaims",
        ("list", "watch", "patch", "delete"),
        "grow volumes, store a broker's address; delete: a claim that was never bound, if its class was corrected, and "
        "a lost volume of a group with replicas",
    ),
    Permission(
        "",
        "secrets",
        ("get", "create", "patch"),
        "the token of the brokers' HTTP API, the accounts of Users, certificates and their CA, and Secrets that a "
        "Broker names; never listed",
    ),
    Permission(
        "policy", "poddisruptionbudgets", (*SEEN, "create", "patch", "delete"), "one broker group down at a time"
    ),
    Permission(
        "networking.k8s.io",
        "networkpolicies",
        (*SEEN, "create", "patch", "delete"),
        "spec.networkPolicy; delete: it was disabled, or spec.analytics was removed",
    ),
    Permission(
        "coordination.k8s.io",
        "leases",
        ("get", "create", "update", "patch"),
        "the registers of groups with replicas; update and patch: only to grant them to the brokers of the group",
        replication=True,
    ),
    Permission(
        "discovery.k8s.io",
        "endpointslices",
        ("get", "list", "create", "update", "patch", "delete"),
        "the address of a master; delete: what a selector left; update: only to grant it to the brokers of the group",
        replication=True,
    ),
    Permission("", "endpoints", ("get", "delete"), "delete what a selector left, which is mirrored", replication=True),
    Permission(
        "rbac.authorization.k8s.io",
        "roles",
        ("get", "create", "patch"),
        "allow the brokers of a group to change their register and address, by name",
        replication=True,
    ),
    Permission(
        "rbac.authorization.k8s.io",
        "rolebindings",
        ("get", "create", "patch"),
        "bind these roles to the service account of the group",
        replication=True,
    ),
    Permission(
        "",
        "persistentvolumes",
        ("get",),
        "find the nodes of a volume whose broker does not run",
        scope="cluster",
    ),
    Permission("", "nodes", ("list",), "find out whether these nodes exist", scope="cluster"),
    Permission(
        "sparkoperator.k8s.io",
        "sparkapplications",
        ("get", "list", "create", "delete"),
        "a run's applications; delete: history, deadline. Never changed, since a change would rerun them",
        analytics=True,
    ),
    Permission(
        "rbac.authorization.k8s.io",
        "rolebindings",
        ("get", "create", "patch", "delete"),
        "allow a Broker's Spark drivers to create executors; delete: spec.analytics was removed",
        analytics=True,
    ),
    Permission(
        "rbac.authorization.k8s.io",
        "clusterroles",
        ("bind",),
        "only the role in the setting analytics_role, which contains permissions that the operator does not have",
        scope="all",
        analytics=True,
    ),
    Permission("rbac.authorization.k8s.io", "roles", ("bind",), "the same for a Role", scope="listed", analytics=True),
    Permission(
        "events.k8s.io",
        "events",
        ("list", "create", "patch"),
        "record events; patch: count repeated events; list: find out why a pod is not ready or a volume not bound",
    ),
    Permission(
        "delaymq.io",
        "topics",
        ("get", "list", "patch"),
        "remove the finalizer in a namespace that is being deleted",
        scope="lasting",
    ),
    Permission("delaymq.io", "delaylevelconfigs", ("get", "list", "patch"), "as with topics", scope="lasting"),
    Permission(
        "delaymq.io",
        "brokers",
        ("get", "list"),
        ("check whether a resource that is being deleted is still in use"),
        scope="lasting",
    ),
    Permission("coordination.k8s.io", "leases", ("get", "create", "update"), "one active replica", scope="own"),
)
