"""Status of a User, written only when it changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from msgspec import structs

from delaymq_operator.api import (
    Condition,
    ConditionType,
    Reason,
    UserStatus,
    find_condition,
    status_patch,
    with_condition,
)
from delaymq_operator.api.conditions import ConditionStatus, only_conditions
from delaymq_operator.api.names import USER_KIND
from delaymq_operator.api.resource import status_of
from delaymq_operator.reconcile.context import ReconcileContext
from delaymq_operator.reconcile.ports import EventType, Manifest

_QUIET: Final = frozenset({Reason.ACTIVE, Reason.DISTRIBUTING, Reason.BROKER_PAUSED})
"""Reasons that are part of normal operation and emit no Warning."""


class Reporter:
    """The status of a User during one pass: `write` writes it, and emits an Event if the reason is a new problem."""

    def __init__(self, body: Manifest, ctx: ReconcileContext) -> None:
        self._body = body
        self._ctx = ctx
        self._status = status_of(body, UserStatus)

    @property
    def rotated_at(self) -> str | None:
        """When clients received the last secret key."""
        return self._status.rotated_at

    @property
    def was_ready(self) -> bool:
        """Whether the present spec was in force on all brokers."""
        generation = self._body["metadata"].get("generation", 0)
        ready = self._ready
        return ready is not None and ready.status == "True" and self._status.observed_generation == generation

    async def write(
        self,
        status: ConditionStatus,
        reason: Reason,
        message: str,
        *,
        access_key: str | None = None,
        secret_name: str | None = None,
        rotated_at: str | None = None,
        former_key_until: str | None = None,
    ) -> None:
        """Write the condition Ready and the facts about the account; those that are None are removed. KubeError."""
        generation = self._body["metadata"].get("generation", 0)
        before = self._ready
        now = datetime.fromtimestamp(self._ctx.clock() / 1000, UTC)
        conditions = with_condition(
            only_conditions(self._status.conditions, ConditionType.READY),
            ConditionType.READY,
            status,
            reason,
            message,
            now,
            generation,
        )
        self._status = structs.replace(
            self._status,
            observed_generation=generation,
            conditions=conditions,
            access_key=access_key,
            secret_name=secret_name,
            rotated_at=rotated_at,
            former_key_until=former_key_until,
        )
        patch = status_patch(self._body.get("status") or {}, self._status.to_dict())
        if patch is None:
            return
        metadata = self._body["metadata"]
        await self._ctx.kube.patch(USER_KIND, metadata["namespace"], metadata["name"], patch, subresource="status")
        if reason not in _QUIET and (before is None or before.reason != reason):
            await self.event("Warning", reason, message)

    async def problem(self, reason: Reason, message: str) -> None:
        """Report that the spec is not in force; the facts about the account are kept."""
        status = self._status
        await self.write(
            "False",
            reason,
            message,
            access_key=status.access_key,
            secret_name=status.secret_name,
            rotated_at=status.rotated_at,
            former_key_until=status.former_key_until,
        )

    async def event(self, kind: EventType, reason: str, message: str) -> None:
        """Emit an Event about the User."""
        await self._ctx.kube.event(self._body, type=kind, reason=str(reason), message=message)

    @property
    def _ready(self) -> Condition | None:
        return find_condition(self._status.conditions, ConditionType.READY)
