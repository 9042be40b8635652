"""States of a connection: theory of operation, and tables of transitions.

A connection is in one state of each of five machines:

- `Phase`: whether commands are transferred, and whether over plaintext or TLS. While a connection is UPGRADING, the
  handshake owns the socket: nothing is read, and outgoing data waits in `_pieces`. CLOSING starts with `close`
  or `abort`, LOST with asyncio's `connection_lost`. An end of the stream is not an event: the transport closes itself,
  and LOST follows.
- `Intake`: whether requests are handled when they are read, deferred, or no longer accepted.
- `LongRequest`: whether a request that takes several time slices is running (`finish_in_slices`) or parked until its
  owner has capacity. Once started it runs to its end, even if the connection is lost earlier.
- `Peer`: whether the peer reads what is sent. BEHIND lasts from asyncio's `pause_writing` to its `resume_writing`.
- `Throttle`: whether reading is paused for a time, because the peer's account exceeds a quota (`pause_reading_for`).

Each machine is a literal table of state × event. A cell is the next state, or the reason why the event cannot occur in
this state; for the latter, `Machine.after` raises `InvalidTransitionError`. PHASES, INTAKES and LONG_REQUESTS drive
the code: it changes these states only by `Machine.after`. PEERS and THROTTLES specify the other two, and only tests use
them. Fields for these states do not exist: a peer is BEHIND exactly while `_drained` is an event, and a connection is
THROTTLED exactly while `_throttle_timer` is set. Every event can occur in both states of these machines, so
`Machine.after` would detect no error.

The tables are independent. Four rules connect the machines:

1. CLOSING and LOST stop the intake: after a close, no more requests of the connection are handled.
2. A long request defers the requests after it: unless the intake has stopped, it is DEFERRING while one is running.
3. The transport is read from in exactly the states of `reads`. While UPGRADING, the handshake decides; a closing or
   lost transport is not changed.
4. A connection waits in the `FairQueue` whenever `wants_turn`, until it has had its slice.

`RemotingConnection._settle` applies rules 3 and 4 after a change of state. Responses to requests of this side are
accepted in every phase before LOST and in every state of the intake, as long as bytes arrive.

Consequences of the tables:

- Requests of a connection are handled in the order in which they arrived, each at most once. They are dropped
  unhandled only when the intake stops.
- One connection defers at most the requests of one read, because deferring stops reading.
- `deferred_since` is set exactly while the intake is DEFERRING.
- A lost connection keeps no request, no buffer, no timer and no transport. Only a long request may still refer to it.

Two facts are not states, because they do not outlive a callback or follow from a state. `_corked` is set while requests
are handled, so that their responses share one write, and while UPGRADING. `is_waiting` belongs to the `FairQueue`.

No request that is handled immediately changes a state, so the tables add no cost to a single request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar


class InvalidTransitionError(RuntimeError):
    """The event cannot occur in this state: a defect of the caller."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """A cell without a transition."""

    why: str


StateT = TypeVar("StateT", bound=Enum)
EventT = TypeVar("EventT", bound=Enum)


class Machine(Generic[StateT, EventT]):
    """A state machine as a table of state × event."""

    def __init__(self, table: Mapping[StateT, Mapping[EventT, StateT | Impossible]]) -> None:
        self.table = table

    def after(self, state: StateT, event: EventT) -> StateT:
        """Return the state that `event` leads to. InvalidTransitionError if it cannot occur in `state`."""
        cell = self.table[state][event]
        if isinstance(cell, Impossible):
            raise InvalidTransitionError(f"{event.name} in {type(state).__name__}.{state.name}: {cell.why}")
        return cell


class Phase(Enum):
    """Whether and how commands are transferred."""

    PLAIN = "plain"
    UPGRADING = "upgrading"
    SECURE = "secure"
    CLOSING = "closing"
    LOST = "lost"


class PhaseEvent(Enum):
    """Events that change the phase."""

    UPGRADE = "a TLS handshake starts"
    SECURED = "the TLS handshake succeeded"
    CLOSE = "close or abort"
    LOSE = "connection_lost, or the TLS handshake failed"


class Intake(Enum):
    """Handling of requests that are read."""

    OPEN = "open"
    DEFERRING = "deferring"
    STOPPED = "stopped"


class IntakeEvent(Enum):
    """Events that change the intake."""

    DEFER = "requests cannot be handled immediately"
    CATCH_UP = "a slice handled all requests"
    STOP = "stop_reading, or the connection ends"


class LongRequest(Enum):
    """State of a request that takes several time slices."""

    NONE = "none"
    PARKED = "parked"
    RUNNING = "running"


class LongRequestEvent(Enum):
    """Events that change the state of the long request."""

    BEGIN = "finish_in_slices"
    PARK = "finish_in_slices(parked=True)"
    UNPARK = "unpark"
    FINISH = "its last step succeeded or failed"


class Peer(Enum):
    """Whether the peer reads what is sent."""

    KEEPING_UP = "keeping up"
    BEHIND = "behind"


class PeerEvent(Enum):
    """Events that change the peer's state."""

    FALL_BEHIND = "pause_writing"
    CATCH_UP = "resume_writing, or the connection is lost"


class Throttle(Enum):
    """Whether reading is paused for a time."""

    FREE = "free"
    THROTTLED = "throttled"


class ThrottleEvent(Enum):
    """Events that change the throttle."""

    PAUSE = "pause_reading_for"
    RELEASE = "the time has passed, or the connection ends"


_ENDED: Final = Impossible("no handshake starts on an ended connection: begin_upgrade raises ConnectionResetError")
_ABANDONED: Final = Impossible("upgrade() abandons a handshake whose transport is closing")
_NO_HANDSHAKE: Final = Impossible("no handshake is running")

