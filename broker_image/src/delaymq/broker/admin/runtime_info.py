"""Body of response 28: figures of the running broker, under RocketMQ's names, all as text.

Figures of features that do not exist here have RocketMQ's idle values: there are no thread pools with queues, no page
cache lock, and no transient pool. Put times cover storing. The duration of syncs is in /metrics.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.message import names
from delaymq.message.levels import queue_of_level
from delaymq.protocol.codes import VERSION

if TYPE_CHECKING:
    from delaymq.broker.delivery import Delivery
    from delaymq.broker.pull.stored_records import StoredRecords
    from delaymq.broker.statistics.counters import Stats
    from delaymq.config import BrokerConfig
    from delaymq.store.message_store import MessageStore

VERSION_TEXT: Final = "V4_9_7"
_IDLE: Final = {
    "dispatchMaxBuffer": "0",
    "dispatchBehindBytes": "0",
    "putLatency99": "0",
    "putLatency999": "0",
    "pageCacheLockTimeMills": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "remainTransientStoreBufferNumbs": str(2**31 - 1),
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    **{f"{pool}ThreadPoolQueueSize": "0" for pool in ("send", "pull", "query")},
    **{f"{pool}ThreadPoolQueueHeadWaitTimeMills": "0" for pool in ("send", "pull", "query")},
    "sendThreadPoolQueueCapacity": "10000",
    "pullThreadPoolQueueCapacity": "100000",
    "queryThreadPoolQueueCapacity": "20000",
}


class Figures(Protocol):
    """Sources of the figures."""

    @property
    def config(self) -> BrokerConfig:
        """Configuration in force."""

    @property
    def delivery(self) -> Delivery:
        """Positions of the delay levels."""

    @property
    def records(self) -> StoredRecords:
        """Records, for the oldest one."""

    @property
    def stats(self) -> Stats:
        """Counters since the start."""

    @property
    def store(self) -> MessageStore:
        """Bounds of the log, and the disk."""

    def now_ms(self) -> int:
        """Return the wall clock's time."""


def runtime_info(broker: Figures) -> dict[str, str]:
    """Return all keys with their values."""
    store, stats = broker.store, broker.stats
    now_ms = broker.now_ms()
    ratio = f"{store.disk_state().used_ratio:.4f}"
    usage = shutil.disk_usage(broker.config.store_path)
    oldest = broker.records.record_at(store.min_offset)
    table = dict(_IDLE)
    table |= {
        "bootTimestamp": str(stats.boot_ms),
        "runtime": _span((now_ms - stats.boot_ms) // 1000),
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": VERSION_TEXT,
        "putMessageEntireTimeMax": str(stats.put_times.longest_ms),
        "putMessageDistributeTime": stats.put_times.distribution(),
        "getMessageEntireTimeMax": str(int(stats.get_slowest_s * 1_000)),
        "putMessageTimesTotal": str(stats.put_messages),
        "putMessageFailedTimes": str(stats.put_failed),
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageAverageSize": str(stats.put_bytes / max(stats.put_messages, 1)),
        "msgPutTotalYesterdayMorning": str(stats.put_yesterday),
        "msgPutTotalTodayMorning": str(stats.put_today),
        "msgPutTotalTodayNow": str(stats.put_messages),
        "msgGetTotalYesterdayMorning": str(stats.get_messages_yesterday),
        "msgGetTotalTodayMorning": str(stats.get_messages_today),
        "msgGetTotalTodayNow": str(stats.transferred),
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{broker.config.store_path / 'commitlog'}": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogMinOffset": str(store.min_offset),
        "commitLogMaxOffset": str(store.end_offset),
        "earliestMessageTimeStamp": str(-1 if oldest is None else oldest.store_timestamp_ms),
        "remainHowManyDataToFlush": _size(store.end_offset - store.flushed_offset),
        "commitLogDirCapacity": f"Total : {_size(usage.total)}, Free : {_size(usage.free)}.",
    }
    rates = stats.rates(now_ms)
    for key, name in (
        ("putTps", "put"),
        ("getFoundTps", "get_found"),
        ("getMissTps", "get_miss"),
        ("getTotalTps", "get_total"),
        ("getTransferedTps", "transferred"),
        ("getTransferredTps", "transferred"),  # spelling of RocketMQ 5
    ):
        table[key] = " ".join(str(rate) for rate in rates[name])
    for level, offset in sorted(broker.delivery.delay_offsets().items()):
        end = store.stored_bounds(names.SCHEDULE_TOPIC, queue_of_level(level))[1]
        table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
    return table


def _span(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(count: float) -> str:
    """Return a readable size, such as `512 B` or `1.5 KiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} PiB"
