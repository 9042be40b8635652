"""Planted bugs: mistakes in the core or in the program around it, which the simulation has to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from delaymq.replication import Acknowledge, Member, NoteKind, Role
from delaymq.replication import effects as does
from delaymq.replication import following as following_module
from delaymq.replication.candidacy import Candidacy
from delaymq.replication.events import Detach
from delaymq.replication.following import Following, Stage
from delaymq.replication.founding import Foundation, Founding
from delaymq.replication.history import History
from delaymq.replication.leading import Leading
from delaymq.replication.messages import Accept, Ack, Position
from delaymq.replication.model import LogState, Record
from delaymq.replication.register import RegisterView

from delaymq_testing.replication.disk import Store
from delaymq_testing.replication.entries import SIZE, decode
from delaymq_testing.replication.faults import Focus
from delaymq_testing.replication.node import Node
from delaymq_testing.replication.register import Register


class Bug(NamedTuple):
    """A mistake: replacements of attributes."""

    description: str
    patches: tuple[tuple[object, str, object], ...]


BUGS: Final[dict[str, Bug]] = {}
"""Bugs by name. Names with digits are the numbers of issues of apache/rocketmq."""

_APPENDED: Final = {"acknowledge": Acknowledge.APPENDED}
_FLUSHED: Final = {"acknowledge": Acknowledge.FLUSHED}


def _focus(members: int, faults: str, pace_ms: int, settings: dict[str, Any] | None = None) -> Focus:
    return Focus(members, frozenset(faults.split()), settings or {}, pace_ms)


_LOST_CHANGES: Final = _focus(2, "lose_change partition switch_over crash", 600)
_BLACKOUTS: Final = _focus(3, "blackout block", 800, _APPENDED)
_DETACHED: Final = _focus(3, "detach_far_from_register lose_connection", 800)
_DIVERGED: Final = _focus(3, "partition isolate_from_register crash block", 800)
_FOUNDED: Final = _focus(3, "delete_record partition isolate_from_register pause crash block", 600)
FOCUSES: Final = {
    "5663": _LOST_CHANGES,
    "unknown-is-failed": _LOST_CHANGES,
    "blind-write": _focus(3, "disturb_register crash_in_change lose_connection", 400),
    "join-at-confirmed": _focus(3, "crash_after_confirm blackout block disturb_network", 1_000, _FLUSHED),
    "join-behind": _focus(3, "partition block crash", 600),
    "appended-for-flushed": _focus(2, "lose_power slow_disk lose_connection", 600, _FLUSHED),
    "snapshot-unflushed": _focus(2, "lose_power blackout", 600, _APPENDED),
    "by-length": _DIVERGED,
    "by-epoch-number": _DIVERGED,
    "power-loss-ignored": _focus(2, "lose_power pause disturb_network", 600, _APPENDED),
    "empty-is-candidate": _focus(2, "replace_volume crash", 800),
    "not-all-answered": _BLACKOUTS,
    "any-log-after-loss": _BLACKOUTS,
    "cleared-before-start": _focus(4, "blackout crash_in_write lose_connection", 500, _APPENDED),
    "detach-in-session": _DETACHED,
    "spent-note": _DETACHED,
    "gap-not-resent": _focus(3, "disturb_network", 800),
    "begin-claimed": _focus(3, "trim block pause crash replace_volume", 600),
    "failed-append-ignored": _focus(2, "fail_appends", 600),
    "founded-by-some": _FOUNDED,
    "founded-in-use": _FOUNDED,
    "founded-by-all": _FOUNDED,
    "founded-epoch": _FOUNDED,
    "stuck-session": _focus(3, "disturb_network block", 800),
}
"""Scenarios that find a bug in fewer runs; others are found in any scenarios."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run with a bug."""
    with ExitStack() as stack:
        for owner, attribute, replacement in BUGS[name].patches:
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield


def _plant(name: str, description: str, owner: object, attribute: str) -> Callable[[Any], Any]:
    """Add a bug that replaces one function."""

    def add(replacement: Any) -> Any:
        bug = BUGS.get(name, Bug(description, ()))
        BUGS[name] = bug._replace(patches=(*bug.patches, (owner, attribute, replacement)))
        return replacement

    return add