PHASES: Final = Machine[Phase, PhaseEvent](
    {
        Phase.PLAIN: {
            PhaseEvent.UPGRADE: Phase.UPGRADING,
            PhaseEvent.SECURED: _NO_HANDSHAKE,
            PhaseEvent.CLOSE: Phase.CLOSING,
            PhaseEvent.LOSE: Phase.LOST,
        },
        Phase.UPGRADING: {
            # A server's connection stops reading when it enters the handshake queue, and again when its turn comes.
            PhaseEvent.UPGRADE: Phase.UPGRADING,
            PhaseEvent.SECURED: Phase.SECURE,
            PhaseEvent.CLOSE: Phase.CLOSING,
            PhaseEvent.LOSE: Phase.LOST,
        },
        Phase.SECURE: {
            PhaseEvent.UPGRADE: Impossible("TLS within TLS is not supported: a peer could nest it indefinitely"),
            PhaseEvent.SECURED: _NO_HANDSHAKE,
            PhaseEvent.CLOSE: Phase.CLOSING,
            PhaseEvent.LOSE: Phase.LOST,
        },
        Phase.CLOSING: {
            PhaseEvent.UPGRADE: _ENDED,
            PhaseEvent.SECURED: _ABANDONED,
            PhaseEvent.CLOSE: Phase.CLOSING,  # an abort may follow a close
            PhaseEvent.LOSE: Phase.LOST,
        },
        Phase.LOST: {
            PhaseEvent.UPGRADE: _ENDED,
            PhaseEvent.SECURED: _ABANDONED,
            PhaseEvent.CLOSE: Phase.LOST,
            PhaseEvent.LOSE: Phase.LOST,  # also reported by a failed handshake
        },
    }
)

INTAKES: Final = Machine[Intake, IntakeEvent](
    {
        Intake.OPEN: {
            IntakeEvent.DEFER: Intake.DEFERRING,
            IntakeEvent.CATCH_UP: Intake.OPEN,  # the connection was queued for this slice twice
            IntakeEvent.STOP: Intake.STOPPED,
        },
        Intake.DEFERRING: {
            IntakeEvent.DEFER: Intake.DEFERRING,
            IntakeEvent.CATCH_UP: Intake.OPEN,
            IntakeEvent.STOP: Intake.STOPPED,
        },
        Intake.STOPPED: {
            IntakeEvent.DEFER: Intake.STOPPED,  # the requests are dropped
            IntakeEvent.CATCH_UP: Intake.STOPPED,
            IntakeEvent.STOP: Intake.STOPPED,
        },
    }
)

_ONE_AT_A_TIME: Final = Impossible("requests after a long one are deferred until it is done")
_NOT_PARKED: Final = Impossible("nothing is parked; a parked request is unparked once")

LONG_REQUESTS: Final = Machine[LongRequest, LongRequestEvent](
    {
        LongRequest.NONE: {
            LongRequestEvent.BEGIN: LongRequest.RUNNING,
            LongRequestEvent.PARK: LongRequest.PARKED,
            LongRequestEvent.UNPARK: _NOT_PARKED,
            LongRequestEvent.FINISH: Impossible("there is no step to run"),
        },
        LongRequest.PARKED: {
            LongRequestEvent.BEGIN: _ONE_AT_A_TIME,
            LongRequestEvent.PARK: _ONE_AT_A_TIME,
            LongRequestEvent.UNPARK: LongRequest.RUNNING,
            LongRequestEvent.FINISH: Impossible("no step runs while the request is parked"),
        },
        LongRequest.RUNNING: {
            LongRequestEvent.BEGIN: _ONE_AT_A_TIME,
            LongRequestEvent.PARK: _ONE_AT_A_TIME,
            LongRequestEvent.UNPARK: _NOT_PARKED,
            LongRequestEvent.FINISH: LongRequest.NONE,
        },
    }
)

PEERS: Final = Machine[Peer, PeerEvent](
    {
        Peer.KEEPING_UP: {PeerEvent.FALL_BEHIND: Peer.BEHIND, PeerEvent.CATCH_UP: Peer.KEEPING_UP},
        Peer.BEHIND: {PeerEvent.FALL_BEHIND: Peer.BEHIND, PeerEvent.CATCH_UP: Peer.KEEPING_UP},
    }
)

THROTTLES: Final = Machine[Throttle, ThrottleEvent](
    {
        # A second pause extends the first one if it ends later.
        Throttle.FREE: {ThrottleEvent.PAUSE: Throttle.THROTTLED, ThrottleEvent.RELEASE: Throttle.FREE},
        Throttle.THROTTLED: {ThrottleEvent.PAUSE: Throttle.THROTTLED, ThrottleEvent.RELEASE: Throttle.FREE},
    }
)

TRANSFERRING: Final = frozenset({Phase.PLAIN, Phase.SECURE})
"""Phases in which commands are transferred."""
ENDED: Final = frozenset({Phase.CLOSING, Phase.LOST})
"""Phases in which nothing more is sent."""


def reads(intake: Intake, *, held_back: bool, throttled: bool = False) -> bool:
    """Return whether a TRANSFERRING connection reads. `held_back`: the peer is BEHIND, and reading waits for it."""
    return intake is Intake.OPEN and not (held_back or throttled)


def wants_turn(intake: Intake, long_request: LongRequest, *, held_back: bool) -> bool:
    """Return whether there is work for a time slice: steps of a long request, or deferred requests."""
    if long_request is LongRequest.NONE:
        return intake is Intake.DEFERRING and not held_back
    return long_request is LongRequest.RUNNING
