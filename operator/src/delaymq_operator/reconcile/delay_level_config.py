"""Reconciliation of a DelayLevelConfig: validity, users, and rollout. It is kept while it is in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal

from delaymq.message.levels import parse_delay_ms
from msgspec import structs

from delaymq_operator.api import (
    Broker,
    ConditionType,
    DelayLevelConfig,
    DelayLevelConfigStatus,
    Reason,
    SpecError,
    find_condition,
    parse_broker,
    parse_delay_level_config,
    status_patch,
    with_condition,
)
from delaymq_operator.api.conditions import ConditionStatus, only_conditions
from delaymq_operator.api.delay_level_config import AppliedLevels
from delaymq_operator.api.names import BROKER_KIND, DELAY_LEVEL_CONFIG_KIND
from delaymq_operator.api.resource import status_of
from delaymq_operator.reconcile.context import Key, Outcome, ReconcileContext, Waiting
from delaymq_operator.reconcile.level_effects import effect_on
from delaymq_operator.reconcile.ports import Manifest

_MAX_NAMED = 10


async def reconcile_levels(key: Key, ctx: ReconcileContext) -> Outcome:
    """Update its status, and wake the Brokers that use a changed table. KubeError if the status cannot be written."""
    body = ctx.cache.get(*key)
    if body is None:
        return Outcome()
    users = _users(key, ctx.cache.all(BROKER_KIND, key.namespace))
    changed = (body.get("status") or {}).get("observedGeneration") != body["metadata"].get("generation")
    enqueue = tuple(Key(BROKER_KIND, key.namespace, broker["metadata"]["name"]) for broker in users) if changed else ()
    report = _Reporter(body, ctx)
    report.used_by(users)
    try:
        config = parse_delay_level_config(body)
    except SpecError as error:
        report.ready("False", Reason.INVALID, f"{error}. Brokers keep their current table.")
        await report.write()
        return Outcome(None, enqueue)
    report.describe(config)
    if config.is_dry_run:
        effects = [f"{broker['metadata']['name']}: {effect_on(broker, config)}" for broker in users]
        shown = "; ".join(effects) or "No Broker refers to it in spec.delayLevelConfigRef"
        report.ready("Unknown", Reason.DRY_RUN, f"The table is not applied, because this is a dry run. {shown}.")
        await report.write()
        return Outcome(ctx.settings.poll_interval_s, enqueue)
    missing = [sentence for broker in users if (sentence := _missing(broker, config)) is not None]
    if not users:
        report.ready("True", Reason.NOT_USED, "The table is valid. No Broker refers to it in spec.delayLevelConfigRef.")
    elif missing:
        report.ready("False", Reason.APPLYING, f"Not yet in effect in {_some(missing)}.")
    else:
        report.ready("True", Reason.APPLIED, f"In effect in {_some(_names(users))}.")
    await report.write()
    settings = ctx.settings
    return Outcome(settings.progress_interval_s if missing else settings.poll_interval_s, enqueue)


async def release_levels(key: Key, ctx: ReconcileContext) -> Waiting | None:
    """Return None if no Broker uses it according to the API server, so that it can be deleted."""
    body = await ctx.kube.get(*key)
    if body is None:
        return None
    users = _users(key, await ctx.kube.list(BROKER_KIND, key.namespace))
    if not users:
        return None
    report = _Reporter(body, ctx)
    report.used_by(users)
    message = (
        f"It cannot be deleted while Brokers use it: {_some(_names(users))}. Remove spec.delayLevelConfigRef from "
        "these Brokers, or set it to another DelayLevelConfig there; this one is then deleted automatically."
    )
    if report.in_use("True", message):
        await ctx.kube.event(body, type="Warning", reason="StillUsed", message=message)
    await report.write()
    return Waiting(message, ctx.settings.poll_interval_s)


class _Reporter:
    """The status of a DelayLevelConfig during one pass."""

    def __init__(self, body: Manifest, ctx: ReconcileContext) -> None:
        self._body = body
        self._ctx = ctx
        status = status_of(body, DelayLevelConfigStatus)
        conditions = only_conditions(status.conditions, ConditionType.READY, ConditionType.IN_USE)
        self._status = structs.replace(status, conditions=conditions)

    def used_by(self, users: Sequence[Manifest]) -> None:
        self._status = structs.replace(self._status, used_by=tuple(_names(users)))
        if self._body["metadata"].get("deletionTimestamp") and users:
            return  # release_levels reports it in more detail
        if users:
            self.in_use("True", f"Used by {_some(_names(users))}.")
        else:
            self.in_use("False", "No Broker uses it.")

    def describe(self, config: DelayLevelConfig) -> None:
        longest = max(config.spec.levels, key=parse_delay_ms)
        self._status = structs.replace(
            self._status, level_count=len(config.spec.levels), max_delay=longest, table=config.spec.short_table
        )
        if not config.is_dry_run:
            spec = config.spec
            overflow: Literal["reject", "clamp"] = "reject" if spec.overflow == "Reject" else "clamp"
            applied = AppliedLevels(message_delay_level=spec.message_delay_level, delay_level_overflow=overflow)
            self._status = structs.replace(self._status, applied=applied)

    def ready(self, status: ConditionStatus, reason: Reason, message: str) -> None:
        self._set(ConditionType.READY, status, reason, message)

    def in_use(self, status: ConditionStatus, message: str) -> bool:
        """Set the condition InUse; return whether it changed."""
        before = find_condition(self._status.conditions, ConditionType.IN_USE)
        reason = Reason.USED_BY_BROKERS if status == "True" else Reason.NOT_USED
        self._set(ConditionType.IN_USE, status, reason, message)
        return before is None or before.message != message

    async def write(self) -> None:
        generation = self._body["metadata"].get("generation", 0)
        self._status = structs.replace(self._status, observed_generation=generation)
        patch = status_patch(self._body.get("status") or {}, self._status.to_dict())
        if patch is not None:
            metadata = self._body["metadata"]
            where = (DELAY_LEVEL_CONFIG_KIND, metadata["namespace"], metadata["name"])
            await self._ctx.kube.patch(*where, patch, subresource="status")

    def _set(self, kind: ConditionType, status: ConditionStatus, reason: Reason, message: str) -> None:
        now = datetime.fromtimestamp(self._ctx.clock() / 1000, UTC)
        generation = self._body["metadata"].get("generation", 0)
        conditions = with_condition(self._status.conditions, kind, status, reason, message, now, generation)
        self._status = structs.replace(self._status, conditions=conditions)


def _users(key: Key, brokers: Iterable[Manifest]) -> list[Manifest]:
    """Return the Brokers that refer to it and are not being deleted, sorted by name."""
    found = [
        broker
        for broker in brokers
        if ((broker.get("spec") or {}).get("delayLevelConfigRef") or {}).get("name") == key.name
        and not broker["metadata"].get("deletionTimestamp")
    ]
    return sorted(found, key=lambda broker: str(broker["metadata"]["name"]))


def _missing(body: Manifest, config: DelayLevelConfig) -> str | None:
    """Return why a Broker does not use the table yet, as a part of a sentence; None: it does."""
    name = body["metadata"]["name"]
    try:
        broker = parse_broker(body)
    except SpecError:
        return f"{name} (its spec is invalid)"
    if broker.status.levels == config.spec.message_delay_level:
        return None
    if broker.spec.paused:
        return f"{name} (it is paused)"
    return f"{name} ({_usage_state(broker)})"


def _usage_state(broker: Broker) -> str:
    ready = find_condition(broker.status.conditions, ConditionType.READY)
    if ready is not None and ready.status != "True":
        return f"it is not ready: {ready.reason}"
    return "the change is being sent to it"


def _names(bodies: Iterable[Manifest]) -> list[str]:
    return [str(body["metadata"]["name"]) for body in bodies]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown} and {len(names) - _MAX_NAMED} more"