# The register


@_plant("5663", "a set counts only when its write is known to have succeeded", RegisterView, "possible_sets")
def _known_set(self: RegisterView) -> list[frozenset[str]]:
    return [self.record.in_sync] if self.record else []


_possible_sets = RegisterView.possible_sets


@_plant("set-before-written", "a set counts as soon as its write begins", RegisterView, "possible_sets")
def _newest_set(self: RegisterView) -> list[frozenset[str]]:
    return _possible_sets(self)[-1:]


_on_failed = RegisterView.on_failed


@_plant(
    "unknown-is-failed", "a write without a response counts as one that does not take place", RegisterView, "on_failed"
)
def _forget_write(self: RegisterView, request: int) -> None:
    if request == self._request:
        self._unresolved.clear()
    _on_failed(self, request)


@_plant("blind-write", "writes do not compare the version", Register, "matches")
def _matches(self: Register, expected: str) -> bool:
    return True


@_plant("restart-continues", "a restarted master continues its epoch", Member, "_has_won")
def _has_won(self: Member) -> bool:
    record = self._register.record
    assert record is not None
    return record.master == self._local.name and record.epoch >= self._local.epoch and self._following.is_settled


# Confirmed offsets


@_plant("6662", "members that are not connected do not count", Leading, "confirm")
def _confirm_connected(self: Leading) -> None:
    peers = self.peers
    connected = [peers[name].acknowledged for name in self.required() if name in peers and peers[name].session]
    self._local.confirm(min([self._local.acknowledged, *connected]))


@_plant("removed-locally", "silent members do not count, without a write to the register", Leading, "confirm")
def _confirm_recent(self: Leading) -> None:
    oldest_ms = self._local.now_ms - self._local.settings.replica_timeout_ms
    peers = self.peers
    recent = [
        peers[name].acknowledged for name in self.required() if name in peers and peers[name].caught_up_ms > oldest_ms
    ]
    self._local.confirm(min([self._local.acknowledged, *recent]))


@_plant("lease-confirms", "a master with a valid lease needs no acknowledgements", Leading, "confirm")
def _confirm_by_lease(self: Leading) -> None:
    if self._local.now_ms - self._register.renewed_ms < self._local.settings.lease_ms:
        self._local.confirm(self._local.acknowledged)


