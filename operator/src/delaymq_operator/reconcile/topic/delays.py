"""Delay settings of a topic in the groups of a Broker, and its pending messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec
from delaymq.api_types.delay_settings import (
    LatenessObjective,
    Overdue,
    OverdueTreatment,
    TopicDelays,
    TopicDelaySettings,
)

from delaymq_operator.api import Broker, Topic
from delaymq_operator.api.names import token_secret
from delaymq_operator.api.resource import timestamp_of_ms
from delaymq_operator.api.topic import TopicDelaySpec, TopicDelayStatus
from delaymq_operator.reconcile.context import Key, ReconcileContext
from delaymq_operator.reconcile.endpoints import read_token
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Endpoint
from delaymq_operator.reconcile.topic.groups import NOT_READY, ObservedTopic
from delaymq_operator.reconcile.topic.shared_reads import MAX_AGE_POLLS, SharedBrokerReads, problem_of
from delaymq_operator.reconcile.topic.targets import Group

_BROKER: Final = "its broker"
_TOO_OLD: Final = "its broker is older than delay settings: upgrade it"
_UNKNOWN_PATH: Final = "not_found"
_BAD_TOKEN: Final = ("unauthorized", "401")
_TREATMENTS: Final[dict[str, Literal["recreate", "deadLetter", "drop"]]] = {
    "Recreate": "recreate",
    "DeadLetter": "deadLetter",
    "Drop": "drop",
}
_OVERDUE: Final[dict[str, OverdueTreatment]] = {
    "Deliver": "deliver",
    "Spread": "spread",
    "Shift": "shift",
    "Drop": "drop",
    "Pause": "pause",
}


@dataclass(frozen=True)
class ObservedDelays:
    """Delays of the topic in a group after a pass."""

    group: Group
    found: TopicDelays | None = None
    """None: unknown; `problem` explains why."""
    problem: str | None = None
    refused: bool = False
    """Whether the broker rejected the settings."""
    change: str | None = None
    """Change that was made."""
    effect: str | None = None
    """Effect of a change that a dry run did not make."""


@dataclass
class FiguresWritten:
    """Time at which the figures in a Topic's status were last written, stored under the Topic's key."""

    at_ms: int | None = None


def desired_settings(spec: TopicDelaySpec) -> TopicDelaySettings:
    """Return the settings that `spec.delay` describes, as brokers have them."""
    objective, overdue = spec.lateness_objective, spec.overdue
    return TopicDelaySettings(
        max_delay_seconds=spec.max_delay_seconds,
        max_pending_messages=spec.max_pending_messages,
        max_pending_bytes=spec.max_pending_bytes,
        when_topic_is_gone=_TREATMENTS[spec.when_topic_is_gone],
        lateness_objective=(
            None
            if objective is None
            else LatenessObjective(within_ms=objective.within_milliseconds, percent=objective.percent)
        ),
        max_per_second=spec.max_per_second,
        spread_over_ms=spec.spread_over_milliseconds,
        overdue=(
            None
            if overdue is None
            else Overdue(
                treatment=_OVERDUE[overdue.treatment],
                after_ms=overdue.after_milliseconds,
                over_ms=overdue.over_milliseconds,
            )
        ),
    )


class DelaysInGroups:
    """Delay settings and pending messages of a topic, by responses shared with the Broker's other topics."""

    def __init__(self, topic: Topic, broker: Broker, answers: SharedBrokerReads, ctx: ReconcileContext) -> None:
        self._topic = topic
        self._broker = broker
        self._answers = answers
        self._ctx = ctx

    async def reconcile(self, found: Sequence[ObservedTopic]) -> list[ObservedDelays]:
        """Apply `spec.delay` in all groups, except in those that are leaving, and read what is pending. KubeError."""
        token = await self._token() if any(one.config is not None for one in found) else None
        return list(await asyncio.gather(*(self._reconcile_group(one, token) for one in found)))

    async def pending(self, groups: Iterable[Group]) -> list[ObservedDelays]:
        """Return what is pending now, without shared responses. KubeError."""
        token = await self._token()
        return list(await asyncio.gather(*(self._pending_in(group, token) for group in groups)))

    async def _token(self) -> str | None:
        answers = self._answers
        if answers.token is None:
            answers.token = await read_token(self._ctx.kube, self._broker.namespace, self._broker.name)
        return answers.token

    def _endpoint(self, group: Group, token: str | None) -> Endpoint | str:
        """Return the endpoint for HTTP requests, or the reason why there is none."""
        if group.endpoint is None:
            return NOT_READY
        if token is None:
            return f"the Secret {token_secret(self._broker.name)} contains no token"
        return replace(group.endpoint, token=token)

    async def _reconcile_group(self, seen: ObservedTopic, token: str | None) -> ObservedDelays:
        group = seen.group
        if seen.problem is not None:
            return ObservedDelays(group, problem=seen.problem)
        endpoint = self._endpoint(group, token)
        if isinstance(endpoint, str):
            return ObservedDelays(group, problem=endpoint)
        settings, name = self._ctx.settings, self._topic.topic_name
        spec = None if group.leaving or seen.config is None else self._topic.spec.delay
        interval_s = settings.status_interval_s if spec is None else settings.poll_interval_s
        answer = self._answers.delays_of(group.name, endpoint)

        async def read_delays() -> dict[str, TopicDelays]:
            return dict(await self._ctx.admin.delays(endpoint))

        try:
            known = await answer.get(read_delays, self._ctx.clock, max_age_ms=interval_s * MAX_AGE_POLLS * 1000)
            found = known.get(name) or TopicDelays(
                topic=name, exists=True, settings=TopicDelaySettings(), pending=0, pending_bytes=0
            )
            if spec is None or found.settings == (wanted := desired_settings(spec)):
                return ObservedDelays(group, found)
            if self._topic.is_dry_run:
                return ObservedDelays(group, found, effect=_effect(found, wanted))
            async with answer.lock:
                changed = await self._ctx.admin.set_topic_delays(endpoint, name, wanted)
                if answer.value is not None:
                    answer.value[name] = changed
        except (BrokerUnreachable, BrokerRefused) as error:
            return self._failed(group, error)
        return ObservedDelays(group, changed, change=f"delay settings {_shown(found.settings)} → {_shown(wanted)}")

    async def _pending_in(self, group: Group, token: str | None) -> ObservedDelays:
        endpoint = self._endpoint(group, token)
        if isinstance(endpoint, str):
            return ObservedDelays(group, problem=endpoint)
        try:
            return ObservedDelays(group, await self._ctx.admin.topic_delays(endpoint, self._topic.topic_name))
        except (BrokerUnreachable, BrokerRefused) as error:
            return self._failed(group, error)

    def _failed(self, group: Group, error: BrokerUnreachable | BrokerRefused) -> ObservedDelays:
        if not isinstance(error, BrokerRefused):
            return ObservedDelays(group, problem=problem_of(_BROKER, error))
        if error.code in _BAD_TOKEN:
            self._answers.token = None  # the Secret may have a new one
            return ObservedDelays(group, problem=problem_of(_BROKER, error))
        problem = _TOO_OLD if error.code == _UNKNOWN_PATH else problem_of(_BROKER, error)
        return ObservedDelays(group, problem=problem, refused=True)


