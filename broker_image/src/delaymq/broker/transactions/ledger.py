"""Ledger of half messages: those that are unsettled, given up, or still without an op mark, derived from the log.

One record settles a half message: its committed copy (commit bit, and its physical offset as prepared offset), its op
mark, or its given-up copy. DelayMQ's records name it by its physical offset. RocketMQ's op marks name its queue offset
in their body, which a replay does not show; those are read after the store has been opened.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final
from zlib import crc32

from delaymq.broker.transactions.pending import PendingHalves
from delaymq.broker.transactions.records import CHECK_TIMES, COPIED, PREPARED_QUEUE_OFFSET, checks_of, immunity_ms
from delaymq.message import names
from delaymq.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from delaymq.message.record import BODY_CRC_MASK
from delaymq.store.model import Dispatched
from delaymq.store.plain_runs import PlainRun, TransactionStep

STATE_VERSION: Final = 1
MAX_RUNS: Final = 10_000
"""Ranges of pending half messages in a snapshot: about 300 KB. Further ones are derived from the op marks."""
MAX_GIVEN_UP: Final = 10_000
"""Given-up half messages that a late response may still end. Each takes 200 bytes."""
_MAX_GROUPS: Final = 65_535
"""Producer groups that have a number. For half messages of further groups, the record is read to find the group."""
_LAST_SECOND: Final = 2**32 - 1
_NEWEST_COPIES: Final = 64
"""RocketMQ writes an op mark right after the copy, in a few threads concurrently."""
_WATCHED: Final = frozenset({names.HALF_TOPIC, names.OP_HALF_TOPIC, names.TRANS_CHECK_MAX_TOPIC})


class GroupNumbers:
    """Small numbers for the producer groups of half messages; 0 is no group."""

    def __init__(self) -> None:
        self.names = [""]
        self._numbers: dict[str, int] = {}

    def number(self, group: str) -> int:
        """Return the number of a group, 0 if there are too many."""
        number = self._numbers.get(group)
        if number is None:
            if len(self.names) > _MAX_GROUPS or not 0 < len(group) <= names.MAX_GROUP_LENGTH:
                return 0
            number = self._numbers[group] = len(self.names)
            self.names.append(group)
        return number


class OpProgress:
    """Op queue offset below which no mark concerns unsettled half messages, tracked in steps of `_STEP` marks."""

    _STEP: Final = 1_024

    def __init__(self, first: int) -> None:
        self._first = first
        self._ends = array("q")
        """Op queue offset at which each step ends."""
        self._bounds = array("q")
        """End of the half queue at that time. A mark names a half message below it."""

    def advance(self, op_offset: int, half_end: int) -> None:
        """Record that an op mark was appended while the half queue ended at `half_end`."""
        if self._ends and op_offset < self._ends[-1]:
            self._bounds[-1] = half_end
            self._ends[-1] = max(self._ends[-1], op_offset + 1)
        else:
            self._ends.append((op_offset // self._STEP + 1) * self._STEP)
            self._bounds.append(half_end)

    def low(self, half_low: int, op_end: int, *, all_settled: bool) -> int:
        """Return the offset of the first op mark that may name a half message at or after `half_low`."""
        done = 0
        while done < len(self._ends) and self._bounds[done] <= half_low:
            self._first = self._ends[done]
            done += 1
        del self._ends[:done], self._bounds[:done]
        if all_settled:
            self._first = op_end
        self._first = min(self._first, op_end)
        return self._first


class Ledger:
    """Dispatch observer `transactions`. Call `restore`, then `dispatch` in log order; `recovery.finish` follows."""

    name = "transactions"

    def __init__(self, timeout_ms: int) -> None:
        self.on_unread_mark: Callable[[int], None] | None = None
        """Called, after the replay, with the physical offset of an op mark that names its half message in its body."""
        self.timeout_ms = timeout_ms
        """Age from which a half message is checked."""
        self.restore(None)

    def restore(self, state: object | None) -> None:
        """Start with an empty state or that of a snapshot. Raises ValueError for an unknown format."""
        told = _State(state)
        self.replaying = True
        self.pending = PendingHalves()
        self.taken_until = 0
        """End in the log of the newest records whose steps `take_steps` has received."""
        self.groups = GroupNumbers()
        self.unmarked: dict[int, int] = dict(told.unmarked)
        """Settled half messages without an op mark: physical offset → queue offset."""
        self.given_up: dict[int, int] = dict(told.given_up)
        """Given-up half messages that no late response has ended: physical offset → queue offset."""
        self.half_end = told.half_end
        """Queue offset of the next half message."""
        self.op_end = told.op_end
        self.last_physical_offset = told.last_physical_offset
        """Physical offset of the newest half message; -1 without one."""
        self.first_identity: list[object] | None = told.first_identity
        self.op_progress = OpProgress(0)
        # Needed until the replay ends.
        self.told_runs = told.runs
        self.told_up_to = told.known_to
        self.told_last = told.last_physical_offset
        self.copies_before: array[int] = array("q")
        self.completed_before: array[int] = array("q")
        self.rolled_back_before: array[int] = array("q")
        self.given_up_before: array[int] = array("q")
        self.unread_marks: array[int] = array("q")
        self.stored_anew: array[int] = array("q")
        """Queue offsets of half messages that RocketMQ stored again. An older one may belong to the same
        transaction."""
        if told.op_end:
            self.op_progress.advance(told.op_end - 1, told.half_end)

    def state(self) -> dict[str, object]:
        """Return the state for a snapshot, which is valid for the current end of the log. Its size is bounded."""
        if self.replaying:
            raise RuntimeError("transactions have no state until the replay has ended: create snapshots afterwards")
        runs, known_to = self.pending.runs(MAX_RUNS)
        return {
            "version": STATE_VERSION,
            "pending": runs,
            "knownTo": known_to,
            "halfEnd": self.half_end,
            "opEnd": self.op_end,
            "lastOffset": self.last_physical_offset,
            "unmarked": [list(pair) for pair in self.unmarked.items()],
            "givenUp": [list(pair) for pair in self.given_up.items()],
            "first": self.first_identity,
        }

    concerned_topics = _WATCHED
    concerned_properties = ()

    def dispatch(self, record: Dispatched) -> None:
        """Process one record. Most records do not belong to a transaction."""
        if record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
            self._copy(record)
        elif record.topic in _WATCHED and record.queue_id == 0:
            if record.topic == names.HALF_TOPIC:
                self._half(record)
            elif record.topic == names.OP_HALF_TOPIC:
                self._mark(record)
            elif record.prepared_transaction_offset or self._is_of_first(record):
                self._given_up(record)

    def dispatch_run(self, run: PlainRun) -> None:
        """Do nothing, unless the topic contains half messages: plain messages belong to no transaction."""
        if run.topic in _WATCHED and run.physical_offset >= self.taken_until:
            for record in run.dispatched():
                self.dispatch(record)

    def take_steps(self, steps: Sequence[TransactionStep], store_ms: int, end: int) -> None:
        """Process encoded records up to the offset `end`, with the same result as `dispatch` for each of them."""
        self.taken_until = end
        for number, physical_offset, value, group in steps:
            if not group:
                self.pending.settle(physical_offset)  # the copy settles it, and its op mark follows
                self.op_end = number + 1
                self.op_progress.advance(number, self.half_end)
            elif number >= self.half_end:
                due_s = _second(min(value, store_ms) + self.timeout_ms)
                self.pending.add(number, physical_offset, due_s, self.groups.number(group))
                self.half_end = number + 1
                self.last_physical_offset = physical_offset

    def _half(self, record: Dispatched) -> None:
        if record.queue_offset < self.half_end:
            return  # the queue was deleted and restarts at 0: keep the known state
        properties = record.properties
        physical_offset = record.physical_offset
        checks = 0
        if CHECK_TIMES in properties or PREPARED_QUEUE_OFFSET in properties:
            checks = checks_of(properties)
            if record.prepared_transaction_offset or (checks == 0 and self._is_of_first(record)):
                self.given_up.pop(record.prepared_transaction_offset, None)
            if not record.prepared_transaction_offset:
                self.stored_anew.append(record.queue_offset)
        if physical_offset == 0:
            self.first_identity = _identity(record)
        self.pending.add(
            record.queue_offset,
            physical_offset,
            self.due_s(record.born_timestamp_ms, record.store_timestamp_ms, properties),
            self.groups.number(properties.get(names.PRODUCER_GROUP, "")),
            checks,
        )
        self.half_end = record.queue_offset + 1
        self.last_physical_offset = physical_offset

    def due_s(self, born_ms: int, store_ms: int, properties: dict[str, str]) -> int:
        """Return the Unix time in s from which a half message may be checked. Birth times in the future are ignored."""
        return _second(min(born_ms, store_ms) + immunity_ms(properties, self.timeout_ms))

    def _copy(self, record: Dispatched) -> None:
        physical_offset = record.prepared_transaction_offset
        # RocketMQ's send-back keeps the commit bit but not the offset. 0 is an offset only for the same message.
        if physical_offset or self._is_of_first(record):
            self.committed(physical_offset)

    def committed(self, physical_offset: int) -> bool:
        """Record that a committed copy names this half message. Returns whether it was unsettled."""
        if self.replaying and physical_offset <= self.told_last:
            self.copies_before.append(physical_offset)
            return False
        offset = self.pending.settle(physical_offset)
        if offset is None:
            offset = self.given_up.pop(physical_offset, None)
        if offset is None:
            return False  # for example the delivered copy of a committed delayed message
        self.unmarked[physical_offset] = offset
        return True

    def _mark(self, record: Dispatched) -> None:
        self.op_end = record.queue_offset + 1
        self.op_progress.advance(record.queue_offset, self.half_end)
        physical_offset = record.prepared_transaction_offset
        if COPIED in record.properties:
            self.unmarked.pop(physical_offset, None)
            if self.replaying and physical_offset <= self.told_last:
                self.completed_before.append(physical_offset)
        elif physical_offset:
            self.rolled_back(physical_offset)
        elif (self.replaying or self.on_unread_mark) and not self._marks_newest_copy(record.body_crc):
            if self.replaying or self.on_unread_mark is None:
                self.unread_marks.append(record.physical_offset)
            else:
                self.on_unread_mark(record.physical_offset)

    def rolled_back(self, physical_offset: int) -> None:
        """Record that the op mark of a rollback names this half message."""
        if self.replaying and physical_offset <= self.told_last:
            self.rolled_back_before.append(physical_offset)
        elif self.pending.settle(physical_offset) is None:
            self.given_up.pop(physical_offset, None)

    def _marks_newest_copy(self, body_crc: int) -> bool:
        # The body is the queue offset in decimal digits. For few candidates, its checksum is sufficient.
        for number, (physical_offset, offset) in enumerate(reversed(self.unmarked.items())):
            if crc32(b"%d" % offset) & BODY_CRC_MASK == body_crc:
                del self.unmarked[physical_offset]
                return True
            if number == _NEWEST_COPIES:
                break
        return False

    def _given_up(self, record: Dispatched) -> None:
        physical_offset = record.prepared_transaction_offset
        if self.replaying and physical_offset <= self.told_last:
            self.given_up_before.append(physical_offset)
        else:
            self.gave_up(physical_offset)

    def gave_up(self, physical_offset: int) -> bool:
        """Record that a given-up copy names this half message. Returns whether it was unsettled."""
        offset = self.pending.settle(physical_offset)
        if offset is None:
            return False
        self.unmarked[physical_offset] = offset
        self.given_up[physical_offset] = offset
        if len(self.given_up) > MAX_GIVEN_UP:
            del self.given_up[next(iter(self.given_up))]
        return True

    def _is_of_first(self, record: Dispatched) -> bool:
        return self.first_identity is not None and _identity(record) == self.first_identity


def _second(due_ms: int) -> int:
    """Return a time as the ledger stores it, rounded up to seconds."""
    return min(max(-(-due_ms // 1_000), 1), _LAST_SECOND)


def _identity(record: Dispatched) -> list[object]:
    return [record.properties.get(names.UNIQUE_KEY), record.body_crc]


class _State:
    """Validated state of a snapshot."""

    def __init__(self, state: object | None) -> None:
        self.runs: list[tuple[int, int, int]] = []
        self.known_to: int | None = None
        self.half_end = self.op_end = 0
        self.last_physical_offset = -1
        self.unmarked: list[tuple[int, int]] = []
        self.given_up: list[tuple[int, int]] = []
        self.first_identity: list[object] | None = None
        if state is None:
            return
        if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
            raise ValueError(f"the state of transactions does not have version {STATE_VERSION}")
        try:
            self.runs = [(int(first), int(end), int(checks)) for first, end, checks in state["pending"]]
            known_to = state["knownTo"]
            self.known_to = None if known_to is None else int(known_to)
            self.half_end, self.op_end = int(state["halfEnd"]), int(state["opEnd"])
            self.last_physical_offset = int(state["lastOffset"])
            self.unmarked = [(int(physical), int(offset)) for physical, offset in state["unmarked"]]
            self.given_up = [(int(physical), int(offset)) for physical, offset in state["givenUp"]]
            first = state["first"]
            self.first_identity = list(first) if first is not None else None
        except (KeyError, TypeError) as error:
            raise ValueError(f"the state of transactions is incomplete ({error})") from error
