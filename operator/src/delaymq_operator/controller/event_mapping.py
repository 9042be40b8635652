"""Mapping from a changed object to the resources to reconcile. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from delaymq_operator.api.names import BROKER_KIND as BROKER
from delaymq_operator.api.names import DELAY_LEVEL_CONFIG_KIND as LEVELS
from delaymq_operator.api.names import INSTANCE_LABEL
from delaymq_operator.api.names import TOPIC_KIND as TOPIC
from delaymq_operator.api.names import USER_KIND as USER
from delaymq_operator.controller.cache import WatchCache
from delaymq_operator.reconcile.context import Key
from delaymq_operator.reconcile.ports import Manifest

KOPF_ANNOTATIONS: Final = frozenset(
    {"delaymq.io/kopf-managed", "delaymq.io/last-handled-configuration", "delaymq.io/release", "delaymq.io/touch-dummy"}
)
"""Annotations written by kopf, which do not change the desired state."""


def keys_to_enqueue(kind: str, before: Manifest | None, after: Manifest | None, cache: WatchCache) -> list[Key]:
    """Return the keys to reconcile, in order; none if nothing relevant changed."""
    found = after if after is not None else before
    if found is None:
        return []
    route = OWN_ROUTES.get(kind)
    if route is not None:
        return route(before, after, found, cache)
    if before is not None and after is not None and _relevant_part(before) == _relevant_part(after):
        return []
    broker = (found["metadata"].get("labels") or {}).get(INSTANCE_LABEL)
    return [Key(BROKER, found["metadata"].get("namespace") or "", broker)] if broker else []


def _broker_changed(before: Manifest | None, after: Manifest | None, found: Manifest, cache: WatchCache) -> list[Key]:
    namespace, name = found["metadata"].get("namespace") or "", found["metadata"]["name"]
    keys = [Key(BROKER, namespace, name)] if _desired_part(before) != _desired_part(after) else []
    if _desired_part(before) != _desired_part(after) or _status_part(before) != _status_part(after):
        keys += [_key(TOPIC, topic) for topic in cache.all(TOPIC, namespace) if _named(topic, "brokerRef") == name]
        keys += [_key(USER, user) for user in cache.all(USER, namespace) if _named(user, "brokerRef") == name]
        used = {_named(broker, "delayLevelConfigRef") for broker in (before, after) if broker is not None}
        keys += [_key(LEVELS, levels) for levels in cache.all(LEVELS, namespace) if levels["metadata"]["name"] in used]
    return keys


def _topic_changed(before: Manifest | None, after: Manifest | None, found: Manifest, cache: WatchCache) -> list[Key]:
    keys = [_key(TOPIC, found)] if _desired_part(before) != _desired_part(after) else []
    if before is None or after is None:
        # The oldest resource of a topic owns it: another one may have to take over or stop.
        keys += [_key(TOPIC, other) for other in cache.conflicting_topics(found)]
    return keys


def _levels_changed(before: Manifest | None, after: Manifest | None, found: Manifest, cache: WatchCache) -> list[Key]:
    if _desired_part(before) == _desired_part(after):
        return []
    name, namespace = found["metadata"]["name"], found["metadata"].get("namespace") or ""
    users = [broker for broker in cache.all(BROKER, namespace) if _named(broker, "delayLevelConfigRef") == name]
    return [_key(LEVELS, found), *(_key(BROKER, broker) for broker in users)]


def _user_changed(before: Manifest | None, after: Manifest | None, found: Manifest, cache: WatchCache) -> list[Key]:
    if _desired_part(before) == _desired_part(after):
        return []
    keys = [_key(USER, found)]
    if after is None or after["metadata"].get("deletionTimestamp"):
        # The account is removed from the rules, and another User with its access key may get it.
        namespace, broker = found["metadata"].get("namespace") or "", _named(found, "brokerRef")
        keys.append(Key(BROKER, namespace, broker))
        keys += [_key(USER, user) for user in cache.all(USER, namespace) if _access_key(user) == _access_key(found)]
    return list(dict.fromkeys(keys))


def _access_key(user: Manifest) -> tuple[str, str]:
    """Return the Broker and access key that a User names."""
    return _named(user, "brokerRef"), str((user.get("spec") or {}).get("accessKey") or user["metadata"]["name"])


_Route = Callable[[Manifest | None, Manifest | None, Manifest, WatchCache], list[Key]]
OWN_ROUTES: Final[dict[str, _Route]] = {
    BROKER: _broker_changed,
    TOPIC: _topic_changed,
    LEVELS: _levels_changed,
    USER: _user_changed,
}


def _key(kind: str, found: Manifest) -> Key:
    return Key(kind, found["metadata"].get("namespace") or "", found["metadata"]["name"])


def _named(found: Manifest, field: str) -> str:
    reference = (found.get("spec") or {}).get(field) or {}
    return str(reference.get("name") or "")


def _desired_part(found: Manifest | None) -> object:
    """Return the parts of an object that a user or its deletion changes, excluding the operator's status."""
    if found is None:
        return None
    metadata = found["metadata"]
    return (
        metadata.get("uid"),
        metadata.get("generation"),
        # The generation alone is not sufficient while a CRD is being replaced: see the cache.
        found.get("spec"),
        {key: text for key, text in (metadata.get("annotations") or {}).items() if key not in KOPF_ANNOTATIONS},
        metadata.get("labels") or {},
        metadata.get("deletionTimestamp"),
    )


def _status_part(broker: Manifest | None) -> object:
    """Return the parts of a Broker's status that others depend on, excluding figures, which change all the time."""
    status = (broker or {}).get("status") or {}
    conditions = [(one.get("type"), one.get("status"), one.get("reason")) for one in status.get("conditions") or []]
    groups = [
        (one.get("group"), one.get("ready"), one.get("address"), one.get("startedAt"))
        for one in status.get("groups") or []
    ]
    return status.get("size"), status.get("levels"), status.get("nameServers"), conditions, groups


def _relevant_part(found: Manifest) -> Manifest:
    metadata = {
        key: value for key, value in found["metadata"].items() if key not in ("resourceVersion", "managedFields")
    }
    return found | {"metadata": metadata}
