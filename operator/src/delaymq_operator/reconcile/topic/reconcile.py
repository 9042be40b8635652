"""Reconciliation of a Topic: ownership of the name, state of the groups, changes, and status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from delaymq.message.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

from delaymq_operator.api import Broker, Reason, SpecError, Topic, parse_topic
from delaymq_operator.api.conditions import ConditionStatus
from delaymq_operator.api.names import BROKER_KIND, FINALIZER, MAX_SIZE, rocketmq_broker_name
from delaymq_operator.api.topic import TopicDelayStatus, TopicGroupStatus
from delaymq_operator.reconcile.context import Key, Outcome, ReconcileContext
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator.reconcile.topic.conflicts import age, conflicting_topics
from delaymq_operator.reconcile.topic.delays import DelaysInGroups, ObservedDelays, figures_of
from delaymq_operator.reconcile.topic.desired import observed_on, satisfied
from delaymq_operator.reconcile.topic.groups import NOT_READY, ObservedTopic, TopicInGroups
from delaymq_operator.reconcile.topic.order import ensure_order
from delaymq_operator.reconcile.topic.shared_reads import ParsedBroker, SharedBrokerReads
from delaymq_operator.reconcile.topic.status import Reporter
from delaymq_operator.reconcile.topic.targets import groups_of

_Verdict = tuple[ConditionStatus, Reason, str]


class _Problems(NamedTuple):
    """Problems with settings apart from those of the topic itself."""

    order: Sequence[str]
    delays: Sequence[ObservedDelays]
    effects: Sequence[str]
    """Effects of the changes that a dry run did not make."""


_FINALIZER_S = 0.3
"""Interval between checks for the finalizer, which kopf adds when it first observes a Topic."""


async def reconcile_topic(key: Key, ctx: ReconcileContext) -> Outcome:
    """Apply the spec to the topic wherever possible at present. KubeError if the status cannot be written.

    Unreachable brokers are reported as a condition, not an error; all Topics share the backoff of retries.
    """
    body = ctx.cache.get(*key)
    if body is None or body["metadata"].get("deletionTimestamp"):
        return Outcome()
    report = Reporter(body, ctx)
    try:
        topic = parse_topic(body)
        _refuse_system_topic(topic)
    except SpecError as error:
        await report.set_ready("False", Reason.INVALID_SPEC, f"{error}.")
        return Outcome()
    later = Outcome(ctx.settings.poll_interval_s)
    if await _belongs_to_other(topic, body, report, ctx):
        return later
    broker = await _usable_broker(topic, report, ctx)
    if broker is None:
        return later
    if FINALIZER not in (body["metadata"].get("finalizers") or ()):
        # Without the finalizer, it could be deleted without its topic.
        return Outcome(_FINALIZER_S)
    repairing = report.observed_generation == topic.generation
    in_force = repairing and report.ready
    if not report.owned:
        # Recorded before the topic is created, so that a deletion includes the topic whatever happens in between.
        await report.set_ready(
            "False", Reason.CREATING, f"Topic {topic.topic_name} is being created.", topic_name=topic.topic_name
        )
    answers = ctx.memory.of(Key(BROKER_KIND, topic.namespace, broker.name), SharedBrokerReads)
    found = await TopicInGroups(topic, answers, ctx).reconcile(await groups_of(broker, ctx))
    groups = _last_seen(found, broker, report)
    order_problems: list[str] = []
    queues = {one.group.name: groups[one.group.name].write_queues for one in found if _desired_groups(one, groups)}
    if topic.spec.order is not None and queues:
        order_problems = await ensure_order(topic, broker, answers, ctx, queues if topic.spec.order else None)
    delays = await DelaysInGroups(topic, broker, answers, ctx).reconcile(found)
    # Delay settings of a dry run that has ended are new, although the generation is not.
    await _report_changes([*found, *delays], report, repairing=repairing and report.reason != Reason.DRY_RUN)
    figures = figures_of(delays, report.status.delay, key, ctx)
    # A broker keeps its settings when it restarts, so those that were in force are not reported as missing.
    lacking = [one for one in delays if one.problem is not None and (one.refused or not in_force)]
    effects = [f"{one.group.name}: {one.effect}" for one in delays if one.effect is not None]
    problems = _Problems(order_problems, lacking if topic.spec.delay is not None else [], effects)
    await _conclude(topic, broker, found, groups, problems, report, figures)
    # A setting that a broker rejects now is likely to be rejected again soon.
    refused = any(one.refused for one in found) or any(one.refused for one in problems.delays)
    return Outcome(ctx.settings.status_interval_s) if refused else later


def _refuse_system_topic(topic: Topic) -> None:
    """Reject system topics. The CRD does so as well; otherwise a Topic could adopt, and later delete, a topic of the
    broker.
    """
    broker = topic.spec.broker_ref.name
    own = [rocketmq_broker_name(broker, number) for number in range(MAX_SIZE)]
    of_a_group = topic.topic_name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    if of_a_group or is_system_topic(topic.topic_name, broker, f"{broker}_REPLY_TOPIC", *own):
        raise SpecError(
            f"spec.topicName: {topic.topic_name} is a system topic of the broker: create a Topic with another topicName"
        )


async def _belongs_to_other(topic: Topic, body: Manifest, report: Reporter, ctx: ReconcileContext) -> bool:
    named = conflicting_topics(topic, ctx.cache.conflicting_topics(body))
    older = [other for other in named if not other.deleting and age(other) < age(topic)]
    if not older:
        return False
    owner = older[0]
    await report.set_ready(
        "False",
        Reason.CONFLICT,
        f"Topic {owner.name} is older and manages the topic {topic.topic_name} of Broker "
        f"{topic.spec.broker_ref.name}: delete this Topic, or delete {owner.name}; this Topic then takes over the "
        "topic and its messages.",
        topic_name="",
        groups=(),
    )
    return True


async def _usable_broker(topic: Topic, report: Reporter, ctx: ReconcileContext) -> Broker | None:
    name = topic.spec.broker_ref.name
    body = ctx.cache.get(BROKER_KIND, topic.namespace, name)
    if body is None:
        await report.set_ready(
            "False",
            Reason.BROKER_MISSING,
            f"Broker {name} does not exist in namespace {topic.namespace}: create it, and the topic is created on it.",
        )
        return None
    try:
        broker = ctx.memory.of(Key(BROKER_KIND, topic.namespace, name), ParsedBroker).of(body)
    except SpecError as error:
        await report.set_ready("False", Reason.GROUPS_UNREACHABLE, f"The spec of Broker {name} is invalid: {error}.")
        return None
    if broker.deleting:
        await report.set_ready("False", Reason.BROKER_MISSING, f"Broker {name} is being deleted.")
        return None
    if broker.spec.paused:
        await report.set_ready(
            "False",
            Reason.BROKER_PAUSED,
            f"Broker {name} is paused: nothing is changed until its spec.paused is false.",
        )
        return None
    return broker


def _last_seen(found: Sequence[ObservedTopic], broker: Broker, report: Reporter) -> dict[str, TopicGroupStatus]:
    """Return group name → the topic: its current state, or that of the last contact with the broker."""
    seen = {
        one.group.name: one.status(broker.uid) or (report.group(one.group.name) if one.problem else None)
        for one in found
    }
    return {name: status for name, status in seen.items() if status is not None}


def _desired_groups(found: ObservedTopic, groups: dict[str, TopicGroupStatus]) -> bool:
    return not found.group.leaving and found.group.name in groups


async def _report_changes(
    found: Sequence[ObservedTopic | ObservedDelays], report: Reporter, *, repairing: bool
) -> None:
    changes = [f"{one.group.name}: {one.change}" for one in found if one.change is not None]
    if changes:
        reason = "PutRight" if repairing else "Applied"
        await report.event("Normal", reason, "; ".join(changes))


async def _conclude(
    topic: Topic,
    broker: Broker,
    found: Sequence[ObservedTopic],
    groups: dict[str, TopicGroupStatus],
    problems: _Problems,
    report: Reporter,
    figures: TopicDelayStatus | None,
) -> None:
    # A broker keeps its topics when it restarts, so a topic that was correct at the last observation is not reported.
    # Nothing is known about a recreated Broker: its volumes may have been deleted too.
    lacking = [
        one
        for one in found
        if not one.group.leaving and not satisfied(topic.spec, groups.get(one.group.name), broker.uid)
    ]
    where = ", ".join(f"{one.group.name} ({one.problem})" for one in lacking)
    if any(one.refused for one in lacking):
        message = f"Topic {topic.topic_name} cannot be created as specified in {where}."
        verdict: _Verdict = "False", Reason.APPLY_FAILED, message
    elif lacking:
        seen = any(observed_on(broker.uid, group) for group in groups.values())
        starting = not seen and all(one.problem == NOT_READY for one in lacking)
        reason = Reason.CREATING if starting else Reason.GROUPS_UNREACHABLE
        message = (
            f"Topic {topic.topic_name} does not yet match its spec in {where}: it is updated when the broker is "
            "reachable again."
        )
        verdict = "False", reason, message
    elif problems.delays:
        verdict = _of_delays(topic, problems.delays)
    elif problems.order:
        message = f"The order setting of topic {topic.topic_name} could not be updated: {'; '.join(problems.order)}."
        verdict = "False", Reason.NAME_SERVERS_NOT_READY, message
    elif problems.effects:
        message = f"The delay settings are not applied, because this is a dry run. {'; '.join(problems.effects)}."
        verdict = "Unknown", Reason.DRY_RUN, message
    else:
        verdict = "True", Reason.IN_EVERY_GROUP, _all_is_well(topic, found, groups)
    # Include the name although it has been reported before: another client may have changed it.
    await report.set_ready(*verdict, topic_name=topic.topic_name, groups=groups.values(), delay=figures)


def _of_delays(topic: Topic, lacking: Sequence[ObservedDelays]) -> _Verdict:
    where = ", ".join(f"{one.group.name} ({one.problem})" for one in lacking)
    if any(one.refused for one in lacking):
        message = f"The delay settings of topic {topic.topic_name} cannot be applied in {where}."
        return "False", Reason.APPLY_FAILED, message
    message = (
        f"The delay settings of topic {topic.topic_name} do not yet match its spec in {where}: they are updated when"
        " the broker is reachable again."
    )
    return "False", Reason.GROUPS_UNREACHABLE, message


def _all_is_well(topic: Topic, found: Sequence[ObservedTopic], groups: dict[str, TopicGroupStatus]) -> str:
    names = [one.group.name for one in found if not one.group.leaving]
    kept = [name for name in names if groups[name].read_queues > groups[name].write_queues]
    more = f" The surplus read queues are kept in {', '.join(kept)}: their messages remain readable." if kept else ""
    return f"Topic {topic.topic_name} is in {', '.join(names)}.{more}"
