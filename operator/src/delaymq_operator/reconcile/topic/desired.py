"""Desired state of a topic on a broker and at a NameServer. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from delaymq_operator.api.topic import TopicGroupStatus, TopicSpec
from delaymq_operator.reconcile.ports import TopicConfig

PermissionSeen = Literal["None", "ReadWrite", "ReadOnly", "WriteOnly"]

DEFAULT_QUEUES: Final = 8
READ: Final = 4
WRITE: Final = 2
READ_WRITE: Final = READ | WRITE
PERMISSIONS: Final = {"ReadWrite": READ_WRITE, "ReadOnly": READ, "WriteOnly": WRITE}
_NAMES: Final[dict[int, PermissionSeen]] = {0: "None", READ: "ReadOnly", WRITE: "WriteOnly", READ_WRITE: "ReadWrite"}


def desired_config(
    name: str, spec: TopicSpec, existing: TopicConfig | None, elsewhere: TopicConfig | None
) -> TopicConfig:
    """Return the desired topic on a broker that has it as `existing`; `elsewhere` is the topic of another group.

    Settings that the spec omits are unchanged; a broker without the topic receives the settings of other groups.
    """
    if existing is None:
        return _new(name, spec, elsewhere)
    found = existing
    if spec.queues is not None:
        # Read queues are never removed: their remaining messages would become unreadable.
        read_queues = max(existing.read_queues, spec.queues)
        found = replace(found, write_queues=spec.queues, read_queues=read_queues)
    if spec.permission is not None:
        found = replace(found, permission=existing.permission & ~READ_WRITE | PERMISSIONS[spec.permission])
    return found


def _new(name: str, spec: TopicSpec, elsewhere: TopicConfig | None) -> TopicConfig:
    queues, permission = spec.queues, READ_WRITE
    if elsewhere is not None:
        queues = queues or elsewhere.write_queues
        permission = elsewhere.permission & READ_WRITE
    if spec.permission is not None:
        permission = PERMISSIONS[spec.permission]
    queues = queues or DEFAULT_QUEUES
    return TopicConfig(topic=name, read_queues=queues, write_queues=queues, permission=permission)


def group_status(group_name: str, config: TopicConfig, broker_uid: str) -> TopicGroupStatus:
    """Return the topic in a group of a Broker, for the status."""
    return TopicGroupStatus(
        name=group_name,
        broker_uid=broker_uid,
        write_queues=config.write_queues,
        read_queues=config.read_queues,
        permission=_NAMES[config.permission & READ_WRITE],
    )


def observed_on(broker_uid: str, seen: TopicGroupStatus | None) -> bool:
    """Return whether the topic was observed in a group of this Broker, and not of a former one with its name."""
    return seen is not None and seen.broker_uid in (None, broker_uid)


def satisfied(spec: TopicSpec, seen: TopicGroupStatus | None, broker_uid: str) -> bool:
    """Return whether the topic last matched the spec in a group of this Broker."""
    if seen is None or not observed_on(broker_uid, seen):
        return False
    if spec.queues is not None and (seen.write_queues != spec.queues or seen.read_queues < spec.queues):
        return False
    return spec.permission is None or seen.permission == spec.permission


def order_text(present: str | None, broker: str, write_queues: Mapping[str, int]) -> str | None:
    """Return RocketMQ's order configuration `broker:queues;…` with the `write_queues` (broker name → number) of this
    Broker.

    Entries of brokers in other clusters at the same NameServer are kept. None if nothing remains.
    """
    own = re.compile(rf"{re.escape(broker)}-\d+")
    others = [part for part in (present or "").split(";") if part and not own.fullmatch(part.partition(":")[0])]
    return ";".join(others + [f"{name}:{queues}" for name, queues in write_queues.items()]) or None
