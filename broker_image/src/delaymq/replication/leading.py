"""The part of a master: sessions of replicas, the confirmed offset, the in-sync set, and switchovers."""

from __future__ import annotations

from dataclasses import dataclass

from delaymq.replication.effects import Disconnect, HoldAppends, Send, SendLog, SetConfirmed
from delaymq.replication.events import Detach
from delaymq.replication.local import Local, incarnation_of
from delaymq.replication.messages import Accept, Ack, Begun, Follow, HandOver
from delaymq.replication.model import Failover, Record, SendAnswer
from delaymq.replication.positions import Positions
from delaymq.replication.register import RegisterView

REPEAT_MS = 100
"""Shortest time between two repetitions of a missing Frame: each Frame behind it reports it."""


@dataclass(slots=True)
class Peer:
    """A replica, as the master sees it. Offsets are of its current session."""

    caught_up_ms: int
    """Newest time at which the replica is known to have had everything."""
    session: int = 0
    """0 without a session."""
    incarnation: int = 0
    note: int = 0
    heard_ms: int = 0
    acknowledged: int = 0
    next: int = 0
    """Offset that the replica expects."""
    sent: int = -1
    """Offset up to which bytes were sent; -1 before the first Ack."""
    window: int = 0
    """Bytes that may be sent beyond `next`."""
    repeated: int = -1
    repeated_ms: int = 0
    """The Frame from `repeated` on was sent again at the time `repeated_ms`."""
    goal: int = 0
    goal_ms: int = 0
    """The log ended at `goal` at the time `goal_ms`."""
    beaten_ms: int = 0


