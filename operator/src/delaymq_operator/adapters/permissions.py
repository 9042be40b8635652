"""What the operator must be allowed to do, and why: one literal table.

The chart's roles are compared with it by a test, and so are the calls that the operator makes to a real API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Permission:
    """Verbs on one resource of one group."""

    group: str
    """Empty: the core group."""
    resource: str
    """The plural, `brokers/status` for a subresource."""
    verbs: tuple[str, ...]
    why: str
    scope: str = "watched"
    """watched: the namespaces that are looked after, or all; all or listed: the same, but only when these are all
    namespaces or those of a list; own: the operator's own namespace; lasting: all, also when only some are looked
    after, since Roles go with their namespace."""
    analytics: bool = False
    """Needed for spec.analytics only: the chart's rbac.analytics leaves it out."""


SEEN: Final = ("get", "list", "watch")

PERMISSIONS: Final[tuple[Permission, ...]] = (
    Permission("delaymq.io", "brokers", SEEN, "read what is wanted"),
    Permission("delaymq.io", "brokers/status", ("patch",), "say what is so"),
    Permission(
        "delaymq.io",
        "brokers/finalizers",
        ("update",),
        "own objects with blockOwnerDeletion, which some clusters check (OwnerReferencesPermissionEnforcement)",
    ),
    Permission("delaymq.io", "topics", (*SEEN, "patch"), "read what is wanted; patch: finalizer and progress"),
    Permission("delaymq.io", "topics/status", ("patch",), "say what is so"),
    Permission("delaymq.io", "delaylevelconfigs", (*SEEN, "patch"), "as with topics"),
    Permission("delaymq.io", "delaylevelconfigs/status", ("patch",), "say what is so"),
    Permission(
        "apps",
        "statefulsets",
        (*SEEN, "create", "patch", "delete"),
        "run brokers and NameServers; delete: scale-in, and growing volumes (pods are orphaned and adopted again)",
    ),
    Permission("", "pods", ("list", "watch", "delete"), "see how they are; delete: restart one after the other"),
    Permission(
        "", "services", (*SEEN, "create", "patch", "delete"), "addresses of brokers and NameServers; delete: scale-in"
    ),
    Permission("", "configmaps", (*SEEN, "create", "patch"), "broker.conf"),
    Permission("", "serviceaccounts", (*SEEN, "create", "patch"), "what pods of brokers run as; it may do nothing"),
    Permission(
        "",
        "persistentvolumeclaims",
        ("list", "watch", "patch", "delete"),
        "grow volumes, store a broker's address; delete: a claim that was never bound, if its class was corrected",
    ),
    Permission(
        "",
        "secrets",
        ("get", "create", "patch"),
        "the token of brokers' HTTP, and those that a Broker names; never listed",
    ),
    Permission(
        "policy", "poddisruptionbudgets", (*SEEN, "create", "patch", "delete"), "one broker group down at a time"
    ),
    Permission(
        "networking.k8s.io",
        "networkpolicies",
        (*SEEN, "create", "patch", "delete"),
        "spec.networkPolicy; delete: it was switched off, or spec.analytics is gone",
    ),
    Permission(
        "sparkoperator.k8s.io",
        "sparkapplications",
        ("get", "list", "create", "delete"),
        "a run's applications; delete: history, deadline. Never changed: that would run them anew",
        analytics=True,
    ),
    Permission(
        "rbac.authorization.k8s.io",
        "rolebindings",
        ("get", "create", "patch", "delete"),
        "let a Broker's Spark drivers make their executors; delete: spec.analytics is gone",
        analytics=True,
    ),
    Permission(
        "rbac.authorization.k8s.io",
        "clusterroles",
        ("bind",),
        "only the one that the setting analytics_role names, which has what the operator itself has not",
        scope="all",
        analytics=True,
    ),
    Permission("rbac.authorization.k8s.io", "roles", ("bind",), "the same of a Role", scope="listed", analytics=True),
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
        "delaymq.io", "brokers", ("get", "list"), "check whether they still use what is being deleted", scope="lasting"
    ),
    Permission("coordination.k8s.io", "leases", ("get", "create", "update"), "one active replica", scope="own"),
)
