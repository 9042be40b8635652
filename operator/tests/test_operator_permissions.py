"""The table of permissions, compared with the calls in the source and with the watched kinds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from delaymq_operator import adapters, api, reconcile
from delaymq_operator.adapters.kinds import KINDS, WATCHED_KINDS
from delaymq_operator.adapters.permissions import PERMISSIONS
from delaymq_operator.api import names
from delaymq_operator.manifests.metadata import API_VERSIONS
from delaymq_operator.reconcile.broker.apply import supporting_objects

RECONCILE = Path(reconcile.__path__[0])
MANIFESTS = Path(api.__path__[0]).parent / "manifests"
VERBS = {
    "get": ("get",),
    "list": ("list",),
    "create": ("create",),
    "patch": ("patch",),
    "delete": ("delete",),
    "apply": ("create", "patch"),
}
MADE_ELSEWHERE = {"AnalyticsResult", "EndpointSlice", "Lease", "Role", "RoleBinding", "SparkApplication"}
"""Kinds that are not created by the apply call of most supporting objects."""

Permission = tuple[str, str, str]


def made_kinds() -> set[str]:
    """Return the kinds of all rendered manifests."""
    found = set()
    for file in MANIFESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in KINDS:
                found.add(node.value)
    return found - {"Broker", "Pod", "PersistentVolumeClaim"} - MADE_ELSEWHERE


BY_VARIABLE: dict[tuple[str, str], set[str]] = {
    ("delay_level_config.py", "get"): {"DelayLevelConfig"},
    ("delay_level_config.py", "patch"): {"DelayLevelConfig/status"},
    ("release.py", "get"): {"Topic"},
    ("ensure.py", "get"): made_kinds() - {"Secret"},
    ("ensure.py", "apply"): made_kinds(),
    ("rules.py", "create"): {"Secret"},
    ("supporting_objects.py", "apply"): {"Secret"},
    ("certificates.py", "apply"): {"Secret"},
    ("registration.py", "apply"): {"Secret"},
    ("reconcile.py", "apply"): {"Secret"},
    ("replication_objects.py", "get"): {"Role", "RoleBinding"},
    ("replication_objects.py", "apply"): {"Role", "RoleBinding", "Secret"},
    ("replication_objects.py", "create"): {"Lease"},
    ("master_address.py", "create"): {"EndpointSlice"},
    ("supporting_objects.py", "delete"): set(supporting_objects._PRUNED_KINDS),
    ("start.py", "create"): {"SparkApplication", "AnalyticsResult"},
    ("start.py", "apply"): {"RoleBinding"},
}
"""Calls whose kind is in a variable: (file, verb) → kinds. New calls of this type must be added here."""


def calls() -> Iterator[tuple[str, str, str | None]]:
    """Yield file, verb and kind/subresource of every call of the port Kube; the kind is None if it is in a variable."""
    for file in RECONCILE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VERBS):
                continue
            owner = node.func.value
            named = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if named == "kube":
                yield file.name, node.func.attr, _kind(node)


def _kind(call: ast.Call) -> str | None:
    first = call.args[0]
    kind = None
    if isinstance(first, ast.Constant):
        kind = str(first.value)
    elif isinstance(first, ast.Name) and first.id.isupper():
        kind = str(getattr(names, first.id))
    subresource = next((one.value for one in call.keywords if one.arg == "subresource"), None)
    if kind is not None and isinstance(subresource, ast.Constant):
        return f"{kind}/{subresource.value!s}"
    return kind


def permission(kind: str, verb: str) -> Permission:
    kind, _, subresource = kind.partition("/")
    described = KINDS[kind]
    return described.group, described.plural + (f"/{subresource}" if subresource else ""), verb


def needed() -> set[Permission]:
    found = {permission(kind, verb) for kind in WATCHED_KINDS for verb in ("list", "watch")}
    # kopf sets finalizers and annotations of objects that must be released.
    found |= {permission(kind, "patch") for kind in ("Topic", "DelayLevelConfig")}
    found |= {permission("Event", verb) for verb in ("create", "patch")}
    found |= {permission("Lease", verb) for verb in ("get", "create", "update")}
    # Not a call: the API server requires this permission for owner references that block the owner's deletion.
    found |= {(KINDS["Broker"].group, f"{owners}/finalizers", "update") for owners in ("brokers", "users")}
    # Nor these: the operator can grant brokers only what it may do itself.
    found |= {permission(kind, verb) for kind in ("Lease", "EndpointSlice") for verb in ("get", "update", "patch")}
    # Not a call either: the API server requires it for the creation of a RoleBinding.
    found |= {(KINDS["RoleBinding"].group, roles, "bind") for roles in ("roles", "clusterroles")}
    for file, verb, kind in calls():
        kinds = BY_VARIABLE[file, verb] if kind is None else {kind}
        found |= {permission(one, allowed) for one in kinds for allowed in VERBS[verb]}
    return found


def test_permission_table_matches_calls_exactly() -> None:
    table = {(one.group, one.resource, verb) for one in PERMISSIONS for verb in one.verbs}
    assert table == needed()


def test_every_call_with_variable_kind_is_listed() -> None:
    assert {(file, verb) for file, verb, kind in calls() if kind is None} == set(BY_VARIABLE)


def test_only_adapters_import_kubernetes_client() -> None:
    package = Path(adapters.__path__[0]).parent
    users = {
        file.relative_to(package).parts[0]
        for file in package.rglob("*.py")
        if "import kubernetes" in file.read_text() or "from kubernetes" in file.read_text()
    }
    assert users == {"adapters"}


def test_manifest_versions_match_requested_versions() -> None:
    assert {kind: KINDS[kind].api_version for kind in API_VERSIONS} == API_VERSIONS
