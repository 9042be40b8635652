"""A member of a group: the state machine that a broker process drives with events, and whose effects it performs."""

from __future__ import annotations

from enum import Enum

from delaymq.replication.candidacy import Candidacy
from delaymq.replication.effects import (
    BecomeMaster,
    Effect,
    Failed,
    ReadyToDetach,
    Refused,
    Send,
    StopBeingMaster,
)
from delaymq.replication.events import (
    Able,
    Appended,
    AppendFailed,
    ConnectionLost,
    CutDone,
    Detach,
    Event,
    Flushed,
    Lacks,
    MembersListed,
    Persisted,
    PrepareDetach,
    Promote,
    Received,
    RegisterConflict,
    RegisterFailed,
    RegisterRead,
    RegisterWritten,
    SwitchOver,
    Trimmed,
)
from delaymq.replication.following import Following, Stage
from delaymq.replication.founding import Founding
from delaymq.replication.history import EpochStart, last_epoch, trimmed
from delaymq.replication.leading import Leading
from delaymq.replication.local import Local
from delaymq.replication.messages import Accept, Ack, Ask, Follow, Frame, HandOver, Message, Position
from delaymq.replication.model import LogState, Note, NoteKind, ReplicaState, SendAnswer, Settings
from delaymq.replication.positions import Positions
from delaymq.replication.register import RegisterView

REACT_MS = 10
"""Time after a look at the whole state in which routine events cause no further one. `Tick` always does."""


class Role(Enum):
    """Roles of a member."""

    FOLLOWER = "follower"
    """It follows the master that the register names, or waits for one. Each process starts as a follower."""
    STARTING = "starting"
    """It won an epoch, whose start is being written to disk."""
    MASTER = "master"
    FAILED = "failed"


