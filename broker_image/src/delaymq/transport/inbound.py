"""The incoming half of a connection: which requests are handled at once, and whose turn it is for the others.

The states of a connection and what connects them are described in `states`.
"""

import logging
import time
from collections.abc import Callable, Hashable
from typing import Any, Final

from delaymq.protocol.command import FLAG_RESPONSE, Command
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
    reads,
    wants_turn,
)

TAKEN_AT_ONCE: Final = 4
"""Pipelined requests that are handled before it is looked how much the peer has been sent. One read holds hundreds of
pulls, each with an answer of up to 4 MiB: all at once they would take gigabytes and seconds."""

_OPEN: Intake = Intake.OPEN
"""For each read: a global is found much faster than a member. Not Final: mypy would narrow across calls."""
_STOPPED: Final = Intake.STOPPED

_logger = logging.getLogger(__name__)


class HandlingProtocol(SendingProtocol):
    """The half that has requests handled. The whole connection extends it, and sets `_on_commands` and `_requests`."""

    __slots__ = (
        "_deferred",
        "_fair_queue",
        "_intake",
        "_is_reading",
        "_long_request",
        "_on_commands",
        "_requests",
        "_step",
        "deferred_since",
        "is_waiting",
        "share",
        "used_s",
    )

    _on_commands: Callable[[Any, list[Command]], None]
    _requests: OpenRequests

    def __init__(self, limits: ConnectionLimits, budget: BufferBudget | None, fair_queue: FairQueue | None) -> None:
        super().__init__(limits, budget)
        self.deferred_since = 0.0
        """Since when its intake is DEFERRING, as `time.monotonic` tells it; 0.0: it is not."""
        self._fair_queue = fair_queue
        self.share: Hashable = b""
        """Whose part of the server's time its requests use: its host's, until `charge_to`."""
        self.used_s = 0.0
        self.is_waiting = False
        """Whether it is queued in `fair_queue`, which sets `used_s` too."""
        self._intake = Intake.OPEN
        self._deferred: list[Command] = []
        self._long_request = LongRequest.NONE
        self._step: Callable[[], bool] | None = None
        """The next step of the long request."""
        self._is_reading = True
        """Whether the transport was told so last."""

    # What asyncio calls.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._settle()

    # What the owner calls.

    @property
    def intake(self) -> Intake:
        """What becomes of a request that is read."""
        return self._intake

    @property
    def long_request(self) -> LongRequest:
        """The request that takes several turns of the loop."""
        return self._long_request

    def finish_in_slices(self, step: Callable[[], bool], behind: list[Command], *, parked: bool = False) -> None:
        """Has `step` called until it says that it is done, others' requests in between; `behind` is handled then.

        To be called within `on_commands`, once. It is called to the end also when the connection ends before. `parked`:
        the first call waits for `unpark`, which has to be called in any case.
        """
        event = LongRequestEvent.PARK if parked else LongRequestEvent.BEGIN
        self._long_request = LONG_REQUESTS.after(self._long_request, event)
        self._step = step
        self._defer(behind)

    def charge_to(self, account: str) -> None:
        """Counts what its requests cost as this account's, which has signed one of them."""
        if self.share != account:
            self.share = account
            self.used_s = 0.0

    def unpark(self) -> None:
        """Begins with what was parked."""
        self._long_request = LONG_REQUESTS.after(self._long_request, LongRequestEvent.UNPARK)
        self._settle()

    def stop_reading(self) -> None:
        """Takes no further requests: before the end, so that no answer is written any more while others go out."""
        self._stop_intake()
        self._settle()

    # What the fair queue calls.

    def run_slice(self) -> bool:
        """Takes steps of a long request or handles a slice of what was deferred; whether it waits for another turn."""
        if self._long_request is LongRequest.RUNNING and not self._take_steps():
            return True
        if self._long_request is LongRequest.NONE and not self._is_held_back:
            requests, self._deferred = self._deferred, []
            if requests:
                self._handle(requests)
        if self._deferred or self._long_request is not LongRequest.NONE:
            return wants_turn(self._intake, self._long_request, held_back=self._is_held_back)
        self._intake = INTAKES.after(self._intake, IntakeEvent.CATCH_UP)
        self.deferred_since = 0.0
        self._settle()
        return False

    # Inside: its states.

    @property
    def _is_held_back(self) -> bool:
        return self._drained is not None and not self._limits.read_while_behind

    def _enter(self, event: PhaseEvent) -> None:
        super()._enter(event)
        if self.closing:
            self._stop_intake()

    def _stop_intake(self) -> None:
        self._intake = INTAKES.after(self._intake, IntakeEvent.STOP)
        self._deferred = []
        self.deferred_since = 0.0

    def _defer(self, requests: list[Command]) -> None:
        """Has `requests` wait behind those that wait already."""
        self._intake = INTAKES.after(self._intake, IntakeEvent.DEFER)
        if self._intake is Intake.DEFERRING:
            self._deferred += requests
            self.deferred_since = self.deferred_since or time.monotonic()

    def _settle(self) -> None:
        """Reads, and waits for a turn, exactly if its states say so."""
        held_back = self._is_held_back
        if self._transfers:
            is_reading = reads(self._intake, held_back=held_back)
            if is_reading is not self._is_reading:
                self._is_reading = is_reading
                if is_reading:
                    self._transport.resume_reading()
                else:
                    self._transport.pause_reading()
        if wants_turn(self._intake, self._long_request, held_back=held_back):
            if self._fair_queue is None:
                self._fair_queue = FairQueue()
            self._fair_queue.wait(self)

    # Inside: requests.

    def _take(self, commands: list[Command]) -> None:
        # Nearly always all are requests (a server) or all are responses (a client).
        requests: list[Command] = []
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                self._requests.answer(command)
            else:
                requests.append(command)
        if self._intake is not _OPEN:
            self._defer(requests)
        elif len(requests) > 1 and self._fair_queue is not None and self._fair_queue.is_exhausted():
            self._defer(requests)
            self._settle()
        elif requests:
            self._handle(requests)
            if self._intake is not _OPEN:
                self._settle()

    def _handle(self, requests: list[Command]) -> None:
        """Has `requests` handled; a server defers what exceeds a slice, or when the peer does not take answers."""
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
            # The domain answers its own errors; what still gets here is a defect, and costs one connection.
            _logger.exception("a command of %s could not be handled", self.remote_address)
            self.abort()
        finally:
            self._corked = False
            self._flush()

    def _take_steps(self) -> bool:
        """A slice of the long request's steps; whether it is done."""
        step = self._step
        yield_at = time.monotonic() + SLICE_S
        try:
            while step is not None and not step():
                if time.monotonic() >= yield_at:
                    return False
        except Exception:
            _logger.exception("a command of %s could not be finished", self.remote_address)
            self.abort()
        self._step = None
        self._long_request = LONG_REQUESTS.after(self._long_request, LongRequestEvent.FINISH)
        return True
