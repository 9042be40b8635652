"""Process of a simulated member: it performs the effects of the core on a disk, the register and the network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from delaymq.replication import Acknowledge, LogState, Member, Note, NoteKind, Role, SendAnswer
from delaymq.replication import effects as does
from delaymq.replication.effects import Effect
from delaymq.replication.events import (
    Appended,
    AppendFailed,
    ConnectionLost,
    CutDone,
    Event,
    Flushed,
    Persisted,
    Received,
    Tick,
    Trimmed,
)
from delaymq.replication.messages import Frame

from delaymq_testing.replication.disk import Disk, DiskQueue, Operation
from delaymq_testing.replication.entries import DELAYED, PLAIN, SIZE, Entry

if TYPE_CHECKING:
    from delaymq_testing.replication.world import World

SEND_TIMEOUT_MS = 3_000


class Waiting(NamedTuple):
    """A send without a response."""

    epoch: int
    end: int
    data: bytes
    deadline_ms: int


class Node:
    """A member with its disk, which survives its processes."""

    def __init__(self, world: World, name: str, store_id: str) -> None:
        self.world = world
        self.name = name
        self.disk = Disk(store_id)
        self.member: Member | None = None
        self.incarnation = 0
        self.is_paused = False
        self.is_held = False
        self.master_epoch: int | None = None
        """Epoch of which this process is the master."""
        self.on_trapped: Callable[[Node], None] = lambda node: None
        self.clock_offset_ms = 0
        self.clock_rate = 1.0
        self.slowness_ms = 0
        """Longest additional time of a write to the disk."""
        self.trap: tuple[type[Effect], ...] = ()
        """Effects of which the next one is followed by a crash."""
        self.failure = ""
        """Reason for which the member takes part no longer."""
        self._queue = DiskQueue()
        self._inbox: deque[Event] = deque()
        self.append_failures = 0.0
        """Share of appends that fail."""
        self._appended_ms = 0
        self._rest = b""
        """Beginning of a record that is not complete."""
        self._checked = 0
        """Part of the confirmed log that the checker has compared."""
        self._waiting: list[Waiting] = []
        self._is_flushing = False
        self._stated_loss: does.ReportLoss | None = None

    # Processes

    def start(self) -> None:
        """Start a process."""
        disk = self.disk
        self.incarnation = self.world.next_incarnation()
        note = disk.note
        if note is None and disk.is_empty:
            note = Note(NoteKind.EMPTY, 0, 0)
        elif note is None and disk.lost_power:
            note = Note(NoteKind.LOST_TAIL, 0, 0)
        log = LogState(disk.store_id, disk.history, len(disk.log), disk.flushed, disk.confirmed, note, disk.begin)
        log.was_killed = self.world.random.random() < 0.5
        self._rest = b""
        self.failure = ""
        self.is_held = self._is_flushing = False
        self.master_epoch = None
        self._queue = DiskQueue()
        self._inbox.clear()
        self._waiting.clear()
        self._checked = disk.confirmed
        self.member = Member(self.name, self.incarnation, self.world.settings, log, frozenset(self.world.nodes))
        self._perform(self.member.start(self._now_ms()))
        self._schedule_tick(self.incarnation)

    def restart(self) -> None:
        """Start a process if there is none."""
        if self.member is None:
            self.start()

    def crash(self) -> None:
        """Kill the process."""
        if self.member is not None:
            self.member = None
            self.is_paused = False
            self._queue.crash(self.world.random)
            self.world.disconnected(self.name)

    def lose_power(self) -> None:
        """Kill the process, and lose a part of what is not on disk."""
        self.crash()
        disk, rng = self.disk, self.world.random
        lost = (len(disk.log) - disk.flushed) // SIZE
        disk.cut(len(disk.log) - SIZE * rng.randint(0, lost))
        disk.flushed = len(disk.log)
        if self.world.settings.acknowledge is Acknowledge.APPENDED and not disk.is_empty:
            disk.lost_power = True

    def replace_volume(self) -> None:
        """Kill the process, and give it an empty volume."""
        self.crash()
        self.disk = Disk(f"new-{self.world.next_incarnation()}")

    # Events

    @property
    def is_master(self) -> bool:
        return self.member is not None and not self.is_paused and self.member.role is Role.MASTER

    def handle(self, event: Event) -> None:
        """Give an event to the process; a paused one receives it later."""
        if self.member is None:
            return
        if self.is_paused:
            self._inbox.append(event)
            return
        effects = self.member.handle(event, self._now_ms())
        if effects:
            self._perform(effects)
        self._respond()

    def resume(self) -> None:
        """Continue a paused process."""
        self.is_paused = False
        while self._inbox and self.member is not None:
            self.handle(self._inbox.popleft())

    def _now_ms(self) -> int:
        return self.clock_offset_ms + int(self.world.now_ms * self.clock_rate)

    def _schedule_tick(self, incarnation: int) -> None:
        self.world.after(self.world.random.randint(50, 150), self._tick, incarnation)

    def _tick(self, incarnation: int) -> None:
        if incarnation == self.incarnation and self.member is not None:
            if not self.is_paused:
                self.handle(Tick())
                self._flush_sometimes()
            self._schedule_tick(incarnation)

    # Effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self.trap and isinstance(effect, self.trap):
                self.trap = ()
                self.world.after(self.world.random.randint(0, 30), self.on_trapped, self)
            match effect:
                case does.Send(member, message):
                    self.world.send(self.name, member, message)
                case does.SendLog():
                    self._send_log(effect)
                case does.ReadRegister(request):
                    self.world.register.read(self, request)
                case does.WriteRegister(request, expected, record):
                    loss, self._stated_loss = self._stated_loss, None
                    self.world.register.write(self, request, expected, record, loss)
                case does.SetConfirmed(offset):
                    self._set_confirmed(offset)
                case does.AppendRaw():
                    self._append_raw(effect)
                case does.CutTo() | does.PersistEpochs() | does.PersistNote() | does.DiscardLog():
                    self._write(effect)
                case _:
                    self._report(effect)

    def _report(self, effect: Effect) -> None:
        match effect:
            case does.BecomeMaster(epoch, _):
                self._rest = b""
                self.master_epoch = epoch
                self.world.checker.became_master(self.name, self.incarnation, epoch, self.disk)
            case does.StopBeingMaster():
                self.master_epoch, self.is_held = None, False
                self.world.checker.count("stopped masters")
            case does.HoldAppends(held):
                self.is_held = held
            case does.ReportLoss():
                self._stated_loss = effect
            case does.ReadyToDetach(note):
                self.world.ready_to_detach(self.name, note)
            case does.Refused():
                self.world.checker.count("refused orders")
            case does.Failed(reason):
                self.failure = reason
                self.world.checker.failed(self.name, reason)
            case does.Disconnect():
                self.world.checker.count("closed connections")
            case _:
                raise AssertionError(effect)

    def _send_log(self, effect: does.SendLog) -> None:
        if effect.start < self.disk.begin:
            self.world.checker.count("reads of trimmed bytes")
            self.world.after(0, self._handle_of, self.incarnation, ConnectionLost(effect.member))
            return
        data = bytes(self.disk.log[effect.start : effect.end])
        assert len(data) == effect.end - effect.start, effect
        frame = Frame(effect.epoch, effect.session, effect.start, data, effect.confirmed, effect.counted)
        self.world.send(self.name, effect.member, frame)

    def _set_confirmed(self, offset: int) -> None:
        self.world.confirmed(self, self._checked, offset)
        self._checked = offset

    def _append_raw(self, effect: does.AppendRaw) -> None:
        """Append complete records to the mapped log immediately; the event follows, in the order of the appends."""
        event: Event = AppendFailed() if self.world.random.random() < self.append_failures else self._appended(*effect)
        self.world.checker.count(type(event).__name__)
        self._appended_ms = max(self._appended_ms, self.world.now_ms + self.world.random.choice((0, 0, 1, 5, 40)))
        self.world.after(self._appended_ms - self.world.now_ms, self._handle_of, self.incarnation, event)

    def _appended(self, start: int, data: bytes) -> Event:
        """Append bytes, and return the event that reports the result."""
        disk = self.disk
        if start == len(disk.log):
            self._rest = b""
        if not disk.log and start:
            # Snapshots of the schedule are not copied: what was trimmed had ended, or was carried forward.
            before = self.world.log_before(start)
            if before is None or start % SIZE:
                return AppendFailed()
            disk.append(before)
            disk.begin = disk.flushed = start
        if start != len(disk.log) + len(self._rest):
            return AppendFailed()
        data = self._rest + data
        complete = len(data) // SIZE * SIZE
        self._rest = data[complete:]
        disk.append(data[:complete])
        return Appended(len(disk.log))

    def _handle_of(self, incarnation: int, event: Event) -> None:
        if incarnation == self.incarnation:
            self.handle(event)

    def _write(self, effect: does.CutTo | does.PersistEpochs | does.PersistNote | does.DiscardLog) -> None:
        event: Event
        match effect:
            case does.CutTo():
                event, self._rest = CutDone(), b""
            case does.DiscardLog():
                event = Tick()
            case _:
                event = Persisted(effect.number)
        self._queue.operations.append(Operation(partial(self._change, self.disk, effect), event))
        delay_ms = self.world.random.choice((0, 0, 1, 5, 40)) + self.world.random.randint(0, self.slowness_ms)
        self.world.after(delay_ms, self._complete, self._queue)

    def _change(self, disk: Disk, effect: Effect) -> None:
        match effect:
            case does.CutTo(offset):
                self.world.checker.count("cuts")
                disk.cut(offset)
            case does.DiscardLog():
                self.world.checker.count("discarded logs")
                disk.discard()
                self.crash()
                self.world.after(self.world.random.randint(1, 500), self.restart)
            case does.PersistEpochs(_, store_id, history):
                disk.store_id, disk.history = store_id, history
            case does.PersistNote(_, note):
                disk.note = note
                disk.lost_power = False
        self.world.check_in_sync(self.name)

    def _complete(self, queue: DiskQueue) -> None:
        """Complete the first operation in progress."""
        if queue.operations:
            operation = queue.operations.popleft()
            operation.perform()
            self.handle(operation.event)

    def _flush_sometimes(self) -> None:
        if (
            self._is_flushing
            or self.disk.flushed == len(self.disk.log)
            or self.world.random.random() > self.world.flush_share
        ):
            return
        self._is_flushing = True
        end, incarnation, cuts = len(self.disk.log), self.incarnation, self.disk.cuts

        def complete() -> None:
            if incarnation != self.incarnation or self.member is None:
                return
            self._is_flushing = False
            # A flush that began before a cut says nothing about the bytes that were appended since.
            if cuts == self.disk.cuts:
                self.disk.flushed = max(self.disk.flushed, end)
                self.handle(Flushed(end))

        self.world.after(self.world.random.randint(1, 60), complete)

    def snapshot(self) -> None:
        """Write the confirmed offset to disk."""
        if self.member is not None and not self.is_paused:
            self.disk.confirmed = self.member.durable_confirmed

    def trim(self) -> None:
        """Delete the oldest part of the log, but not the newest confirmed record."""
        assert self.member is not None
        disk = self.disk
        newest = (self.member.durable_confirmed // SIZE - 1) * SIZE
        if newest > disk.begin:
            disk.begin += SIZE * self.world.random.randint(1, (newest - disk.begin) // SIZE)
            self.world.checker.count("trims")
            self.handle(Trimmed(disk.begin))

    # Clients

    def append(self) -> None:
        """Store a message, or deliver a delayed one, if this member believes to be the master."""
        world, store = self.world, self.disk.store
        assert self.member is not None
        if not self.is_master or self.is_held or not self.member.may_store():
            return
        if store.pending and world.random.random() < 0.5:
            origin = next(iter(store.pending))
        else:
            origin = world.random.choice((PLAIN, DELAYED))
        entry = Entry(self.member.epoch, world.next_uid(), store.next_number, origin)
        data = entry.encode()
        self.disk.append(data)
        end = len(self.disk.log)
        if world.settings.waits_for_replicas:
            self._waiting.append(Waiting(self.member.epoch, end, data, world.now_ms + SEND_TIMEOUT_MS))
        world.checker.count("appends")
        self.handle(Appended(end))

    def _respond(self) -> None:
        if not self._waiting or self.member is None or self.is_paused:
            return
        remaining = []
        for send in self._waiting:
            answer = self.member.answer(send.epoch, send.end, self.world.now_ms >= send.deadline_ms)
            if answer is None:
                remaining.append(send)
            elif answer is SendAnswer.CONFIRMED:
                self.world.checker.acknowledged(self.name, send.epoch, send.end, send.data)
            else:
                self.world.checker.count(answer.name)
        self._waiting = remaining

    def read(self) -> None:
        """Read as a consumer, up to the confirmed offset."""
        if self.member is None or self.is_paused or not self.member.log.confirmed:
            return
        confirmed = self.member.log.confirmed
        self.world.confirmed(self, 0, confirmed)
        self.disk.store.consumed = max(self.disk.store.consumed, confirmed // SIZE)
        self.world.checker.consumed(self.name, self.disk, confirmed)


def receive(node: Node, sender: str, message: object) -> None:
    """Deliver a message."""
    node.handle(Received(sender, message))  # type: ignore[arg-type]
