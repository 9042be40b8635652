"""Status of a Topic, written only when it changes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import structs

from delaymq_operator.api import (
    Condition,
    ConditionType,
    Reason,
    TopicStatus,
    find_condition,
    status_patch,
    with_condition,
)
from delaymq_operator.api.conditions import ConditionStatus, only_conditions
from delaymq_operator.api.names import TOPIC_KIND
from delaymq_operator.api.resource import status_of
from delaymq_operator.api.topic import TopicDelayStatus, TopicGroupStatus
from delaymq_operator.reconcile.context import ReconcileContext
from delaymq_operator.reconcile.ports import EventType, Manifest

_QUIET = frozenset({Reason.IN_EVERY_GROUP, Reason.CREATING, Reason.BROKER_PAUSED, Reason.DRY_RUN})
"""Reasons that are part of normal operation and emit no Warning."""


class Reporter:
    """The status of a Topic during one pass: `set_ready` writes it, and emits an Event if the reason changed."""

    def __init__(self, body: Manifest, ctx: ReconcileContext) -> None:
        self._body = body
        self._ctx = ctx
        self._written = body.get("status") or {}
        self.status = status_of(body, TopicStatus)

    @property
    def owned(self) -> bool:
        """Whether this Topic owns the topic on the brokers, which is recorded before it first changes one."""
        return self.status.topic_name is not None

    @property
    def observed_generation(self) -> int:
        return self.status.observed_generation or 0

    @property
    def ready(self) -> bool:
        """Whether the newest spec that was observed is in force."""
        return self._ready is not None and self._ready.status == "True"

    @property
    def reason(self) -> str | None:
        """Reason of the condition Ready."""
        return None if self._ready is None else self._ready.reason

    def group(self, name: str) -> TopicGroupStatus | None:
        """Return the last observed state of the topic in a group."""
        return next((group for group in self.status.groups if group.name == name), None)

    async def set_ready(
        self,
        status: ConditionStatus,
        reason: Reason,
        message: str,
        *,
        topic_name: str | None = None,
        groups: Iterable[TopicGroupStatus] | None = None,
        delay: TopicDelayStatus | None = None,
    ) -> None:
        """Set the condition Ready; other members are kept if not given, and an empty name is removed."""
        generation = self._body["metadata"].get("generation", 0)
        before = self._ready
        now = datetime.fromtimestamp(self._ctx.clock() / 1000, UTC)
        self.status = structs.replace(
            self.status,
            observed_generation=generation,
            topic_name=self.status.topic_name if topic_name is None else topic_name or None,
            groups=self.status.groups if groups is None else tuple(groups),
            delay=self.status.delay if delay is None else delay,
            conditions=with_condition(
                only_conditions(self.status.conditions, ConditionType.READY),
                ConditionType.READY,
                status,
                reason,
                message,
                now,
                generation,
            ),
        )
        after = self.status.to_dict()
        patch = status_patch(self._written, after)
        if patch is None:
            return
        await self._ctx.kube.patch(TOPIC_KIND, *self._where, patch, subresource="status")
        self._written = after
        if reason not in _QUIET and (before is None or before.reason != reason):
            await self.event("Warning", reason, message)

    async def event(self, kind: EventType, reason: str, message: str) -> None:
        """Emit an Event about the Topic."""
        await self._ctx.kube.event(self._body, type=kind, reason=str(reason), message=message)

    @property
    def _ready(self) -> Condition | None:
        return find_condition(self.status.conditions, ConditionType.READY)

    @property
    def _where(self) -> tuple[str, str]:
        metadata = self._body["metadata"]
        return metadata["namespace"], metadata["name"]
