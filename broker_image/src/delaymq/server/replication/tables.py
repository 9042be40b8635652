"""Replication of the broker's tables: a master sends them in each session, and a replica applies them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from delaymq.broker.tables.entries import Table, TableSource
from delaymq.broker.tables.followed import FollowedTables
from delaymq.clock import now_ms
from delaymq.replication.events import Appended, ConnectionLost, Event, Flushed, Lacks, Received, Tick
from delaymq.replication.messages import Follow
from delaymq.server.replication.table_messages import COMPLETE, WRITE, LinkMessage, TableAck, TablePart, TableReceived
from delaymq.server.replication.table_streams import Stream
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.replication import Member
    from delaymq.server.requests.flushing import Flushing

OFFSETS_S: Final = 0.9
"""Interval at which changed consumer offsets are sent, so that a replica's are at most 1 s old."""

SLICE_S: Final = 0.003
"""Time after which other work of the event loop follows."""

_throttled = ThrottledLogger(logging.getLogger(__name__), now_ms)


class TableReplication:
    """The tables of one member, in both roles."""

    def __init__(
        self,
        broker: Broker,
        member: Member,
        *,
        send: Callable[[str, LinkMessage], bool],
        disconnect: Callable[[str, str], None],
        handle: Callable[[Event], None],
        rebuild: Callable[[Mapping[str, int]], None],
        flushing: Flushing,
    ) -> None:
        """`rebuild` restarts the process with other deletions of topics, and has the queues built again."""
        self._member = member
        self._broker = broker
        self._send = send
        self._disconnect = disconnect
        self._handle = handle
        self._sending: SentTables | None = None
        self._followed = FollowedTables(broker, rebuild)
        self._receiving = ReceivedTables(self._followed, member, send, disconnect)
        self._flushing = flushing

    def lead(self, epoch: int) -> None:
        """Let the broker act with the tables that it received, and send them from now on. Errors as of `Broker.lead`
        and `FollowedTables.lead`."""
        self._receiving.end()
        self._followed.lead()
        self._sending = SentTables(
            self._broker, self._member, epoch, self._send, self._disconnect, self._handle, self._flushing
        )
        self._broker.lead()

    def received(self, event: TableReceived) -> None:
        """Take note of a message about tables."""
        if isinstance(event.message, TablePart):
            self._receiving.take(event.sender, event.message)
        elif self._sending is not None:
            self._sending.acknowledged(event.sender, event.message)

    def before(self, event: Event) -> bool:
        """Return whether the member may handle an event now; otherwise, it is repeated later."""
        return self._sending is None or self._sending.before(event)

    def after(self, event: Event) -> None:
        """Take note of an event that the member has handled."""
        if isinstance(event, Tick):
            self._receiving.retry()
        if self._sending is not None:
            self._sending.after(event)

    def send_offsets(self) -> None:
        """Send changed consumer offsets now."""
        if self._sending is not None:
            self._sending.send_offsets()


class SentTables:
    """The tables of a master, which its replicas receive.

    Each change has a number. A replica has a change when it has acknowledged the part after which nothing remained to
    be sent. A response that waits for a change is sent when all required members have it. A member that lacks changes
    neither joins the set nor takes over by order.
    """

    def __init__(
        self,
        broker: Broker,
        member: Member,
        epoch: int,
        send: Callable[[str, LinkMessage], bool],
        disconnect: Callable[[str, str], None],
        handle: Callable[[Event], None],
        flushing: Flushing,
    ) -> None:
        self._member = member
        self._epoch = epoch
        self._send = send
        self._disconnect = disconnect
        self._handle = handle
        self._flushing = flushing
        self._streams: dict[str, Stream] = {}
        self._number = 0
        """Number of the newest change."""
        self._known: dict[str, int] = {}
        """Number of the newest change that each member has, with all older ones."""
        self._lacking: set[str] = set()
        self._reached = 0
        self._loop = asyncio.get_running_loop()
        self._offsets_at = self._loop.time()
        self._is_sending_soon = False
        self._source = TableSource(broker)
        self._source.watch(self._changed)
        broker.table_changes = self._newest
        flushing.tables_reached = lambda: self._reached

    # Changes

    def _changed(self, table: Table, name: str) -> None:
        self._number += 1
        for member, stream in list(self._streams.items()):
            stream.note(table, (name,))
            self._set_lacking(member)
            if table is Table.DELETIONS:
                self._send_deletions(member, stream)
        self._settle()
        self._send_soon()

    def _newest(self, offsets: bool) -> int:
        if offsets:
            changed = self._source.changed_offsets()
            self._note_offsets(changed)
            if changed:
                self._number += 1
                for member in self._streams.keys() - self._lacking:
                    self._set_lacking(member)
                self._settle()
                self._send_soon()
        return self._number

    def _note_offsets(self, names: Collection[str]) -> None:
        for stream in self._streams.values():
            stream.note(Table.OFFSETS, names)

    def send_offsets(self) -> None:
        """Send consumer offsets that have changed since the last time."""
        self._offsets_at = self._loop.time() + OFFSETS_S
        self._note_offsets(self._source.changed_offsets())
        self._send_all()

    # Sending

    def _send_soon(self) -> None:
        if not self._is_sending_soon:
            self._is_sending_soon = True
            self._loop.call_soon(self._send_all)

    def _send_all(self) -> None:
        """Send what fits the windows, and continue in the next iteration of the event loop after a slice."""
        self._is_sending_soon = False
        until = self._loop.time() + SLICE_S
        for member, stream in list(self._streams.items()):
            while stream.may_send():
                if self._loop.time() >= until:
                    self._send_soon()
                    return
                if not stream.send(partial(self._send, member), self._number, is_awaited=self._flushing.awaits_tables):
                    break  # the connection is lost, or what it buffers will be acknowledged

    def _send_deletions(self, member: str, stream: Stream) -> None:
        """Send deletions of topics before the log continues behind them."""
        if not stream.send_deletions(partial(self._send, member), self._number):
            self._streams.pop(member, None)
            self._disconnect(member, "the deletion of a topic could not be sent")

    # Events

    def before(self, event: Event) -> bool:
        """Let the member know first that a replica whose session begins lacks tables: it could join immediately."""
        match event:
            case Received(sender, Follow()):
                self._streams.pop(sender, None)
                if sender not in self._lacking:
                    self._set_lacking(sender)
                    self._handle(event)
                    return False
        return True

    def after(self, event: Event) -> None:
        """Begin and end sessions, and continue."""
        match event:
            case Received(sender, Follow()):
                session = self._member.session_of(sender)
                if session:
                    stream = self._streams[sender] = Stream(self._epoch, session, self._source)
                    self._send_deletions(sender, stream)  # before the Ack to which the master responds with the log
                    self._send_soon()
            case ConnectionLost(member):
                self._streams.pop(member, None)
            case Tick():
                if self._loop.time() >= self._offsets_at:
                    self.send_offsets()
                else:
                    self._send_all()
        if not isinstance(event, Appended | Flushed | Received):
            self._settle()

    def acknowledged(self, member: str, ack: TableAck) -> None:
        """Note what a replica has, and send the next parts."""
        stream = self._streams.get(member)
        if stream is None or (ack.epoch, ack.session) != (self._epoch, stream.session):
            return
        number = stream.acknowledge(ack)
        if number >= 0:
            self._known[member] = max(self._known.get(member, 0), number)
            if number >= self._number:
                self._set_lacking(member, lacks=False)
            self._settle()
        self._send_all()

    def _set_lacking(self, member: str, *, lacks: bool = True) -> None:
        if lacks == (member in self._lacking):
            return
        if lacks:
            self._lacking.add(member)
        else:
            self._lacking.discard(member)
        self._handle(Lacks(member, lacks))

    def _settle(self) -> None:
        """Answer requests whose changes all required members have."""
        required = self._member.required_replicas()
        if required is None:
            return
        reached = min((self._known.get(each, 0) for each in required), default=self._number)
        if reached > self._reached:
            self._reached = reached
            self._flushing.of_tables.release()


