"""Transaction checks: in each round, the producers of all unsettled half messages that are old enough are checked once.

RocketMQ appends each half message again at each check, even if no producer is connected, and gives it up after a number
of rounds. Here, half messages stay in place, and only checks that were sent count. A group without a producer costs one
array lookup per round and writes nothing to the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.broker.delivery.settlement import real_queue_id
from delaymq.broker.transactions.end_transaction import EndTransaction
from delaymq.broker.transactions.ledger import Ledger
from delaymq.broker.transactions.pending import Chunk
from delaymq.broker.transactions.records import check_body, checks_of, immunity_ms
from delaymq.message import names
from delaymq.message.ids import offset_message_id
from delaymq.message.record import Record
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.throttled_log import ThrottledLogger, about_message

if TYPE_CHECKING:
    from delaymq.broker.transactions.producers import Producers
    from delaymq.store.message_store import MessageStore

_EXAMINED_PER_SLICE: Final = 4_096
"""Half messages that are skipped in one call: about 2 ms."""
_HOUR_MS: Final = 3_600_000
_MAX_CHECKS: Final = 65_535
_MAX_DEFERRALS_PER_ROUND: Final = 150
"""Maximum number of times that a round is deferred if no producer of a group accepts a check, because large messages
are sent faster than they are read.
"""
_MAX_CONSECUTIVE_DEFERRALS: Final = 5
"""A group that accepts no check in this many consecutive calls is skipped in the round, because it would delay all
others.
"""

_logger = logging.getLogger(__name__)


class CheckSettings(Protocol):
    """Settings of the checks."""

    @property
    def transaction_time_out(self) -> int:
        """Minimum age of a half message before its first check, in ms."""

    @property
    def transaction_check_interval(self) -> int:
        """Time between two rounds, in ms."""

    @property
    def transaction_check_max(self) -> int:
        """Maximum number of checks of a half message."""

    @property
    def file_reserved_time(self) -> int:
        """Maximum age of a half message, in hours."""


class CheckCounters:
    """Totals since the start."""

    def __init__(self) -> None:
        self.checked = 0
        self.given_up = 0
        self.unreadable = 0


class _Examined(Enum):
    """Outcome of examining a half message."""

    OPEN = auto()
    SETTLED = auto()
    NOT_TAKEN = auto()
    """Producers are connected, but none of them accepts a check now."""


class CheckService:
    """Sender of checks. Call `run` repeatedly; the service keeps its own schedule."""

    def __init__(
        self,
        ledger: Ledger,
        store: MessageStore,
        ending: EndTransaction,
        settings: Callable[[], CheckSettings],
        producers: Producers,
        make_given_up_topic: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.counters = CheckCounters()
        self._ledger = ledger
        self._store = store
        self._ending = ending
        self._settings = settings
        self._producers = producers
        self._make_given_up_topic = make_given_up_topic
        self._throttled = ThrottledLogger(_logger, now_ms)
        self._next_round_ms = now_ms() + settings().transaction_check_interval
        self._at: int | None = None
        """Queue offset at which the round continues; None between two rounds."""
        self._round_end = 0
        self._left_put_offs = 0
        self._put_off: tuple[int, int] = (-1, 0)
        """Queue offset at which the round was last deferred, and the number of consecutive deferrals there."""
        self._left_out: set[int] = set()
        """Numbers of groups that accept no checks in this round."""

    def run(self, now_ms: int, budget: int) -> int:
        """Check or give up at most `budget` half messages. Returns their number; call again if it is `budget`."""
        if self._at is None and not self._begin_round(now_ms):
            return 0
        done = self._give_up_aged(now_ms, budget)
        if done < budget and self._at is not None:
            done += self._continue_round(now_ms, budget - done)
        return done

    def _begin_round(self, now_ms: int) -> bool:
        interval_ms = self._settings().transaction_check_interval
        # The second comparison keeps a clock that was set back from delaying the round.
        if now_ms < self._next_round_ms <= now_ms + interval_ms:
            return False
        self._next_round_ms = now_ms + interval_ms
        if not self._ledger.pending:
            return False
        self._at, self._round_end = 0, self._ledger.half_end
        self._left_put_offs = _MAX_DEFERRALS_PER_ROUND
        self._left_out.clear()
        return True

    def _continue_round(self, now_ms: int, budget: int) -> int:
        pending = self._ledger.pending
        chunks = pending.chunks
        now_s, most_checks = now_ms // 1_000, self._settings().transaction_check_max
        absent: dict[int, bool] = {0: False}
        asked = examined = 0
        number, index = pending.at_or_behind(self._at or 0)
        while number < len(chunks):
            chunk = chunks[number]
            if index >= len(chunk.offsets):
                number, index = number + 1, 0
                continue
            offset = chunk.offsets[index]
            if offset >= self._round_end:
                break
            if asked >= budget or examined >= _EXAMINED_PER_SLICE:
                self._at = offset
                return asked
            examined += 1
            group = chunk.groups[index]
            nobody_there = absent.get(group)
            if nobody_there is None:
                nobody_there = absent[group] = group in self._left_out or not self._producers.is_connected(
                    self._ledger.groups.names[group], None
                )
            if chunk.due_s[index] > now_s or (nobody_there and chunk.checks[index] < most_checks):
                index += 1
                continue
            looked = self._examine(chunk, index, now_ms)
            if looked is _Examined.NOT_TAKEN:
                if self._waits(offset):
                    self._at = offset
                    return asked
                self._skip_group(chunk.groups[index], absent)
            asked += 1
            if looked is _Examined.SETTLED:
                # It was removed, and the entries after it have moved.
                number, index = pending.at_or_behind(offset + 1)
            else:
                index += 1
        self._at = None
        return asked

    def _skip_group(self, group: int, absent: dict[int, bool]) -> None:
        if group:
            self._left_out.add(group)
            absent[group] = True

    def _waits(self, offset: int) -> bool:
        """Return whether the round is deferred at a half message whose check no producer accepted."""
        last_offset, times = self._put_off
        self._put_off = offset, times + 1 if offset == last_offset else 1
        if self._left_put_offs == 0 or self._put_off[1] > _MAX_CONSECUTIVE_DEFERRALS:
            return False
        self._left_put_offs -= 1
        return True

    def _examine(self, chunk: Chunk, index: int, now_ms: int) -> _Examined:
        """Check one half message, or give it up."""
        settings = self._settings()
        record = self._store.record_at(chunk.physical_offsets[index])
        if record is None or record.topic != names.HALF_TOPIC:
            self._drop_unreadable(chunk.offsets[index], chunk.physical_offsets[index], now_ms)
            return _Examined.SETTLED
        properties = record.properties
        chunk.checks[index] = checks = max(chunk.checks[index], checks_of(properties))
        group = properties.get(names.PRODUCER_GROUP, "")
        if not chunk.due_s[index]:
            # Loaded at the start, without reading its record.
            chunk.groups[index] = self._ledger.groups.number(group)
            chunk.due_s[index] = self._ledger.due_s(record.born_timestamp_ms, record.store_timestamp_ms, properties)
        if checks >= settings.transaction_check_max:
            self._give_up(record, checks, now_ms)
            return _Examined.SETTLED
        immune_ms = immunity_ms(properties, settings.transaction_time_out)
        topic = properties.get(names.REAL_TOPIC, names.HALF_TOPIC)
        immune_until_ms = min(record.born_timestamp_ms, record.store_timestamp_ms) + immune_ms
        if immune_until_ms > now_ms or not self._producers.is_connected(group, topic):
            return _Examined.OPEN
        if not self._producers.send_check(group, topic, _check_request(record, properties, checks + 1)):
            return _Examined.NOT_TAKEN
        chunk.checks[index] = min(checks + 1, _MAX_CHECKS)
        self.counters.checked += 1
        return _Examined.OPEN

    def _give_up_aged(self, now_ms: int, budget: int) -> int:
        """Give up half messages that exceed the age of retained segments, which could otherwise not be deleted."""
        done = 0
        while done < budget and (first := self._ledger.pending.first()) is not None:
            stored_ms = self._store.store_time_of(names.HALF_TOPIC, 0, first[0])
            if stored_ms is not None and now_ms - stored_ms <= self._retention_ms(first[1]):
                break
            record = self._store.record_at(first[1])
            if record is None or record.topic != names.HALF_TOPIC:
                self._drop_unreadable(*first, now_ms)
            else:
                found = self._ledger.pending.find(first[1])
                checks = found[0].checks[found[1]] if found is not None else 0
                self._give_up(record, max(checks, checks_of(record.properties)), now_ms)
            done += 1
        return done

    def _retention_ms(self, physical_offset: int) -> int:
        """Return the maximum age of the oldest half message in ms."""
        settings = self._settings()
        reserved_ms = settings.file_reserved_time * _HOUR_MS
        if self._store.disk_state().used_ratio <= self._store.options.disk_clean_ratio:
            return reserved_ms
        # The disk is nearly full, so segments of any age are deleted. A half message whose producer is absent, or whose
        # first check is days away, would let the disk fill up. It is given up once all its checks could have been sent,
        # as in RocketMQ.
        record = self._store.record_at(physical_offset)
        immune_ms = settings.transaction_time_out
        if record is not None:
            immune_ms = immunity_ms(record.properties, immune_ms)
        rounds_ms = settings.transaction_check_max * settings.transaction_check_interval
        return min(reserved_ms, min(immune_ms, rounds_ms) + rounds_ms)

    def _give_up(self, record: Record, checks: int, now_ms: int) -> None:
        self._make_given_up_topic()
        self._ending.give_up(record, checks, now_ms)
        self.counters.given_up += 1
        properties = record.properties
        self._throttled.warning(
            "transaction given up after %d checks: its message is now in %s",
            checks,
            names.TRANS_CHECK_MAX_TOPIC,
            **about_message(properties),
            topic=properties.get(names.REAL_TOPIC),
            group=properties.get(names.PRODUCER_GROUP),
            queueId=real_queue_id(properties),
        )

    def _drop_unreadable(self, offset: int, physical_offset: int, now_ms: int) -> None:
        self.counters.unreadable += 1
        text = "the half message at queue offset %d (physical offset %d) cannot be read and is given up"
        self._throttled.warning(text, offset, physical_offset, queueOffset=offset, offset=physical_offset)
        if self._ledger.pending.settle(physical_offset) is not None:
            self._ledger.unmarked[physical_offset] = offset
            self._ending.mark(physical_offset, now_ms)


def _check_request(record: Record, properties: dict[str, str], checks: int) -> Command:
    """Return the request for check number `checks` of a half message."""
    fields = {
        "tranStateTableOffset": str(record.queue_offset),
        "commitLogOffset": str(record.physical_offset),
        "offsetMsgId": offset_message_id(record.store_host, record.physical_offset),
    }
    unique_key = properties.get(names.UNIQUE_KEY)
    if unique_key is not None:
        fields["msgId"] = fields["transactionId"] = unique_key
    body = check_body(record, checks)
    return request_command(RequestCode.CHECK_TRANSACTION_STATE, fields, body, oneway=True)
