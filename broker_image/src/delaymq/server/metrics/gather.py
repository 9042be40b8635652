"""Collection of metrics data from a running broker, on the loop's thread in time slices."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from delaymq import __version__
from delaymq.api_types.delay_settings import AccountDelaySettings, LatenessObjective, TopicDelaySettings
from delaymq.broker.delivery.settings.promises import ObjectiveCounts
from delaymq.broker.delivery.topic_lateness import LatenessCounts
from delaymq.broker.statistics.metric_labels import OTHER, LabelLimiter
from delaymq.message import names
from delaymq.schedule.timeline.inspection import IndexSize, index_size
from delaymq.schedule.timeline.partitions import Totals
from delaymq.server.group_lag import lag_of
from delaymq.server.log_reader import clean_text
from delaymq.server.metrics import process_facts
from delaymq.server.metrics.account_counts import AccountCounts
from delaymq.server.metrics.due_counts import DueCountsByTopic
from delaymq.server.metrics.replication_facts import ReplicationFacts, facts
from delaymq.server.time_slices import TimeSlices
from delaymq.store.disk.files import disk_space

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.broker.delivery.changes.pauses import Pauses
    from delaymq.server.broker_server import BrokerServer

MAX_TOPICS_PER_GROUP: Final = 100
"""Maximum topics per group whose lag is computed at each scrape."""


@dataclass
class Gathered:
    """Collected numbers; per topic and group, sums by label."""

    server: "BrokerServer"
    stored: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)
    pending: dict[str, int] | None = None
    """By topic; None while the topics of some messages are unknown."""
    due: dict[str, dict[str, int]] | None = None
    """Pending messages by topic and time until they are due (schedule.buckets); None like `pending`."""
    objectives: dict[str, tuple[LatenessObjective, ObjectiveCounts]] = field(default_factory=dict)
    """Lateness objectives of topics with a series of their own, and messages that were counted for them."""
    topic_limits: dict[tuple[str, str], float] = field(default_factory=dict)
    """Used share of each limit, by topic with a series of its own and by name of the limit."""
    account_limits: dict[tuple[str, str], float] = field(default_factory=dict)
    """The same by account."""
    accounts: AccountCounts = field(default_factory=AccountCounts)
    """Usage of accounts; empty without access control."""
    timed_pending: int = 0
    """Number of pending timed messages."""
    pauses: dict[str, float] = field(default_factory=dict)
    """Number of pauses that the log states, by kind."""
    pending_bytes: int = 0
    """Bytes of the records of all pending messages."""
    timeline: IndexSize = field(default_factory=partial(IndexSize, 0, 0, 0))
    """Index of pending messages."""
    timeline_merged_entries: int = 0
    lateness: dict[str, LatenessCounts] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    dead_letters: dict[str, int] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    next_due_ms: dict[int, int] = field(default_factory=dict)
    pins: dict[str, int] = field(default_factory=dict)
    replication: ReplicationFacts | None = None
    """None without replicas."""
    version: str = __version__
    disk_total_bytes: int = 0
    disk_free_bytes: int = 0
    memory: process_facts.Memory | None = None
    descriptors: int | None = None
    tasks: int = 0

    def sample_system(self) -> None:
        """Read data from the operating system, in any thread."""
        self.disk_total_bytes, self.disk_free_bytes = disk_space(self.server.broker.store.path)
        self.memory = process_facts.memory()
        self.descriptors = process_facts.open_descriptors()


async def gather(server: "BrokerServer", due_counts: DueCountsByTopic | None = None) -> Gathered:
    """Collect the current numbers, iterating over topics and groups in time slices.

    `due_counts` keeps counts between scrapes.
    """
    broker, slices = server.broker, TimeSlices()
    gathered = Gathered(server, next_due_ms=broker.delivery.next_due_ms())
    timeline = broker.delivery.timeline
    gathered.timed_pending, gathered.pending_bytes = timeline.partitions.of_level(0).messages, timeline.partitions.bytes
    gathered.pauses = _pauses(broker.delivery.pauses)
    gathered.timeline, gathered.timeline_merged_entries = index_size(timeline), timeline.compaction.merged_entries
    gathered.stored = await _summed(broker.stats.stored, broker.topic_series, slices)
    gathered.delivered = await _summed(broker.delivery.counters.delivered, broker.topic_series, slices)
    if not broker.delivery.unknown_topics:
        pending = {clean_text(topic): totals.messages for topic, totals in timeline.partitions.topics().items()}
        gathered.pending = await _summed(pending, broker.topic_series, slices)
        gathered.due = await (due_counts or DueCountsByTopic()).count(broker, slices)
    await _gather_settings(gathered, broker, slices)
    for topic, counts in broker.delivery.topic_lateness.copy().items():
        label = broker.topic_series.label(topic)
        gathered.lateness.setdefault(label, LatenessCounts()).merge(counts)
    await slices.yield_if_due()
    await _end_series(gathered, broker, slices)
    await _gather_groups(gathered, broker, slices)
    await _gather_accounts(gathered, broker, slices)
    for pin in broker.store.pins.report():
        gathered.pins[pin.holder] = pin.pinned_bytes
    if server.replica is not None:
        gathered.replication = facts(server.replica)
    gathered.tasks = len(asyncio.all_tasks())
    return gathered


async def _gather_settings(gathered: Gathered, broker: "Broker", slices: TimeSlices) -> None:
    """Collect the lateness objectives and the use of limits. Topics that share a series have none."""
    settings, partitions = broker.delay_settings, broker.delivery.timeline.partitions
    counts = broker.delivery.promises.counts()
    for topic, each in list(settings.topics.items()):
        await slices.yield_if_due()
        if topic not in broker.topics.table or broker.topic_series.label(topic) == OTHER:
            continue
        if each.lateness_objective is not None:
            gathered.objectives[topic] = each.lateness_objective, counts.get(topic, ObjectiveCounts(0, 0))
        gathered.topic_limits |= _used(topic, each, partitions.totals(topic))
    for account, own in list(settings.accounts.items())[: broker.config.metrics_max_topics]:
        gathered.account_limits |= _used(account, own, partitions.of_account(account))


def _used(
    name: str, settings: TopicDelaySettings | AccountDelaySettings, pending: Totals
) -> dict[tuple[str, str], float]:
    limits = {
        "maxPendingMessages": (settings.max_pending_messages, pending.messages),
        "maxPendingBytes": (settings.max_pending_bytes, pending.bytes),
    }
    # A limit of 0 is not one that is about to be reached.
    return {(name, limit): used / most for limit, (most, used) in limits.items() if most}


async def _end_series(gathered: Gathered, broker: "Broker", slices: TimeSlices) -> None:
    """Free the labels of topics that were deleted while messages were pending, or during the collection."""
    told = {*gathered.stored, *gathered.delivered, *gathered.lateness, *(gathered.pending or ())}
    for name in broker.topic_series.names():
        if name not in told and name not in broker.topics.table:
            broker.topic_series.forget(name)
        await slices.yield_if_due()


async def _summed(counts: dict[str, int], series: LabelLimiter, slices: TimeSlices) -> dict[str, int]:
    sums: dict[str, int] = {}
    await _add(sums, counts, series, slices)
    return sums


async def _add(sums: dict[str, int], counts: dict[str, int], series: LabelLimiter, slices: TimeSlices) -> None:
    for name, count in list(counts.items()):
        label = series.label(name)
        sums[label] = sums.get(label, 0) + count
        await slices.yield_if_due()


async def _gather_groups(gathered: Gathered, broker: "Broker", slices: TimeSlices) -> None:
    """Collect lag, dead letters and members of groups with a label; only members and dead letters of the others.

    Computing the lag of thousands of groups would be too expensive. Names that occur only in offsets are skipped:
    invented names must not take labels of existing groups, and deleted groups may have left offsets.
    """
    topics: dict[str, list[str]] = {}
    for key in list(broker.offsets.table):
        await slices.yield_if_due()
        topic, _, name = key.partition("@")
        if name in broker.groups.table and len(there := topics.setdefault(name, [])) < MAX_TOPICS_PER_GROUP:
            there.append(topic)
    for name in broker.clients.group_names(broker.now_ms()):
        if name in broker.groups.table:
            topics.setdefault(name, [])
    for name, offset_topics in topics.items():
        await slices.yield_if_due()
        label = broker.group_series.label(name)
        low, high = broker.store.queue_bounds(names.dead_letter_topic(name), 0)
        gathered.dead_letters[label] = gathered.dead_letters.get(label, 0) + high - low
        members = broker.clients.consumers.get(name)
        gathered.members[label] = gathered.members.get(label, 0) + (len(members.members) if members else 0)
        if label != OTHER:
            gathered.lag[label] = await lag_of(broker, name, offset_topics, slices)


async def _gather_accounts(gathered: Gathered, broker: "Broker", slices: TimeSlices) -> None:
    access = broker.access
    if access is None:
        return
    for key, usage in list(access.usages.by_account.items())[: broker.config.metrics_max_topics]:
        await slices.yield_if_due()
        gathered.accounts.add(usage, access.rules.accounts.get(key))


def _pauses(pauses: "Pauses") -> dict[str, float]:
    of_all = float(pauses.of_all is not None)
    groups = float(sum(group != "" for (_, group), _ in pauses))
    return {"topic": len(pauses) - groups - of_all, "group": groups, "all": of_all}
