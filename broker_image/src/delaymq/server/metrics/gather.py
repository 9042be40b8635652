"""Collection of metrics data from a running broker, on the loop's thread in time slices."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from delaymq import __version__
from delaymq.broker.delivery.topic_lateness import LatenessCounts
from delaymq.broker.statistics.metric_labels import OTHER, LabelLimiter
from delaymq.message import names
from delaymq.schedule.timeline.inspection import IndexSize, index_size
from delaymq.server.group_lag import lag_of
from delaymq.server.log_reader import clean_text
from delaymq.server.metrics import process_facts
from delaymq.server.time_slices import TimeSlices
from delaymq.store.disk.files import disk_space

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
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
    timed_pending: int = 0
    """Number of pending timed messages."""
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


async def gather(server: "BrokerServer") -> Gathered:
    """Collect the current numbers, iterating over topics and groups in time slices."""
    broker, slices = server.broker, TimeSlices()
    gathered = Gathered(server, next_due_ms=broker.delivery.next_due_ms())
    timeline = broker.delivery.timeline
    gathered.timed_pending, gathered.pending_bytes = timeline.partitions.of_level(0).messages, timeline.partitions.bytes
    gathered.timeline, gathered.timeline_merged_entries = index_size(timeline), timeline.compaction.merged_entries
    gathered.stored = await _summed(broker.stats.stored, broker.topic_series, slices)
    gathered.delivered = await _summed(broker.delivery.counters.delivered, broker.topic_series, slices)
    if not broker.delivery.unknown_topics:
        pending = {clean_text(topic): totals.messages for topic, totals in timeline.partitions.topics().items()}
        gathered.pending = await _summed(pending, broker.topic_series, slices)
    for topic, counts in broker.delivery.topic_lateness.copy().items():
        label = broker.topic_series.label(topic)
        gathered.lateness.setdefault(label, LatenessCounts()).merge(counts)
    await slices.yield_if_due()
    await _end_series(gathered, broker, slices)
    await _gather_groups(gathered, broker, slices)
    for pin in broker.store.pins.report():
        gathered.pins[pin.holder] = pin.pinned_bytes
    gathered.tasks = len(asyncio.all_tasks())
    return gathered


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