@_plant("majority", "most members of the set suffice", Leading, "confirm")
def _confirm_by_majority(self: Leading) -> None:
    others = [
        self.peers[name].acknowledged if name in self.peers else 0 for name in self.required() - {self._local.name}
    ]
    offsets = sorted([self._local.acknowledged, *others], reverse=True)
    self._local.confirm(offsets[len(offsets) // 2])


_on_persisted = Member._on_persisted


@_plant("confirmed-at-start", "a new master takes its whole log to be confirmed", Member, "_on_persisted")
def _confirm_at_start(self: Member, number: int) -> None:
    role = self.role
    _on_persisted(self, number)
    if role is not Role.MASTER and self.role is Role.MASTER:
        self._local.confirm(self._local.log.end)


@_plant("3015", "acknowledgements beyond the end of the log are believed", Leading, "is_possible")
def _is_possible(self: Leading, ack: Ack) -> bool:
    return True


@_plant("1155", "what one replica acknowledged counts for all", Leading, "confirm")
def _confirm_largest(self: Leading) -> None:
    largest = max((peer.acknowledged for peer in self.peers.values()), default=self._local.acknowledged)
    self._local.confirm(min(self._local.acknowledged, largest))


@_plant("join-at-confirmed", "members join the set at the known confirmed offset", Leading, "caught_up_offset")
def _join_at_confirmed(self: Leading) -> int:
    return self._local.log.confirmed


@_plant("join-behind", "members join the set as soon as they are connected", Leading, "caught_up_offset")
def _join_behind(self: Leading) -> int:
    return 0


@_plant(
    "appended-for-flushed", "appended bytes are acknowledged where only flushed ones may be", LogState, "acknowledged"
)
def _acknowledge_appended(self: LogState, acknowledge: object) -> int:
    return self.end


@_plant("unbounded-confirmed", "a replica takes bytes that it lacks to be confirmed", Following, "_advance")
def _advance_unbounded(self: Following) -> None:
    self._local.confirm(self._confirmed)


@_plant("snapshot-unflushed", "snapshots state what is not flushed", Member, "durable_confirmed")
@property
def _durable(self: Member) -> int:
    return self._local.log.confirmed


# Logs


@_plant("by-length", "logs are compared by their length", following_module, "consistent_end")
def _by_length(own: History, own_end: int, other: History, other_end: int) -> int:
    return min(own_end, other_end)


@_plant(
    "by-epoch-number", "an epoch is taken to begin at the same offset in all logs", following_module, "consistent_end"
)
def _by_number(own: History, own_end: int, other: History, other_end: int) -> int:
    common = {entry.epoch for entry in own} & {entry.epoch for entry in other}
    return min(own_end, other_end) if common else 0


_persist, _leave, _on_append_failed = Following._persist, Following.leave, Following.on_append_failed


@_plant("begin-claimed", "an empty log counts as one that ends where the master's begins", Following, "_persist")
def _claim_begin(self: Following, accept: Accept) -> None:
    log = self._local.log
    log.end = log.flushed = log.end or accept.begin
    _persist(self, accept)


@_plant("failed-append-ignored", "a session continues behind bytes that were not appended", Following, "leave")
def _stay(self: Following) -> None:
    if not _failing:
        _leave(self)


@_plant("failed-append-ignored", "", Following, "on_append_failed")
def _stay_after_failure(self: Following) -> None:
    _failing.append(self)
    _on_append_failed(self)
    _failing.clear()


_failing: list[Following] = []


@_plant("4771", "what is derived from the log is not cut with it", Store, "cut")
def _uncut(self: Store, log: bytearray) -> None:
    pass


_report = Node._report


@_plant("7689", "a new master numbers messages from the confirmed offset", Node, "_report")
def _number_from_confirmed(self: Node, effect: does.Effect) -> None:
    _report(self, effect)
    if isinstance(effect, does.BecomeMaster) and self.member is not None:
        self.disk.store.next_number = self.member.log.confirmed // SIZE


@_plant("deliver-confirmed-only", "a master forgets copies that are not confirmed yet", Node, "_report")
def _forget_copies(self: Node, effect: does.Effect) -> None:
    _report(self, effect)
    if isinstance(effect, does.BecomeMaster) and self.member is not None:
        number = self.disk.store.next_number
        self.disk.store.cut(self.disk.log[: self.member.log.confirmed])
        self.disk.store.pending.update(
            {entry.uid: None for entry in decode(self.disk.log[self.member.log.confirmed :]) if entry.origin == -1}
        )
        self.disk.store.next_number = number


# Candidates

_claim = Candidacy.claim


@_plant("set-from-memory", "a member takes itself to be in the set", Candidacy, "claim")
def _claim_always(self: Candidacy) -> Any:
    record = self._register.record
    if record is not None:
        self._register.record = record._replace(in_sync=record.in_sync | {self._local.name})
    claim = _claim(self)
    self._register.record = record
    return claim


_leave = Following.leave


@_plant("acks-lower-epoch", "a member that knows a higher epoch acknowledges a lower one", Following, "_is_current")
def _any_epoch(self: Following, sender: str, message: Any) -> bool:
    return sender == self.master and message.session == self.session and message.epoch == self.epoch


@_plant("acks-lower-epoch", "", Following, "leave")
def _never_leave(self: Following) -> None:
    if self.stage is Stage.ASKED:
        _leave(self)


_start = Member.start


@_plant("power-loss-ignored", "a member that lost unsynced bytes is a candidate", Member, "start")
def _start_without_note(self: Member, now_ms: int) -> Any:
    note = self._local.log.note
    if note is not None and note.kind is NoteKind.LOST_TAIL:
        self._local.log.note = None
    return _start(self, now_ms)


@_plant("empty-is-candidate", "a member with a new volume is a candidate", Member, "start")
def _start_empty(self: Member, now_ms: int) -> Any:
    note = self._local.log.note
    if note is not None and note.kind is NoteKind.EMPTY:
        self._local.log.note = None
    return _start(self, now_ms)


_fresh_positions = Candidacy._fresh_positions
_claim_after_loss = Candidacy._claim_after_loss


@_plant("not-all-answered", "the longest of the logs that are known is taken", Candidacy, "_claim_after_loss")
def _some_answers(self: Candidacy, record: Record) -> Any:
    answered = frozenset(self._fresh_positions(record)) | {self._local.name}
    claim = _claim_after_loss(self, record._replace(in_sync=record.in_sync & answered))
    return claim._replace(record=claim.record._replace(in_sync=record.in_sync)) if claim else None


@_plant("any-log-after-loss", "any log is taken after a power loss", Candidacy, "_fresh_positions")
def _shorter_positions(self: Candidacy, record: Record) -> dict[str, Position]:
    positions = _fresh_positions(self, record)
    if self._local.log.note is None:
        return positions
    return {name: position._replace(last_epoch=0, end=0) for name, position in positions.items()}


@_plant("cleared-before-start", "a member has caught up before it has the start of the epoch", Following, "_advance")
def _clear_at_confirmed(self: Following) -> None:
    log = self._local.log
    if self.stage is Stage.LIVE:
        self._local.confirm(min(self._confirmed, log.end))
        if log.note and self._counted_at >= 0 and self._local.acknowledged >= self._counted_at:
            self._local.persist_note(None)


_on_order = Member._on_order


@_plant("detach-in-session", "a note is recorded in a session that does not state it", Member, "_on_order")
def _note_in_session(self: Member, order: Any) -> None:
    with patch.object(Following, "leave", lambda self: None):
        _on_order(self, order)


_detach = Leading.detach


@_plant("spent-note", "a note that was cleared since is a proof", Leading, "detach")
def _detach_spent(self: Leading, order: Detach) -> str:
    self._spent.clear()
    return _detach(self, order)


# The first record


_obstacle = Founding._obstacle


@_plant("founded-by-some", "the record is written without the answers of all members", Founding, "_obstacle")
def _without_all(self: Founding, positions: dict[str, Position]) -> str:
    members, self._local.members = self._local.members, frozenset(positions)
    try:
        return _obstacle(self, positions)
    finally:
        self._local.members = members


@_plant("founded-in-use", "members that have not noticed that there is no record count", Founding, "_obstacle")
def _unnoticed(self: Founding, positions: dict[str, Position]) -> str:
    version = positions[self._local.name].vacant
    return _obstacle(self, {name: position._replace(vacant=version) for name, position in positions.items()})


_foundation = Founding.foundation


@_plant("founded-by-all", "members that have less than the others are in sync", Founding, "foundation")
def _all_in_sync(self: Founding) -> Foundation | None:
    foundation = _foundation(self)
    if foundation is None:
        return None
    return foundation._replace(record=foundation.record._replace(in_sync=self._local.members))


@_plant("founded-epoch", "the record has an epoch that had a master", Founding, "foundation")
def _old_epoch(self: Founding) -> Foundation | None:
    foundation = _foundation(self)
    if foundation is None:
        return None
    record = foundation.record
    return foundation._replace(record=record._replace(epoch=max(0, record.epoch - 1)))


# Progress


_on_ack = Leading.on_ack


@_plant("gap-not-resent", "lost bytes are not sent again", Leading, "on_ack")
def _no_resend(self: Leading, sender: str, ack: Ack) -> None:
    _on_ack(self, sender, ack._replace(expected=0))


@_plant("never-joins", "members that were removed never join again", Leading, "next_record")
def _never_joins(self: Leading) -> Record | None:
    record = _next_record(self)
    old = self._register.record
    return record._replace(in_sync=record.in_sync & old.in_sync) if record and old else record


_next_record = Leading.next_record


@_plant("stuck-session", "a replica waits for ever for the response of a master", Following, "tick")
def _wait_for_ever(self: Following, master: str, epoch: int) -> None:
    if self.stage is not Stage.ASKED:
        _following_tick(self, master, epoch)


_following_tick = Following.tick
