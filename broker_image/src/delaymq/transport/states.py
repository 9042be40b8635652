"""The states of a connection: theory of operation, and the tables that the code runs on.

A connection is in one state of each of four machines:

- `Phase`: whether bytes pass, and in the clear or over TLS. The handshake owns the socket while a connection is
  UPGRADING: nothing is read, and what is sent waits in `_pieces`. CLOSING begins with `close` or `abort`, LOST with
  asyncio's `connection_lost`. An end of the stream is no event: the transport ends itself, and LOST follows.
- `Intake`: whether requests are handled as they are read, deferred, or no longer taken.
- `LongRequest`: whether a request is under way that takes several turns of the loop (`finish_in_slices`), or is parked
  until its owner has room for it. Once begun it runs to its end, even when the connection is lost before.
- `Peer`: whether the peer takes what it is sent. BEHIND lasts from asyncio's `pause_writing` to its `resume_writing`.

Each machine is a literal table of state × event. A cell is the next state, or why the event cannot occur in this state;
`Machine.after` raises `InvalidTransitionError` for the latter. The tables know nothing of each other. Four rules
connect the machines:

1. CLOSING and LOST stop the intake: whoever closes a connection handles nothing more from it.
2. A long request defers the requests behind it: unless the intake has stopped, it is DEFERRING while one is under way.
3. The transport is read from in exactly the states of `reads`. While UPGRADING the handshake decides, and a transport
   that is closing or lost is left alone.
4. A connection waits in the `FairQueue` whenever `wants_turn`, until it has had its slice.

`RemotingConnection._settle` applies rules 3 and 4 after a change of state. Responses to requests of this side are taken
in every phase before LOST, and in every state of the intake, for as long as bytes arrive.

What follows from the tables:

- Requests of a connection are handled in the order in which they arrived, each at most once. They are dropped
  unhandled only when the intake stops.
- What one connection defers is bounded by one read, since deferring stops reading.
- `deferred_since` is set exactly while the intake is DEFERRING.
- A lost connection keeps no request, no buffer, no timer and no transport. Only a long request may still refer to it.

Two facts are no states, because they do not outlive a callback or follow from a state. `_corked` is set while requests
are handled, so that their answers share one write, and while UPGRADING. `is_waiting` belongs to the `FairQueue`.

No request that is handled at once changes a state, so the tables cost nothing on the way of a single request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar


class InvalidTransitionError(RuntimeError):
    """An event that cannot occur in this state: a defect of the caller."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """A cell without a transition."""

    why: str


StateT = TypeVar("StateT", bound=Enum)
EventT = TypeVar("EventT", bound=Enum)


class Machine(Generic[StateT, EventT]):
    """A table of state × event."""

    def __init__(self, table: Mapping[StateT, Mapping[EventT, StateT | Impossible]]) -> None:
        self.table = table

    def after(self, state: StateT, event: EventT) -> StateT:
        """The state that `event` leads to. InvalidTransitionError when it cannot occur in `state`."""
        cell = self.table[state][event]
        if isinstance(cell, Impossible):
            raise InvalidTransitionError(f"{event.name} in {type(state).__name__}.{state.name}: {cell.why}")
        return cell


class Phase(Enum):
    """Whether bytes pass, and how."""

    PLAIN = "plain"
    UPGRADING = "upgrading"
    SECURE = "secure"
    CLOSING = "closing"
    LOST = "lost"


class PhaseEvent(Enum):
    """What changes the phase."""

    UPGRADE = "a TLS handshake begins"
    SECURED = "the TLS handshake succeeded"
    CLOSE = "close or abort"
    LOSE = "connection_lost, or the TLS handshake failed"


class Intake(Enum):
    """What becomes of a request that is read."""

    OPEN = "open"
    DEFERRING = "deferring"
    STOPPED = "stopped"


class IntakeEvent(Enum):
    """What changes the intake."""

    DEFER = "requests cannot be handled at once"
    CATCH_UP = "a slice left nothing"
    STOP = "stop_reading, or the connection ends"


class LongRequest(Enum):
    """The request that takes several turns of the loop."""

    NONE = "none"
    PARKED = "parked"
    RUNNING = "running"


class LongRequestEvent(Enum):
    """What changes it."""

    BEGIN = "finish_in_slices"
    PARK = "finish_in_slices(parked=True)"
    UNPARK = "unpark"
    FINISH = "its last step is done, or failed"


class Peer(Enum):
    """Whether the peer takes what it is sent."""

    KEEPING_UP = "keeping up"
    BEHIND = "behind"


class PeerEvent(Enum):
    """What changes that."""

    FALL_BEHIND = "pause_writing"
    CATCH_UP = "resume_writing, or the connection is lost"


_ENDED: Final = Impossible("no handshake begins on a connection that ended: begin_upgrade raises ConnectionResetError")
_ABANDONED: Final = Impossible("upgrade() gives up a handshake whose transport is closing")
_NO_HANDSHAKE: Final = Impossible("no handshake is under way")

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
            PhaseEvent.UPGRADE: Impossible("TLS does not begin within TLS: a peer could nest it without end"),
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
            PhaseEvent.LOSE: Phase.LOST,  # a handshake that fails says so too
        },
    }
)

INTAKES: Final = Machine[Intake, IntakeEvent](
    {
        Intake.OPEN: {
            IntakeEvent.DEFER: Intake.DEFERRING,
            IntakeEvent.CATCH_UP: Intake.OPEN,  # a slice that it was queued for twice
            IntakeEvent.STOP: Intake.STOPPED,
        },
        Intake.DEFERRING: {
            IntakeEvent.DEFER: Intake.DEFERRING,
            IntakeEvent.CATCH_UP: Intake.OPEN,
            IntakeEvent.STOP: Intake.STOPPED,
        },
        Intake.STOPPED: {
            IntakeEvent.DEFER: Intake.STOPPED,  # what would be deferred is dropped
            IntakeEvent.CATCH_UP: Intake.STOPPED,
            IntakeEvent.STOP: Intake.STOPPED,
        },
    }
)

_ONE_AT_A_TIME: Final = Impossible("the requests behind a long one are deferred until it is done")
_NOT_PARKED: Final = Impossible("nothing is parked; what was parked is unparked once")

LONG_REQUESTS: Final = Machine[LongRequest, LongRequestEvent](
    {
        LongRequest.NONE: {
            LongRequestEvent.BEGIN: LongRequest.RUNNING,
            LongRequestEvent.PARK: LongRequest.PARKED,
            LongRequestEvent.UNPARK: _NOT_PARKED,
            LongRequestEvent.FINISH: Impossible("there is no step to take"),
        },
        LongRequest.PARKED: {
            LongRequestEvent.BEGIN: _ONE_AT_A_TIME,
            LongRequestEvent.PARK: _ONE_AT_A_TIME,
            LongRequestEvent.UNPARK: LongRequest.RUNNING,
            LongRequestEvent.FINISH: Impossible("no step is taken while it is parked"),
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

TRANSFERRING: Final = frozenset({Phase.PLAIN, Phase.SECURE})
"""The phases in which bytes of commands pass."""
ENDED: Final = frozenset({Phase.CLOSING, Phase.LOST})
"""The phases in which nothing more is sent."""


def reads(intake: Intake, *, held_back: bool) -> bool:
    """Whether a TRANSFERRING connection reads. `held_back`: the peer is BEHIND, and is not read from meanwhile."""
    return intake is Intake.OPEN and not held_back


def wants_turn(intake: Intake, long_request: LongRequest, *, held_back: bool) -> bool:
    """Whether there is something to do in a slice: a long request's next steps, or deferred requests."""
    if long_request is LongRequest.NONE:
        return intake is Intake.DEFERRING and not held_back
    return long_request is LongRequest.RUNNING