class Leading:
    """A master in its epoch."""

    def __init__(
        self, local: Local, register: RegisterView, positions: Positions, epoch: int, silent: dict[str, int]
    ) -> None:
        """Begin an epoch at the end of the log. `silent` states since when other members have been silent."""
        assert register.record is not None
        self._local = local
        self._register = register
        self._positions = positions
        self.epoch = epoch
        self.start = local.log.end
        others = sorted(register.record.in_sync - {local.name})
        self.peers = {name: Peer(caught_up_ms=silent.get(name, local.now_ms)) for name in others}
        self.detached: set[str] = set()
        """Members of the in-sync set whose notes state that they are no candidates."""
        self._spent: dict[str, dict[int, int]] = {}
        """By member and incarnation: serial up to which its notes may have been cleared since."""
        self._counted: dict[str, list[int]] = {}
        """By member: incarnations that were counted, in the order in which this happened first."""
        self.lacking: set[str] = set()
        """Members that lack something besides the log, and therefore neither join the set nor take over."""
        self.target = ""
        """Target of a switchover in progress."""
        self._held_ms = 0
        self._handed_ms: int | None = None
        """Time at which the target was last asked to take over; None while it lacks bytes."""
        self._relief_ms = 0
        """Time from which a replica may be asked to replace this member, whose disk is full."""
        self._credit = 0.0
        """Bytes that may be sent now to members that are not in the set."""
        self._credit_ms = local.now_ms
        for name in others:
            local.emit(Send(name, Begun(epoch)))

    # Watermarks

    def required(self) -> set[str]:
        """Return the members without which nothing is confirmed: those of each set that the register may contain."""
        return set().union(*self._register.possible_sets()) - self.detached

    def in_sync(self) -> set[str]:
        """Return the members that are certain to be in sync."""
        return set(frozenset.intersection(*self._register.possible_sets())) - self.detached

    def confirm(self) -> None:
        """Raise the confirmed offset to what each required member has acknowledged in this epoch."""
        self._local.confirm(self._acknowledged_by_all())

    def _acknowledged_by_all(self) -> int:
        peers, name = self.peers, self._local.name
        acknowledged = [peers[each].acknowledged if each in peers else 0 for each in self.required() if each != name]
        return min([self._local.acknowledged, *acknowledged])

    def caught_up_offset(self) -> int:
        """Return the offset from which a member may be in the set.

        The known confirmed offset of a new master may be lower than what its predecessor confirmed, but never its end.
        """
        return max(self._local.log.confirmed, self.start)

    def may_store(self) -> bool:
        """Return whether sends may be stored; otherwise, they are refused with 14."""
        return len(self.in_sync()) >= self._local.settings.min_in_sync

    def answer(self, end: int, timed_out: bool) -> SendAnswer | None:
        """Return the response to a send that ends at `end`; None while it waits."""
        in_sync, settings = self.in_sync(), self._local.settings
        if in_sync <= {self._local.name} and settings.min_in_sync <= 1:
            return SendAnswer.NO_REPLICA
        if self._local.log.confirmed >= end:
            enough = len(in_sync) >= max(2, settings.min_in_sync)
            return SendAnswer.CONFIRMED if enough else SendAnswer.NOT_CONFIRMED
        return SendAnswer.NOT_CONFIRMED if timed_out else None

    # Sessions

    def on_follow(self, sender: str, follow: Follow) -> None:
        """Begin a session."""
        local = self._local
        peer = self.peers.setdefault(sender, Peer(caught_up_ms=0))
        if follow.epoch != self.epoch or (peer.incarnation == follow.incarnation and peer.session >= follow.session):
            return
        peer.session, peer.incarnation, peer.note = follow.session, follow.incarnation, follow.note
        peer.acknowledged, peer.next, peer.sent, peer.repeated = 0, 0, -1, -1
        peer.goal, peer.goal_ms = local.log.end, local.now_ms
        peer.heard_ms = local.now_ms
        log = local.log
        accept = Accept(self.epoch, peer.session, log.store_id, log.history, log.begin, log.end)
        local.emit(Send(sender, accept))

    def on_ack(self, sender: str, ack: Ack) -> None:
        """Adopt the position of a replica, and send what it lacks."""
        local, peer = self._local, self.peers.get(sender)
        if peer is None or not peer.session or (ack.session, ack.epoch) != (peer.session, self.epoch):
            return
        if not self.is_possible(ack):
            peer.session = 0
            local.emit(Disconnect(sender, f"acknowledged {ack.acknowledged} of a log that ends at {local.log.end}"))
            return
        peer.heard_ms = local.now_ms
        peer.acknowledged = max(peer.acknowledged, ack.acknowledged)
        self._adjust_window(peer, ack)
        if peer.acknowledged >= peer.goal:
            peer.caught_up_ms = peer.goal_ms
            peer.goal, peer.goal_ms = local.log.end, local.now_ms
        self._end_detached(sender, peer)
        # Frames state what is confirmed. Their replica works while this member sends the responses that were confirmed.
        rises = local.raise_confirmed(self._acknowledged_by_all())
        self._send_log(sender, peer)
        if rises:
            local.emit(SetConfirmed(local.log.confirmed))

    def is_routine(self, sender: str) -> bool:
        """Return whether an Ack can only raise what a replica has: it is in the set, and nothing waits for it."""
        peer = self.peers.get(sender)
        return not self.target and peer is not None and peer.sent >= 0 and sender in self.required()

    def _adjust_window(self, peer: Peer, ack: Ack) -> None:
        """Adopt the offset that a replica expects, and decide what it may receive next.

        If a Frame is missing, it is sent alone, and the window doubles with each Ack that follows: all Frames behind
        the missing one report it, and sending the whole window for each report could take up the network for long.
        """
        settings, now_ms = self._local.settings, self._local.now_ms
        if peer.sent < 0:
            peer.sent, peer.window = ack.end, settings.window_bytes
        elif ack.end > peer.next:
            peer.window = min(2 * peer.window, settings.window_bytes)
        peer.next = max(peer.next, ack.end)
        is_repeated = peer.repeated == ack.end and now_ms - peer.repeated_ms < REPEAT_MS
        if ack.expected > ack.end == peer.next and not is_repeated:
            peer.sent = peer.repeated = ack.end
            peer.window, peer.repeated_ms = settings.batch_bytes, now_ms

    def set_lacking(self, member: str, lacks: bool) -> None:
        """Note whether a member lacks something besides the log."""
        if lacks:
            self.lacking.add(member)
            return
        self.lacking.discard(member)
        if member in self.peers:
            self._end_detached(member, self.peers[member])

    def _end_detached(self, member: str, peer: Peer) -> None:
        """Wait for a detached member again if it has everything."""
        if member in self.detached and member not in self.lacking and peer.acknowledged >= self.caught_up_offset():
            self.detached.discard(member)

    def is_possible(self, ack: Ack) -> bool:
        """Return whether a replica can have what it reports."""
        return max(ack.acknowledged, ack.end) <= self._local.log.end

    def on_connection_lost(self, member: str) -> None:
        """End a session. What the replica acknowledged remains valid."""
        if member in self.peers:
            self.peers[member].session = 0

    def on_appended(self) -> None:
        """Send new bytes."""
        for name, peer in self.peers.items():
            self._send_log(name, peer)
        self.confirm()

    def _send_log(self, name: str, peer: Peer) -> None:
        """Send what the replica lacks. A Frame that is not full waits for the Ack of the previous one.

        Messages that are stored meanwhile thus share a Frame and its Ack, whose costs exceed those of the bytes.
        """
        settings, end = self._local.settings, self._local.log.end
        is_limited = self._local.catch_up_bytes_per_s > 0 and name not in self.required()
        while peer.session and 0 <= peer.sent < min(end, peer.next + peer.window):
            if peer.next < peer.sent and end - peer.sent < settings.batch_bytes:
                return
            if is_limited and not self._has_credit():
                return
            start, peer.sent = peer.sent, min(end, peer.sent + settings.batch_bytes)
            if is_limited:
                self._credit -= peer.sent - start
            self._frame(name, peer, start)

    def _has_credit(self) -> bool:
        """Return whether a member that is not in the set may receive bytes now. `tick` sends what waits."""
        now_ms, per_s = self._local.now_ms, self._local.catch_up_bytes_per_s
        self._credit = min(self._credit + (now_ms - self._credit_ms) * per_s / 1_000, per_s / 5)
        self._credit_ms = now_ms
        return self._credit > 0

    def _frame(self, name: str, peer: Peer, start: int) -> None:
        counted = name in self.required()
        if counted:
            self._spend(name, peer)
        peer.beaten_ms = self._local.now_ms
        confirmed = self._local.log.confirmed
        self._local.emit(SendLog(name, self.epoch, peer.session, start, peer.sent, confirmed, counted))

    def _spend(self, name: str, peer: Peer) -> None:
        """Note that the replica may clear its note: sessions and notes of a process have ascending numbers."""
        spent, counted = self._spent.setdefault(name, {}), self._counted.setdefault(name, [])
        if peer.incarnation not in counted:
            counted.append(peer.incarnation)
        for serial in (peer.session, peer.note):
            spent[incarnation_of(serial)] = max(serial, spent.get(incarnation_of(serial), 0))

    # Time

    def tick(self) -> None:
        """Send heartbeats, and end a switchover that takes too long."""
        now_ms, settings = self._local.now_ms, self._local.settings
        for name, peer in self.peers.items():
            self._send_log(name, peer)
            if peer.session and peer.sent >= 0 and now_ms - peer.beaten_ms >= settings.heartbeat_ms:
                self._frame(name, peer, peer.sent)
        if self.target and now_ms - self._held_ms >= settings.hand_over_ms:
            self.release()
        self._seek_relief()
        self._hand_over()

    def next_record(self) -> Record | None:
        """Return the content that the register should have, with a changed set if necessary; None during hand-over."""
        record, local = self._register.record, self._local
        assert record is not None
        if self._handed_ms is not None:
            return None
        in_sync = {local.name}
        for name, peer in self.peers.items():
            is_recent = local.now_ms - peer.caught_up_ms < local.settings.replica_timeout_ms
            if name in record.in_sync:
                joins = is_recent and name not in self.detached
            else:
                has_everything = name not in self.lacking and peer.acknowledged >= self.caught_up_offset()
                joins = is_recent and peer.session != 0 and has_everything
            if joins:
                in_sync.add(name)
        return record._replace(in_sync=frozenset(in_sync))

    def may_continue(self, renewed_ms: int) -> bool:
        """Return whether the lease is valid, or all required replicas have acknowledged recently."""
        return self._local.now_ms - renewed_ms < self._local.settings.lease_ms or self.is_heard()

    def is_heard(self) -> bool:
        """Return whether all required replicas have acknowledged recently."""
        now_ms, settings = self._local.now_ms, self._local.settings
        others = self.required() - {self._local.name}
        recent = [
            name in self.peers
            and self.peers[name].session != 0
            and now_ms - self.peers[name].heard_ms < settings.replica_timeout_ms
            for name in others
        ]
        return bool(recent) and all(recent)

    # Orders

    def switch_over(self, target: str) -> str:
        """Hold appends until the target has everything. Returns the reason if the order is refused."""
        if self.target:
            return f"a switchover to {self.target} is in progress"
        if target == self._local.name or target not in self.in_sync() or not self.peers[target].session:
            return f"{target} is not a connected replica in sync"
        self.target, self._held_ms, self._handed_ms = target, self._local.now_ms, None
        self._local.emit(HoldAppends(True))
        self._hand_over()
        return ""

    def _seek_relief(self) -> None:
        """While the disk of this member is full, ask the replicas in sync for their state, and hand over to one."""
        local, settings = self._local, self._local.settings
        if local.is_able or settings.failover is Failover.MANUAL:
            self._relief_ms = local.now_ms + settings.relief_ms
        if local.now_ms < self._relief_ms or self.target:
            return
        in_sync = self.in_sync() - self.lacking
        self._positions.ask(in_sync)
        for name, position in sorted(self._positions.fresh(in_sync).items()):
            if position.is_able and position.epoch == self.epoch and not self.switch_over(name):
                self._relief_ms = local.now_ms + settings.hand_over_ms + settings.relief_ms
                return

    def release(self) -> None:
        """End a switchover."""
        if self.target:
            self.target, self._handed_ms = "", None
            self._local.emit(HoldAppends(False))

    def _hand_over(self) -> None:
        now_ms = self._local.now_ms
        if not self.target or self.target in self.lacking or self._register.is_busy:
            return
        if self._handed_ms is not None and now_ms - self._handed_ms < self._local.settings.retry_ms:
            return
        peer = self.peers[self.target]
        if peer.session and min(peer.acknowledged, peer.next) >= self._local.log.end:
            self._handed_ms = now_ms
            self._local.emit(Send(self.target, HandOver(self.epoch, peer.session, self._local.log.end)))

    def detach(self, order: Detach) -> str:
        """Stop waiting for a member. Returns the reason if the order is refused."""
        if order.member == self._local.name or order.member not in self.required():
            return f"{order.member} is not waited for"
        if not self._is_proof(order):
            return f"{order.member} may be a candidate again: repeat both orders"
        self.detached.add(order.member)
        self.confirm()
        return ""

    def _is_proof(self, order: Detach) -> bool:
        """Return whether the note on which an order is based certainly still exists.

        A note of a process that was succeeded by one that this master counted may have disappeared with its volume.
        """
        incarnation = incarnation_of(order.note.serial)
        counted = self._counted.get(order.member, [incarnation])
        is_spent = order.note.serial <= self._spent.get(order.member, {}).get(incarnation, 0)
        return order.note.epoch == self.epoch and counted[-1] == incarnation and not is_spent
