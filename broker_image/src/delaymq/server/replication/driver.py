"""Drives the state machine of a member: its effects change the log, the files, the register and the broker's role."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from delaymq.clock import now_ms
from delaymq.message.errors import NewerFormError
from delaymq.replication import Member
from delaymq.replication import effects as does
from delaymq.replication.effects import Effect
from delaymq.replication.events import (
    Able,
    Appended,
    AppendFailed,
    ConnectionLost,
    Event,
    Flushed,
    Order,
    Persisted,
    PrepareDetach,
    Received,
    Tick,
    Trimmed,
)
from delaymq.replication.messages import Frame
from delaymq.replication.model import Note
from delaymq.server.registers.effects import perform
from delaymq.server.replication.member_files import MemberFiles
from delaymq.server.replication.table_messages import TableReceived
from delaymq.server.resources import started
from delaymq.store.errors import StoreError
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.server.registers import Register
    from delaymq.server.replication.links import Links
    from delaymq.store.message_store import MessageStore

TICK_S: Final = 0.1
DETACH_TIMEOUT_S: Final = 10.0
RETRY_WRITE_S: Final = 1.0
REPORT_S: Final = 0.01
"""Shortest time between reports of the log's end while no response waits for replicas (ASYNC_MASTER)."""
LATE_REPORT_S: Final = 0.015
"""Time after a report at which the next one follows even if nothing more is appended."""
_FREQUENT: Final = (Appended, Flushed, Received)
"""Events that change no set of members."""

_logger = logging.getLogger(__name__)
_throttled = ThrottledLogger(_logger, now_ms)


class OrderError(Exception):
    """An order is refused; the text says why."""


class Host(Protocol):
    """The broker's server, as the driver uses it."""

    def lead(self, epoch: int) -> None:
        """Act as the broker of the group."""

    def stop_leading(self, reason: str) -> None:
        """Refuse sends that are not stored, and restart the process as a replica."""

    def hold(self, held: bool) -> None:
        """Store nothing new, or continue."""

    def set_in_sync(self, members: frozenset[str], *, may_store: bool) -> None:
        """Take note of the members in sync, and whether these suffice to store messages."""

    def confirm(self, offset: int) -> None:
        """Let readers read up to an offset, and send the responses that waited for it."""

    def cut(self, offset: int) -> None:
        """Restart the process with a log that ends at an offset."""

    def discard(self, reason: str) -> None:
        """Restart the process with an empty log."""

    def store_failed(self, reason: str) -> None:
        """Restart the process because the store accepts nothing more, and acknowledged bytes may be lost."""

    def restart(self, reason: str) -> None:
        """Restart the process."""


class Tables(Protocol):
    """The replication of the broker's tables, as the driver uses it."""

    def received(self, event: TableReceived) -> None:
        """Take note of a message about tables."""

    def before(self, event: Event) -> bool:
        """Return whether the member may handle an event now; otherwise, it is repeated later."""

    def after(self, event: Event) -> None:
        """Take note of an event that the member has handled."""


