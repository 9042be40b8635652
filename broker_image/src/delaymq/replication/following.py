"""The part of a replica: it compares its log with the master's, cuts what diverges, appends, and acknowledges."""

from __future__ import annotations

from enum import Enum, auto

from delaymq.replication.effects import AppendRaw, CutTo, DiscardLog, Send
from delaymq.replication.history import consistent_end, trimmed
from delaymq.replication.local import Local
from delaymq.replication.messages import Accept, Ack, Follow, Frame
from delaymq.replication.model import Acknowledge, Note, NoteKind

MAX_FAILURES = 4
"""Number of sessions with a failed append, in succession, up to which the pause before the next one doubles."""
FIRST_RETRY_MS = 100
"""Time after which the first attempt to begin a session is repeated; it doubles up to `Settings.retry_ms`."""


class Stage(Enum):
    """Stages of a session, in their order."""

    NONE = auto()
    ASKED = auto()
    CUTTING = auto()
    PERSISTING = auto()
    LIVE = auto()


class Following:
    """Session with a master, if any, and the appends that are in progress."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self.stage = Stage.NONE
        self.master = ""
        self.epoch = 0
        self.session = 0
        self.lost_ms = 0
        """Time since when the master of the last session has been silent."""
        self._started_ms = local.now_ms - local.settings.retry_ms
        self._unanswered = 0
        """Number of attempts to begin a session since the last answer."""
        self._heard_ms = 0
        self._accepted: Accept | None = None
        self._cut_to = -1
        """Offset of a cut in progress, which continues when the session ends; otherwise -1."""
        self._persisting = 0
        self._expected = local.log.end
        """Offset of the next byte to append, after the appends in progress."""
        self._appending = 0
        """Number of appends in progress."""
        self._failures = 0
        """Number of sessions that ended with a failed append since the last successful append."""
        self._confirmed = 0
        self._counted_at = -1
        """Offset that was confirmed when the master last stated that it counts this member; otherwise -1."""
        self.was_counted = False
        """Whether any master has counted this process."""

    @property
    def is_settled(self) -> bool:
        """Whether the end of the log is final until the next event: nothing is being appended or cut."""
        return self._cut_to < 0 and not self._appending

    def follow(self, master: str, epoch: int) -> None:
        """Begin a session, in place of the current one."""
        local = self._local
        self.stage, self.master, self.epoch = Stage.ASKED, master, epoch
        self.session = local.next_serial()
        self._started_ms = local.now_ms
        self._counted_at = -1
        self._confirmed = 0
        note = local.log.note.serial if local.log.note else 0
        self._unanswered += 1
        local.emit(Send(master, Follow(epoch, self.session, local.incarnation, local.log.store_id, note)))

    def leave(self) -> None:
        """End the session: nothing is acknowledged any more."""
        if self.is_connected:
            self.lost_ms = self._heard_ms
        self.stage = Stage.NONE

    def tick(self, master: str, epoch: int) -> None:
        """Follow the master of the epoch, and leave a silent one."""
        now_ms, settings = self._local.now_ms, self._local.settings
        if self.stage is not Stage.NONE and (self.master, self.epoch) != (master, epoch):
            self.leave()
        if self.stage is Stage.LIVE and now_ms - self._heard_ms >= settings.replica_timeout_ms:
            self.leave()
        unanswered = self.stage is Stage.ASKED and now_ms - self._started_ms >= self._patience_ms()
        pause_ms = settings.retry_ms << min(self._failures, MAX_FAILURES)
        idle = self.stage is Stage.NONE and now_ms - self._started_ms >= pause_ms
        if master and self.is_settled and (unanswered or idle):
            self.follow(master, epoch)

    def _patience_ms(self) -> int:
        """Return the time for an answer: the first attempts may precede the master's link to this member."""
        return min(FIRST_RETRY_MS << min(self._unanswered - 1, 8), self._local.settings.retry_ms)

    @property
    def is_connected(self) -> bool:
        """Whether the master answered in this session."""
        return self.stage in (Stage.CUTTING, Stage.PERSISTING, Stage.LIVE)

    @property
    def is_counted(self) -> bool:
        """Whether the master stated last that it counts this member."""
        return self.stage is Stage.LIVE and self._counted_at >= 0

    @property
    def is_current(self) -> bool:
        """Whether this member is counted, and knows as confirmed what was confirmed before the epoch or in the session.

        What was confirmed before the epoch lies before its start.
        """
        log = self._local.log
        return self.is_counted and log.confirmed >= max(self._confirmed, log.history[-1].start)

    # Beginning

    def on_accept(self, sender: str, accept: Accept) -> str:
        """Cut what diverges. Returns the reason why this member must not follow; empty if there is none."""
        if self.stage is not Stage.ASKED or not self._is_current(sender, accept) or not self.is_settled:
            return ""
        self._unanswered = 0
        log = self._local.log
        if log.end > 0 and log.store_id != accept.store_id:
            return (
                f"the log belongs to store {log.store_id}, and that of the master {sender} to {accept.store_id}: "
                "attach the right volume, or delete this one to let the replica start from an empty volume"
            )
        point = consistent_end(log.history, log.end, accept.history, accept.end)
        if point < log.confirmed:
            return (
                f"the log of the master {sender} agrees with this one up to {point} only, and {log.confirmed} was "
                "confirmed: promote this member if its messages are needed, or delete its volume"
            )
        self._accepted = accept
        self._heard_ms = self._local.now_ms
        if point < accept.begin and log.end:
            self._discard(accept)
        elif point < log.end:
            self.stage = Stage.CUTTING
            self._cut_to = point
            self._local.emit(CutTo(point))
        else:
            self._persist(accept)
        return ""

    def _discard(self, accept: Accept) -> None:
        """Discard a log that the master cannot continue. Until this member has caught up, it lacks confirmed bytes."""
        local, end = self._local, self._local.log.end
        local.persist_note(Note(NoteKind.EMPTY, local.epoch, local.next_serial()))
        self._cut_to = 0  # the log is not final until the process has been restarted
        self.stage = Stage.NONE
        reason = f"the log ends at {end}, and that of the master {self.master} begins at {accept.begin}"
        local.emit(DiscardLog(reason))

    def on_cut_done(self) -> None:
        """Adopt the end of the log, and the master's epochs if the session still exists."""
        log, point = self._local.log, self._cut_to
        log.end = self._expected = point
        log.flushed = min(log.flushed, point)
        log.history = trimmed(log.history, point)
        self._cut_to = -1
        if self.stage is Stage.CUTTING and self._accepted is not None:
            self._persist(self._accepted)

    def _persist(self, accept: Accept) -> None:
        log = self._local.log
        if not log.end:
            log.begin = accept.begin
        self._expected = log.end or log.begin
        self.stage = Stage.PERSISTING
        self._persisting = self._local.persist_epochs(accept.store_id, accept.history)

    def on_persisted(self, number: int) -> None:
        """Begin to receive bytes: the epochs to which they belong are on disk."""
        if self.stage is Stage.PERSISTING and number == self._persisting and self._accepted is not None:
            log = self._local.log
            log.store_id, log.history = self._accepted.store_id, self._accepted.history
            self.stage = Stage.LIVE
            self._heard_ms = self._local.now_ms
            self.acknowledge()

    # Bytes

    def on_frame(self, sender: str, frame: Frame) -> None:
        """Append the bytes that continue the log, and respond to others and to heartbeats."""
        if self.stage is not Stage.LIVE or not self._is_current(sender, frame):
            return
        self._heard_ms = self._local.now_ms
        self._confirmed = max(self._confirmed, frame.confirmed)
        self._counted_at = frame.confirmed if frame.counted else -1
        self.was_counted |= frame.counted
        if frame.data and frame.start == self._expected:
            self._expected += len(frame.data)
            self._appending += 1
            self._local.emit(AppendRaw(frame.start, frame.data))
        else:
            self.acknowledge(frame.start)
        self._advance()

    def on_appended(self, end: int) -> None:
        """Acknowledge appended bytes."""
        self._local.log.end = end
        self._appending = max(self._appending - 1, 0)
        self._failures = 0
        if self.stage is Stage.LIVE:
            self.acknowledge()
            self._advance()

    def on_append_failed(self) -> None:
        """End the session. The next one continues at the end of the log.

        It transfers up to `window_bytes`, in vain as long as the disk is full or the master's record is damaged.
        """
        self._appending = max(self._appending - 1, 0)
        self._failures += self.is_connected
        self.leave()

    def on_flushed(self) -> None:
        """Acknowledge flushed bytes, if these count."""
        if self.stage is Stage.LIVE and self._local.settings.acknowledge is Acknowledge.FLUSHED:
            self._advance()
            self.acknowledge()

    def acknowledge(self, expected: int = 0) -> None:
        """Report what this member has."""
        ack = Ack(self.epoch, self.session, self._expected, self._local.acknowledged, expected)
        self._local.emit(Send(self.master, ack))

    def _advance(self) -> None:
        """Raise the confirmed offset, and clear the note of a member that has caught up.

        Everything confirmed before the epoch lies before its start. What is confirmed in the epoch while the master
        counts this member is in its log.
        """
        log = self._local.log
        if self.stage is not Stage.LIVE:
            return
        self._local.confirm(min(self._confirmed, log.end))
        start = log.history[-1].start
        if log.note and self._counted_at >= 0 and self._local.acknowledged >= max(self._counted_at, start):
            self._local.persist_note(None)

    def _is_current(self, sender: str, message: Accept | Frame) -> bool:
        """Whether a message belongs to the session, and no higher epoch is known."""
        return (
            sender == self.master
            and message.session == self.session
            and message.epoch == self.epoch == self._local.epoch
        )