def figures_of(
    found: Sequence[ObservedDelays], before: TopicDelayStatus | None, key: Key, ctx: ReconcileContext
) -> TopicDelayStatus | None:
    """Return the figures for the status: the present ones, or the last ones if a group is unknown.

    They change with each message, so they are written once per `status_interval_s`, and not at each poll.
    """
    if not found or any(one.found is None for one in found):
        return before
    written, now_ms = ctx.memory.of(key, FiguresWritten), ctx.clock()
    interval_ms = ctx.settings.status_interval_s * 1000
    if before is not None and written.at_ms is not None and 0 <= now_ms - written.at_ms < interval_ms:
        return before
    written.at_ms = now_ms
    return summed(found)


def summed(found: Sequence[ObservedDelays]) -> TopicDelayStatus:
    """Return the pending messages of all groups."""
    delays = [one.found for one in found if one.found is not None]
    next_ms = min((each.next_due_ms for each in delays if each.next_due_ms is not None), default=None)
    latest_ms = max((each.latest_due_ms for each in delays if each.latest_due_ms is not None), default=None)
    return TopicDelayStatus(
        pending_messages=sum(each.pending for each in delays),
        pending_bytes=sum(each.pending_bytes for each in delays),
        next_due_time=None if next_ms is None else timestamp_of_ms(next_ms),
        latest_due_time=None if latest_ms is None else timestamp_of_ms(latest_ms),
    )


def _effect(found: TopicDelays, wanted: TopicDelaySettings) -> str:
    """Return the effect of a change of settings on what is pending, as a part of a sentence."""
    parts = [f"delay settings {_shown(found.settings)} → {_shown(wanted)}", f"{found.pending} messages are pending"]
    for limit, most, used, what in (
        ("maxPendingMessages", wanted.max_pending_messages, found.pending, "of them"),
        ("maxPendingBytes", wanted.max_pending_bytes, found.pending_bytes, "of their bytes"),
    ):
        if most is not None and used >= most:
            parts.append(f"{limit} would reject further ones until {used - most + 1} {what} have ended")
    if wanted.max_delay_seconds != found.settings.max_delay_seconds and found.latest_due_ms is not None:
        parts.append(
            f"maxDelaySeconds would not change them (the last one is due at {timestamp_of_ms(found.latest_due_ms)})"
        )
    if wanted.when_topic_is_gone != found.settings.when_topic_is_gone:
        parts.append("whenTopicIsGone would apply to them if the topic were deleted")
    rates = (wanted.max_per_second, wanted.spread_over_ms)
    if rates != (None, None) and rates != (found.settings.max_per_second, found.settings.spread_over_ms):
        parts.append("the rate would apply to them when they are due")
    if wanted.overdue is not None and wanted.overdue != found.settings.overdue:
        parts.append("overdue would apply to those that come due while a broker is not running")
    return ", ".join(parts)


def _shown(settings: TopicDelaySettings) -> str:
    return msgspec.json.encode(settings).decode()