class Driver:
    """Drives one member on the event loop. `start` and `stop` are called once each.

    The member's log is that of `store`. It appends nothing of its own before `Host.lead`.
    """

    def __init__(
        self,
        member: Member,
        store: MessageStore,
        links: Links,
        register: Register,
        files: MemberFiles,
        host: Host,
        *,
        tables: Tables,
        flush_soon: Callable[[], None],
        register_timeout_s: float,
    ) -> None:
        """`flush_soon` requests a sync of the log, after which `flushed` is called."""
        self._tables = tables
        self.member = member
        self._store = store
        self._links = links
        self.register = register
        self._files = files
        self._host = host
        self._flush_soon = flush_soon
        self._register_timeout_s = register_timeout_s
        self._loop = asyncio.get_running_loop()
        self._executor = started(ThreadPoolExecutor(1, "replication"), 1)
        self._events: deque[Event] = deque()
        self._is_handling = False
        self._on_disk: deque[Effect] = deque()
        """Effects on the disk that follow the one in progress."""
        self._queued_bytes = 0
        """Number of bytes to append in `_on_disk`."""
        self._writing: asyncio.Task[None] | None = None
        self._operations: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._in_sync: tuple[frozenset[str], bool] = (frozenset(), False)
        self._reports_soon = False
        """Whether the log's end is reported soon, without a timer."""
        self._late_report: asyncio.TimerHandle | None = None
        self._reported_s = 0.0
        """Time of the last report of the log's end."""
        self._stopped = False
        self._refusal = ""
        self._detaching: list[asyncio.Future[Note]] = []
        self.failure = ""
        """Why this member takes no part any more."""
        self.register_problem = ""
        """Why the last operation on the register failed; empty if it succeeded."""
        self.append_problem = ""
        """Why the last bytes of the master's log could not be appended; empty if they could."""

    # Life cycle

    def start(self) -> None:
        """Start the member."""
        self._perform(self.member.start(_monotonic_ms()))
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def halt(self) -> None:
        """Perform no further effect: the process is about to end, and its broker may have the wrong role."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self) -> None:
        """Stop; no further effect is performed."""
        self.halt()
        tasks = [*self._operations, *([self._writing] if self._writing is not None else [])]
        for task in self._operations:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._executor.shutdown(wait=True)
        await self.register.close()

    # Events

    def handle(self, event: Event) -> None:
        """Give an event to the member, and perform its effects."""
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events and not self._stopped:
                each = self._events.popleft()
                if not self._tables.before(each):
                    continue
                self._perform(self.member.handle(each, _monotonic_ms()))
                self._after(each)
        except Exception as error:
            # The member assumes that its effects took place: as a master, it would keep its lease and serve nobody.
            _logger.exception("replication cannot continue in this process")
            self.halt()
            self._host.restart(f"replication cannot continue: {error}")
        finally:
            self._is_handling = False

    def _after(self, event: Event) -> None:
        if self._stopped:
            return
        self._tables.after(event)
        if not isinstance(event, _FREQUENT):
            self._report_in_sync()

    def order(self, order: Order) -> str:
        """Give an order. Returns the reason if it is refused, otherwise an empty text."""
        self._refusal = ""
        # A switchover waits until the target has the whole log, which may have grown since the last report.
        self._report_end()
        self.handle(order)
        return "the process is about to restart" if self._stopped and not self._refusal else self._refusal

    async def prepare_detach(self, epoch: int) -> Note:
        """Record that this member is no candidate until it has caught up, and return the note.

        Raises OrderError if the order is refused, or TimeoutError.
        """
        ready: asyncio.Future[Note] = self._loop.create_future()
        self._detaching.append(ready)
        reason = self.order(PrepareDetach(epoch))
        if reason:
            self._detaching.remove(ready)
            raise OrderError(reason)
        return await asyncio.wait_for(ready, DETACH_TIMEOUT_S)

    def _report_in_sync(self) -> None:
        state = self.member.in_sync(), self.member.may_store()
        if state != self._in_sync and state[0]:
            self._in_sync = state
            self._host.set_in_sync(state[0], may_store=state[1])

    def grown(self) -> None:
        """Note that the log has grown.

        This is reported at the end of the next iteration of the event loop, so that a Frame contains what arrives while
        the first messages are handled. If no response waits for it, the first append after REPORT_S reports it instead,
        and a timer if there is none: a timer alone would wake the process once more.
        """
        if self._reports_soon:
            return
        if self.member.settings.waits_for_replicas or self._loop.time() >= self._reported_s + REPORT_S:
            self._reports_soon = True
            self._loop.call_soon(self._loop.call_soon, self._report_growth)
        elif self._late_report is None:
            self._late_report = self._loop.call_at(self._reported_s + LATE_REPORT_S, self._report_growth)

    def _report_growth(self) -> None:
        self._reports_soon = False
        if self._late_report is not None:
            self._late_report.cancel()
            self._late_report = None
        self._reported_s = self._loop.time()
        self._report_end()
        self._flush_soon()

    def _report_end(self) -> None:
        if not self._stopped and self._store.end_offset > self.member.log.end:
            self.handle(Appended(self._store.end_offset))

    def flushed(self) -> None:
        """Note that more of the log may be on disk."""
        if self._store.flushed_offset > self.member.log.flushed:
            self.handle(Flushed(self._store.flushed_offset))

    def _tick(self) -> None:
        if self._store.failure is not None:
            self.halt()
            self._host.store_failed(str(self._store.failure))
            return
        self._timer = self._loop.call_later(TICK_S, self._tick)
        if self.member.log.begin != self._store.min_offset:
            self.handle(Trimmed(self._store.min_offset))
        is_able = not self._store.disk_state().writes_refused
        if is_able != self.member.is_able:
            self.handle(Able(is_able))
        self.handle(Tick())

    # Effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self._stopped:
                return
            match effect:
                case does.Send(member, message):
                    self._links.send(member, message)
                case does.SendLog():
                    self._send_log(effect)
                case does.AppendRaw(_, data):
                    self._queue_append(effect, len(data))
                case does.CutTo() | does.DiscardLog() | does.PersistEpochs() | does.PersistNote():
                    self._on_disk.append(effect)
                    self._continue_on_disk()
                case does.ReadRegister() | does.WriteRegister():
                    self._begin(self._operate(effect))
                case does.SetConfirmed(offset):
                    # The responses that this sends depend on the members in sync, which may just have become fewer.
                    self._report_in_sync()
                    self._host.confirm(offset)
                case does.Disconnect(member, reason):
                    _logger.error("disconnected member %s: it %s", member, reason)
                    self._links.disconnect(member, reason)
                case _:
                    self._change_role(effect)

    def _change_role(self, effect: Effect) -> None:
        match effect:
            case does.BecomeMaster(epoch, start):
                _logger.info("this member is the master of epoch %d, which begins at offset %d", epoch, start)
                self._host.lead(epoch)
            case does.StopBeingMaster(epoch, reason):
                _logger.warning("this member is not the master of epoch %d any more: %s", epoch, reason)
                self.halt()
                self._host.stop_leading(reason)
            case does.HoldAppends(held):
                text = "holding requests: a switchover is in progress" if held else "handling requests again"
                _logger.info("%s", text)
                self._host.hold(held)
            case does.ReportLoss(epoch, offset, is_ordered):
                cause = "an administrator ordered it" if is_ordered else "all members in sync may have lost some"
                _logger.error(
                    "taking over in epoch %d with the log up to offset %d, although messages may be lost: %s",
                    epoch,
                    offset,
                    cause,
                )
            case does.ReadyToDetach(note):
                _logger.warning("this member is no candidate until it has caught up: %s", note)
                for ready in self._detaching:
                    if not ready.done():
                        ready.set_result(note)
                self._detaching.clear()
            case does.Refused(reason):
                _logger.warning("refused an order: %s", reason)
                self._refusal = reason
            case does.Failed(reason):
                _logger.error("this member takes no part in replication: %s", reason)
                self.failure = reason

    def _send_log(self, effect: does.SendLog) -> None:
        data = self._read(effect.start, effect.end)
        if data is None:
            # Retention deleted the bytes. The replica begins a new session, and then learns where the log begins.
            self.handle(ConnectionLost(effect.member))
            return
        frame = Frame(effect.epoch, effect.session, effect.start, data, effect.confirmed, effect.counted)
        self._links.send(effect.member, frame)

    def _read(self, start: int, end: int) -> bytes | None:
        """Return bytes of the log; None if some were deleted."""
        store, parts, segment_bytes = self._store, [], self._store.options.commit_log_file_bytes
        while start < end:
            segment_end = (start // segment_bytes + 1) * segment_bytes
            part = store.read_bytes(start, min(end, segment_end) - start)
            if not part:
                return None
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    # The register

    def _begin(self, operation: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(operation)
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)

    async def _operate(self, effect: does.ReadRegister | does.WriteRegister) -> None:
        event, reason = await perform(self.register, effect, self._register_timeout_s)
        self.register_problem = reason
        if reason:
            _throttled.warning("the register of the group: %s", reason)
        self.handle(event)

    # The disk

    def _queue_append(self, effect: does.AppendRaw, size: int) -> None:
        """Append bytes, behind the file that is being written. The master sends more although they wait."""
        if self._queued_bytes + size > 2 * self.member.settings.window_bytes:
            self.handle(AppendFailed())
            return
        self._queued_bytes += size
        self._on_disk.append(effect)
        self._continue_on_disk()

    def _continue_on_disk(self) -> None:
        """Perform effects on the disk in their order. Only files need a thread."""
        acknowledge = self.member.settings.acknowledge
        while self._on_disk and self._writing is None and not self._stopped:
            effect = self._on_disk.popleft()
            match effect:
                case does.AppendRaw(start, data):
                    self._queued_bytes -= len(data)
                    self._append(start, data)
                case does.PersistEpochs(number, store_id, history):
                    self._writing = self._loop.create_task(
                        self._write(number, partial(self._files.write_epochs, store_id, history))
                    )
                case does.PersistNote(number, note):
                    self._writing = self._loop.create_task(
                        self._write(number, partial(self._files.write_replica, note, acknowledge))
                    )
                case does.CutTo(offset):
                    self.halt()
                    self._host.cut(offset)
                case does.DiscardLog(reason):
                    self.halt()
                    self._host.discard(reason)

    async def _write(self, number: int, write: Callable[[], None]) -> None:
        """Write a file, as often as necessary, then continue."""
        while not self._stopped:
            try:
                await self._loop.run_in_executor(self._executor, write)
            except OSError as error:
                _throttled.error("a file of the replica cannot be written, retrying: %s", error)
                await asyncio.sleep(RETRY_WRITE_S)
                continue
            self._writing = None
            self.handle(Persisted(number))
            self._continue_on_disk()
            return

    def _append(self, start: int, data: bytes) -> None:
        store = self._store
        if start == store.end_offset:
            store.forget_received()  # a new session begins at the end of the last complete record
        try:
            store.append_raw(start, data)
        except (StoreError, NewerFormError) as error:
            _throttled.error("bytes of the master's log cannot be appended: %s", error)
            self.append_problem = str(error)
            self.handle(AppendFailed())
            return
        self.append_problem = ""
        self.handle(Appended(store.end_offset))
        self._flush_soon()


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