class Member:
    """A member of a group, in one process."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        settings: Settings,
        log: LogState,
        members: frozenset[str] = frozenset(),
    ) -> None:
        """Start with the state on disk.

        `members` are the names of all members. Without them, this member never writes the register's first record.
        `incarnation` is a positive number below 2**31 that no other process of the group has. `log` states a note of
        kind LOST_TAIL or EMPTY, with serial 0, if the note on disk does not exist and the previous process may have
        lost bytes that it had acknowledged, or if the volume is empty. `start` records it.
        """
        log.history = trimmed(log.history, log.end)
        self._local = Local(name, incarnation, settings, log, members, epoch=last_epoch(log.history))
        self._register = RegisterView(self._local)
        self._following = Following(self._local)
        self._positions = Positions(self._local, self._register)
        self._candidacy = Candidacy(self._local, self._register, self._following, self._positions)
        self._founding = Founding(self._local, self._positions)
        self._leading: Leading | None = None
        self._starting = 0
        """Number of the write of the epoch that begins."""
        self._led = 0
        """Newest epoch that this process began."""
        self._claimed: tuple[int, Note | None] = (0, None)
        """Epoch of the newest claim, and the note that it ignores."""
        self._detaching: dict[int, Note] = {}
        self._clock_ms: int | None = None
        self._react_ms = 0
        """Time from which routine events, too, let this member look at its whole state."""
        self.role = Role.FOLLOWER

    # Interface of the shell

    def start(self, now_ms: int) -> list[Effect]:
        """Return the first effects."""
        log = self._local.log
        if log.note is not None and log.note.serial == 0:
            self._local.persist_note(Note(log.note.kind, self._local.epoch, self._local.next_serial()))
        self._advance(now_ms)
        return self._taken()

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Return the effects of an event, in order. `now_ms` is a monotonic time of this process."""
        self._advance(now_ms)
        if self.role is not Role.FAILED:
            is_routine = self._local.now_ms < self._react_ms and self._is_routine(event)
            self._dispatch(event)
            if not is_routine:
                self._react()
                self._react_ms = self._local.now_ms + REACT_MS
        return self._taken()

    @property
    def settings(self) -> Settings:
        """Settings of the group."""
        return self._local.settings

    @property
    def is_able(self) -> bool:
        """Whether this member could store messages as master, as reported last."""
        return self._local.is_able

    @property
    def epoch(self) -> int:
        """Highest epoch that this member knows."""
        return self._local.epoch

    @property
    def log(self) -> LogState:
        """Log of this member, as reported by events."""
        return self._local.log

    @property
    def master(self) -> str:
        """Name of the master, as the register stated it last; empty if unknown."""
        return "" if self._register.record is None else self._register.record.master

    @property
    def problem(self) -> str:
        """Why the group has no record in the register; empty if it has one."""
        return self._founding.problem if self._register.is_vacant else ""

    @property
    def durable_confirmed(self) -> int:
        """Offset up to which snapshots may state anything: no cut goes below it, and no power loss destroys it."""
        return min(self._local.log.confirmed, self._local.log.flushed)

    def in_sync(self) -> frozenset[str]:
        """Return the members that are certain to be in sync, as this master knows; empty for other members."""
        return frozenset() if self._leading is None else frozenset(self._leading.in_sync())

    def replicas(self) -> dict[str, ReplicaState]:
        """Return the replicas of this master by name; empty for other members."""
        peers = {} if self._leading is None else self._leading.peers
        return {
            name: ReplicaState(peer.session != 0, peer.acknowledged, max(0, self._local.now_ms - peer.caught_up_ms))
            for name, peer in peers.items()
        }

    @property
    def is_counted(self) -> bool:
        """Whether this member is the master, or the master stated last that it counts this replica."""
        return self._leading is not None or self._following.is_counted

    def required_replicas(self) -> frozenset[str] | None:
        """Return the replicas without which this master confirms nothing; None if this member is not the master."""
        leading = self._leading
        return None if leading is None else frozenset(leading.required() - {self._local.name})

    def session_of(self, member: str) -> int:
        """Return the session of a replica of this master; 0 without one."""
        peer = None if self._leading is None else self._leading.peers.get(member)
        return 0 if peer is None else peer.session

    def follows(self, master: str, epoch: int, session: int) -> bool:
        """Return whether this member follows a master in this session, and its log agrees with the master's."""
        following = self._following
        return (
            following.stage in (Stage.PERSISTING, Stage.LIVE)
            and (following.master, following.epoch, following.session) == (master, epoch, session)
            and epoch == self._local.epoch
        )

    @property
    def may_read(self) -> bool:
        """Whether this member knows at least as much as confirmed as any member that was master before.

        That is a replica in sync, or a master that has confirmed its log up to the start of its epoch.
        """
        if self._leading is not None:
            return self._local.log.confirmed >= self._leading.start
        return self.role is Role.FOLLOWER and self._following.is_current

    @property
    def may_be_replaced(self) -> bool:
        """Whether another member may be the master instead of this one: a renewal is missing, and a replica silent."""
        settings, leading = self._local.settings, self._leading
        is_renewed = self._local.now_ms - self._register.renewed_ms < settings.missing_ms
        return leading is not None and not (is_renewed or leading.is_heard())

    def limit_catch_up(self, bytes_per_s: int) -> None:
        """Limit what a master sends to all members that are not in the set; 0: no limit.

        Members in the set are never limited: the confirmed offset waits for them.
        """
        self._local.catch_up_bytes_per_s = bytes_per_s

    def may_store(self) -> bool:
        """Return whether a send may be stored; otherwise, it is refused with 14."""
        leading = self._leading
        return leading is not None and leading.may_store()

    def answer(self, epoch: int, end: int, timed_out: bool) -> SendAnswer | None:
        """Return the response to a send stored in `epoch` up to `end`, for a broker that waits for replicas.

        None while the send waits; to be repeated after each SetConfirmed, and when it times out.
        """
        if self._leading is None or self._leading.epoch != epoch:
            return SendAnswer.NOT_CONFIRMED
        return self._leading.answer(end, timed_out)

    # Events

    def _advance(self, now_ms: int) -> None:
        """Advance the time, which never falls although the clock may."""
        if self._clock_ms is not None:
            self._local.now_ms += max(0, now_ms - self._clock_ms)
        self._clock_ms = now_ms

    def _taken(self) -> list[Effect]:
        effects, self._local.effects = self._local.effects, []
        return effects

    def _dispatch(self, event: Event) -> None:
        match event:
            case Received(sender, message):
                self._learn_epoch(message.epoch)
                self._on_message(sender, message)
            case Appended(end):
                self._following.on_appended(end)
                if self._leading is not None:
                    self._leading.on_appended()
            case AppendFailed():
                self._following.on_append_failed()
            case Trimmed(begin):
                self._local.log.begin = begin
            case Flushed(end):
                self._local.log.flushed = max(self._local.log.flushed, end)
                self._following.on_flushed()
                if self._leading is not None:
                    self._leading.confirm()
            case CutDone():
                self._following.on_cut_done()
            case Persisted(number):
                self._on_persisted(number)
            case ConnectionLost(member):
                self._on_connection_lost(member)
            case MembersListed(members):
                self._local.members = members
            case RegisterRead(request, version, record):
                if self._register.on_read(request, version, record) and record is not None:
                    self._learn_epoch(record.epoch)
            case RegisterWritten(request, version):
                self._register.on_written(request, version)
                if self._register.record is not None and not self._register.record.master:
                    self._learn_epoch(self._register.record.epoch)
            case RegisterConflict(request):
                self._register.on_conflict(request)
            case RegisterFailed(request):
                self._register.on_failed(request)
            case Able(is_able):
                self._local.is_able = is_able
            case Lacks(member, lacks):
                if self._leading is not None:
                    self._leading.set_lacking(member, lacks)
            case SwitchOver() | Promote() | PrepareDetach() | Detach():
                self._on_order(event)

    def _on_message(self, sender: str, message: Message) -> None:
        leading = self._leading
        match message:
            case Follow() if leading is not None:
                leading.on_follow(sender, message)
            case Ack() if leading is not None:
                leading.on_ack(sender, message)
            case Accept():
                reason = self._following.on_accept(sender, message)
                if reason:
                    self._fail(reason)
            case Frame():
                self._following.on_frame(sender, message)
            case Ask():
                position = self._positions.own(message.round, is_master=self.role is Role.MASTER)
                self._local.emit(Send(sender, position))
            case Position():
                self._positions.on_position(sender, message)
            case HandOver():
                self._on_hand_over(sender, message)
            case _:
                pass

    def _on_hand_over(self, sender: str, message: HandOver) -> None:
        following, log = self._following, self._local.log
        current = (sender, message.session, message.epoch) == (following.master, following.session, self._local.epoch)
        if current and following.is_connected and following.is_settled and log.end == message.end and log.note is None:
            self._candidacy.hand_over(message.epoch)

    def _on_connection_lost(self, member: str) -> None:
        if self._leading is not None:
            self._leading.on_connection_lost(member)
        if member == self._following.master:
            self._following.leave()

    def _on_persisted(self, number: int) -> None:
        self._following.on_persisted(number)
        if number in self._detaching:
            self._local.emit(ReadyToDetach(self._detaching.pop(number)))
        if self.role is Role.STARTING and number == self._starting and self._register.record is None:
            self._stop("the register has no record any more")
        elif self.role is Role.STARTING and number == self._starting:
            silent = {self._following.master: self._following.lost_ms}
            self.role = Role.MASTER
            self._local.emit(BecomeMaster(self._led, self._local.log.end))
            self._leading = Leading(self._local, self._register, self._positions, self._led, silent)
            self._leading.confirm()

    def _on_order(self, order: SwitchOver | Promote | PrepareDetach | Detach) -> None:
        local, leading = self._local, self._leading
        reason = ""
        if order.epoch != local.epoch:
            reason = f"the epoch is {local.epoch}, not {order.epoch}"
        elif isinstance(order, PrepareDetach | Promote) and self.role is not Role.FOLLOWER:
            reason = "this member is the master"
        elif isinstance(order, Promote):
            self._candidacy.order(order.epoch)
        elif isinstance(order, PrepareDetach):
            # The frames of the current session do not take this note into account.
            self._following.leave()
            note = self._note_of_detach()
            self._detaching[local.persist_note(note)] = note
        elif leading is None:
            reason = "this member is not the master"
        else:
            reason = leading.switch_over(order.target) if isinstance(order, SwitchOver) else leading.detach(order)
        if reason:
            local.emit(Refused(reason))

    def _note_of_detach(self) -> Note:
        """Return the note that precedes a detach.

        One of a former process remains valid until a master counts this process. Otherwise, the master could not know
        that the former note was replaced, and may have been cleared.
        """
        local, known = self._local, self._local.log.note
        is_detached = known is not None and (known.kind, known.epoch) == (NoteKind.DETACHED, local.epoch)
        if known is not None and is_detached and not self._following.was_counted:
            return known
        return Note(NoteKind.DETACHED, local.epoch, local.next_serial())

    def _is_routine(self, event: Event) -> bool:
        """Return whether an event can only move the log forward, as thousands of events do each second."""
        leading = self._leading
        match event:
            case Received(sender, Ack() as ack):
                return ack.epoch == self._local.epoch and leading is not None and leading.is_routine(sender)
            case Received(_, Frame() as frame):
                return frame.epoch == self._local.epoch and leading is None
            case Appended() | Flushed():
                return leading is None or not leading.target
        return False

    # Roles

    def _learn_epoch(self, epoch: int) -> None:
        """Leave lower epochs."""
        local = self._local
        if epoch > local.epoch:
            local.epoch = epoch
            record = self._register.record
            if record is None or record.epoch < epoch:
                self._register.hurry()
            self._candidacy.reset()
            self._following.leave()
            self._stop(f"epoch {epoch} has begun")

    def _stop(self, reason: str) -> None:
        """Stop being master, if this member is one. Appends that are held stay so: they must not be stored now."""
        if self._leading is not None:
            self._leading = None
            self._local.emit(StopBeingMaster(self._led, reason))
        if self.role is not Role.FAILED:
            self.role = Role.FOLLOWER

    def _fail(self, reason: str) -> None:
        self._stop(reason)
        self.role = Role.FAILED
        self._following.leave()
        self._local.emit(Failed(reason))

    def _react(self) -> None:
        """Do what the state requires now."""
        self._register.tick()
        if self._leading is not None:
            self._lead(self._leading)
        elif self.role is Role.FOLLOWER:
            self._follow()

    def _lead(self, leading: Leading) -> None:
        register, settings = self._register, self._local.settings
        record = register.record
        own = (leading.epoch, self._local.name, self._local.incarnation)
        if record is None or (record.epoch, record.master, record.incarnation) != own:
            self._stop("the register has no record any more" if record is None else "the register names another master")
            return
        leading.confirm()
        leading.tick()
        if not leading.may_continue(register.renewed_ms):
            self._stop("the lease has expired")
            return
        if register.is_busy:
            return
        if register.is_stale:
            if register.idle_ms() >= settings.retry_ms:
                register.read()
            return
        wanted = leading.next_record()
        if wanted is not None and (wanted != record or register.idle_ms() >= settings.renew_ms):
            register.write(wanted)

    def _follow(self) -> None:
        register, following, local = self._register, self._following, self._local
        record = register.record
        if record is not None and self._has_won():
            self._begin(record.epoch)
            return
        if record is not None and record.epoch >= local.epoch:
            following.tick("" if record.master == local.name else record.master, record.epoch)
            if not following.is_connected:
                self._candidacy.ask()
        if register.is_busy or (register.is_vacant and not register.is_stale and self._found()):
            return
        claim = None if register.is_stale else self._candidacy.claim()
        if claim is not None:
            following.leave()
            self._claimed = (claim.record.epoch, local.log.note)
            if claim.loss is not None:
                local.emit(claim.loss)
            register.write(claim.record)
            return
        urgent = register.is_stale or not following.is_connected or self._candidacy.is_pressed
        if register.idle_ms() >= (local.settings.retry_ms if urgent else local.settings.renew_ms):
            register.read()

    def _found(self) -> bool:
        """Write the register's first record, if all members agree that there is none. Returns whether it is written."""
        foundation = self._founding.foundation() if self._local.members else None
        if foundation is None:
            return False
        if foundation.loss is not None:
            self._local.emit(foundation.loss)
        self._register.write(foundation.record)
        return True

    def _has_won(self) -> bool:
        """Whether the register contains a claim of this process that it has not acted upon."""
        local, record = self._local, self._register.record
        assert record is not None
        if (record.master, record.incarnation) != (local.name, local.incarnation) or record.epoch < local.epoch:
            return False
        # A note that was recorded after the claim was made prevails.
        ignored = self._claimed[1] if self._claimed[0] == record.epoch else None
        return record.epoch > self._led and local.log.note in (None, ignored) and self._following.is_settled

    def _begin(self, epoch: int) -> None:
        local = self._local
        self._following.leave()
        self._candidacy.reset()
        local.epoch = self._led = epoch
        if not local.log.end:
            local.log.begin = 0  # not that of a former master whose first bytes never arrived
        if local.log.note is not None:
            local.persist_note(None)
        history = (*trimmed(local.log.history, local.log.end), EpochStart(epoch, local.log.end))
        local.log.history = history
        self._starting = local.persist_epochs(local.log.store_id, history)
        self.role = Role.STARTING
