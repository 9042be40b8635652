"""Incoming half of a connection: immediate, deferred and time-sliced handling of requests.

`states` describes the states of a connection and their relations.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from typing import Any, Final

from delaymq.protocol.command import FLAG_RESPONSE, Command
from delaymq.protocol.errors import ProtocolError
from delaymq.protocol.frame import decode_frames, end_of_frames
from delaymq.transport.buffer_budget import BufferBudget
from delaymq.transport.fair_queue import SLICE_S, FairQueue
from delaymq.transport.limits import ConnectionLimits
from delaymq.transport.open_requests import OpenRequests
from delaymq.transport.outbound import SendingProtocol
from delaymq.transport.states import (
    INTAKES,
    LONG_REQUESTS,
    Intake,
    IntakeEvent,
    LongRequest,
    LongRequestEvent,
    PhaseEvent,
    Throttle,
    reads,
    wants_turn,
)

TAKEN_AT_ONCE: Final = 4
"""Number of pipelined requests handled before the size of unsent responses is checked. One read contains hundreds of
pulls, each with a response of up to 4 MiB: together they would take gigabytes and seconds."""

_LENGTH_BYTES: Final = 4
_OPEN: Intake = Intake.OPEN
"""For each read: a global is accessed much faster than an enum member. Not Final: mypy would narrow across calls."""
_STOPPED: Final = Intake.STOPPED

_logger = logging.getLogger(__name__)


class HandlingProtocol(SendingProtocol):
    """Half that handles requests. The whole connection extends it and sets `_on_bytes`, `_on_commands`, `_requests`."""

    __slots__ = (
        "_deferred",
        "_fair_queue",
        "_intake",
        "_is_reading",
        "_long_request",
        "_on_bytes",
        "_on_commands",
        "_requests",
        "_step",
        "_throttle_timer",
        "_throttled_until",
        "_waiting_bytes",
        "deferred_since",
        "is_waiting",
        "share",
        "used_s",
    )

    _on_bytes: Callable[[Any, bytes], int] | None
    _on_commands: Callable[[Any, list[Command]], None]
    _requests: OpenRequests

    def __init__(self, limits: ConnectionLimits, budget: BufferBudget | None, fair_queue: FairQueue | None) -> None:
        super().__init__(limits, budget)
        self.deferred_since = 0.0
        """Value of `time.monotonic` since which the intake is DEFERRING; 0.0 if it is not."""
        self._fair_queue = fair_queue
        self.share: Hashable = b""
        """Share of the server's time to which its requests are charged: that of its host, until `charge_to`."""
        self.used_s = 0.0
        self.is_waiting = False
        """Whether it is queued in `fair_queue`, which also sets `used_s`."""
        self._intake = Intake.OPEN
        self._deferred: list[Command] = []
        self._waiting_bytes = b""
        """Complete frames, received before all deferred requests, that are not decoded yet."""
        self._long_request = LongRequest.NONE
        self._step: Callable[[], bool] | None = None
        """Next step of the long request."""
        self._is_reading = True
        """Whether reading was last enabled on the transport."""
        self._throttle_timer: asyncio.TimerHandle | None = None
        """Set only while the connection is THROTTLED."""
        self._throttled_until = 0.0

    # Called by asyncio.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._settle()

    # Called by the owner.

    @property
    def intake(self) -> Intake:
        """State of the intake: whether requests are handled, deferred or dropped."""
        return self._intake

    @property
    def throttle(self) -> Throttle:
        """Whether reading is paused for a time, as a state."""
        return Throttle.FREE if self._throttle_timer is None else Throttle.THROTTLED

    @property
    def long_request(self) -> LongRequest:
        """State of the request that takes several time slices."""
        return self._long_request

    def finish_in_slices(self, step: Callable[[], bool], behind: list[Command], *, parked: bool = False) -> None:
        """Call `step` until it reports completion, with other connections' requests in between; then handle `behind`.

        Call this within `on_commands`, once. `step` is called until it is done, even if the connection ends earlier.
        `parked`: the first call waits for `unpark`, which must follow in any case.
        """
        event = LongRequestEvent.PARK if parked else LongRequestEvent.BEGIN
        self._long_request = LONG_REQUESTS.after(self._long_request, event)
        self._step = step
        self._defer(behind)

    def charge_to(self, account: str) -> None:
        """Charge the time of its requests to this account, which has signed one of them."""
        if self.share != account:
            self.share = account
            self.used_s = 0.0

    def pause_reading_for(self, seconds: float) -> float:
        """Read nothing for this time; return the seconds by which this prolongs an earlier pause.

        Requests that were read are still handled, in time slices if others wait.
        """
        if self.closing:
            return 0.0
        now = self._loop.time()
        until = now + seconds
        if self._throttle_timer is None:
            self._throttled_until = until
            self._throttle_timer = self._loop.call_at(until, self._release)
            self._settle_reading(self._is_held_back)
            return seconds
        added = max(until - self._throttled_until, 0.0)
        self._throttled_until += added
        return added

    def shorten_pause(self, seconds: float) -> float | None:
        """End a pause after this time at the latest; return by how many seconds it is shorter, None without a pause."""
        if self._throttle_timer is None:
            return None
        until = self._loop.time() + seconds
        removed = self._throttled_until - until
        if removed <= 0.0:
            return 0.0
        self._throttled_until = until
        self._throttle_timer.cancel()
        self._throttle_timer = self._loop.call_at(until, self._release)
        return removed

    def pass_requests_to(self, on_commands: Callable[[Any, list[Command]], None]) -> None:
        """Pass further requests to another function, for example after a handshake."""
        self._on_commands = on_commands
        self._on_bytes = None

    def unpark(self) -> None:
        """Start the parked request."""
        self._long_request = LONG_REQUESTS.after(self._long_request, LongRequestEvent.UNPARK)
        self._settle()

    def stop_reading(self) -> None:
        """Accept no further requests; called before the close, so that remaining responses can be sent."""
        self._stop_intake()
        self._settle()

    # Called by the fair queue.

    def run_slice(self) -> bool:
        """Run steps of a long request or handle deferred requests; return whether to queue the connection again."""
        if self._long_request is LongRequest.RUNNING and not self._take_steps():
            return True
        if self._long_request is LongRequest.NONE and not self._is_held_back:
            error = self._take_waiting_bytes() if self._waiting_bytes else None
            requests, self._deferred = self._deferred, []
            if requests:
                self._handle(requests)
            if error is not None:
                self._abort_with(error)
        if self._deferred or self._waiting_bytes or self._long_request is not LongRequest.NONE:
            return wants_turn(self._intake, self._long_request, held_back=self._is_held_back)
        self._intake = INTAKES.after(self._intake, IntakeEvent.CATCH_UP)
        self.deferred_since = 0.0
        self._settle()
        return False

    # Internals: states.

    def _abort_with(self, error: ProtocolError) -> None:
        """Close the connection because of invalid bytes; defined by the whole connection."""
        raise NotImplementedError

    @property
    def _is_held_back(self) -> bool:
        return self._drained is not None and not self._limits.read_while_behind

    def _enter(self, event: PhaseEvent) -> None:
        super()._enter(event)
        if self.closing:
            self._stop_intake()
            if self._throttle_timer is not None:
                self._throttle_timer.cancel()
                self._throttle_timer = None

    def _stop_intake(self) -> None:
        self._intake = INTAKES.after(self._intake, IntakeEvent.STOP)
        self._deferred = []
        self._waiting_bytes = b""
        self.deferred_since = 0.0

    def _defer(self, requests: list[Command]) -> None:
        """Add `requests` to the deferred ones."""
        self._intake = INTAKES.after(self._intake, IntakeEvent.DEFER)
        if self._intake is Intake.DEFERRING:
            self._deferred += requests
            self.deferred_since = self.deferred_since or time.monotonic()

    def _settle(self) -> None:
        """Enable reading and queue for a time slice if and only if the states require it."""
        held_back = self._is_held_back
        self._settle_reading(held_back)
        if wants_turn(self._intake, self._long_request, held_back=held_back):
            if self._fair_queue is None:
                self._fair_queue = FairQueue()
            self._fair_queue.wait(self)

    def _settle_reading(self, held_back: bool) -> None:
        if self._transfers:
            is_reading = reads(self._intake, held_back=held_back, throttled=self._throttle_timer is not None)
            if is_reading is not self._is_reading:
                self._is_reading = is_reading
                if is_reading:
                    self._transport.resume_reading()
                else:
                    self._transport.pause_reading()

    def _release(self) -> None:
        """End the pause, unless it was extended."""
        if self._throttled_until > self._loop.time():
            self._throttle_timer = self._loop.call_at(self._throttled_until, self._release)
        else:
            self._throttle_timer = None
            self._settle_reading(self._is_held_back)

    # Internals: requests.

    def _take_bytes(self, data: bytes) -> int:
        """Let `on_bytes` handle frames at the start of `data`; return the size of those that it handled or that wait.

        As with commands, several frames wait while other connections do. They are not decoded before.
        """
        if self._intake is not _OPEN or self._drained is not None:
            return 0
        is_single = len(data) <= _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES])
        if is_single or self._fair_queue is None or not self._fair_queue.is_exhausted():
            return self._handle_bytes(data)
        self.is_active = True
        self._waiting_bytes = data[: end_of_frames(data)]
        self._defer([])
        self._settle()
        return len(self._waiting_bytes)

    def _take_waiting_bytes(self) -> ProtocolError | None:
        """Let `on_bytes` handle the waiting frames, and put the other ones before the deferred requests."""
        data, self._waiting_bytes = self._waiting_bytes, b""
        commands, error = decode_frames(data, self._handle_bytes(data))
        if self._intake is not _STOPPED:
            self._deferred = self._requests_among(commands) + self._deferred
        return error

    def _handle_bytes(self, data: bytes) -> int:
        if self._on_bytes is None:
            return 0
        self._corked = True
        try:
            handled = self._on_bytes(self, data)
        except Exception:
            _logger.exception("a request from %s could not be handled", self.remote_address)
            self.abort()
            return 0
        finally:
            self.uncork()
        if handled:
            self.is_active = True
        return handled

    def _take(self, commands: list[Command]) -> None:
        requests = self._requests_among(commands)
        if self._intake is not _OPEN:
            self._defer(requests)
        elif len(requests) > 1 and self._fair_queue is not None and self._fair_queue.is_exhausted():
            self._defer(requests)
            self._settle()
        elif requests:
            self._handle(requests)
            if self._intake is not _OPEN:
                self._settle()

    def _requests_among(self, commands: list[Command]) -> list[Command]:
        """Return the requests; the others are responses to this side's requests."""
        # Nearly always all are requests (a server) or all are responses (a client).
        requests: list[Command] = []
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                self._requests.answer(command)
            else:
                requests.append(command)
        return requests

    def _handle(self, requests: list[Command]) -> None:
        """Handle `requests`; a server defers those that exceed a time slice or that follow while the peer is behind."""
        self._corked = True
        try:
            if len(requests) <= TAKEN_AT_ONCE or self._limits.read_while_behind:
                self._on_commands(self, requests)
                return
            yield_at = time.monotonic() + SLICE_S
            for at in range(0, len(requests), TAKEN_AT_ONCE):
                if self._intake is _STOPPED:
                    return
                if self._drained is not None or (at and time.monotonic() >= yield_at):
                    self._defer(requests[at:])
                    return
                self._on_commands(self, requests[at : at + TAKEN_AT_ONCE])
                if self._step is not None:
                    self._defer(requests[at + TAKEN_AT_ONCE :])
                    return
                if sum(map(len, self._pieces)) > self._limits.write_pause_bytes:
                    self._flush()
        except Exception:
            # The domain handles its own errors; any other exception is a defect and costs one connection.
            _logger.exception("a command from %s could not be handled", self.remote_address)
            self.abort()
        finally:
            self.uncork()

    def _take_steps(self) -> bool:
        """Run a time slice of the long request's steps; return whether it is done."""
        step = self._step
        yield_at = time.monotonic() + SLICE_S
        try:
            while step is not None and not step():
                if time.monotonic() >= yield_at:
                    return False
        except Exception:
            _logger.exception("a command from %s could not be finished", self.remote_address)
            self.abort()
        self._step = None
        self._long_request = LONG_REQUESTS.after(self._long_request, LongRequestEvent.FINISH)
        return True