class ReceivedTables:
    """The tables of a replica's master. Parts are applied in their order, in slices."""

    def __init__(
        self,
        followed: FollowedTables,
        member: Member,
        send: Callable[[str, LinkMessage], bool],
        disconnect: Callable[[str, str], None],
    ) -> None:
        self._followed = followed
        self._member = member
        self._send = send
        self._disconnect = disconnect
        self._loop = asyncio.get_running_loop()
        self._session = (0, 0)
        self._serial = 0
        """Number of the newest part of the session."""
        self._work: deque[tuple[str, TablePart, Iterator[None]]] = deque()
        """Steps of the parts that are not completely applied yet."""
        self._is_working = False
        self._unwritten: tuple[str, TableAck] | None = None
        """Acknowledgement that waits until the files have been written, with its receiver."""

    def take(self, sender: str, part: TablePart) -> None:
        """Apply a part of the current session with the current master; ignore any other."""
        if not self._member.follows(sender, part.epoch, part.session):
            return
        if part.serial == 1 and self._session != (part.epoch, part.session):
            self._session, self._serial = (part.epoch, part.session), 0
            self.stop()
            self._followed.begin()
        try:
            if self._session != (part.epoch, part.session) or part.serial != self._serial + 1:
                raise ValueError(f"part {part.serial} of the tables follows part {self._serial}")
            steps = self._followed.receive(part.table, part.data, is_complete=bool(part.flags & COMPLETE))
        except (ValueError, OSError) as error:
            _throttled.error("tables of the master cannot be applied: %s", error)
            self._session = (0, 0)
            self._disconnect(sender, f"tables cannot be applied: {error}")
            return
        self._serial = part.serial
        self._work.append((sender, part, steps))
        if not self._is_working:
            self._apply()

    def stop(self) -> None:
        """Apply nothing more of the parts that have been received."""
        self._work.clear()
        self._unwritten = None

    def end(self) -> None:
        """Apply the changes that have been received. Those of an incomplete session were never acknowledged."""
        if self._followed.is_complete:
            for _, _, steps in self._work:
                deque(steps, 0)
        self.stop()

    def _apply(self) -> None:
        self._is_working = False
        until = self._loop.time() + SLICE_S
        while self._work:
            sender, part, steps = self._work[0]
            for _ in steps:
                if self._loop.time() >= until:
                    self._is_working = True
                    self._loop.call_soon(self._apply)
                    return
            self._work.popleft()
            self._applied(sender, part)

    def _applied(self, sender: str, part: TablePart) -> None:
        ack = TableAck(part.epoch, part.session, part.serial)
        if part.flags & WRITE or self._unwritten is not None:
            self._unwritten = sender, ack
            self.retry()
        else:
            self._send(sender, ack)

    def retry(self) -> None:
        """Write the files, and acknowledge."""
        if self._unwritten is None:
            return
        sender, ack = self._unwritten
        if self._followed.write() is None:
            self._unwritten = None
            self._send(sender, ack)
