"""Faults, orders and clients of a simulated group, and its recovery when the faults end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from delaymq.replication import Acknowledge, Failover, NoteKind, Settings
from delaymq.replication.effects import CutTo, Effect, PersistEpochs, PersistNote, SetConfirmed, WriteRegister
from delaymq.replication.events import Able, ConnectionLost, PrepareDetach, Promote, Received, SwitchOver
from delaymq.replication.messages import Ack

from delaymq_testing.replication.checker import ViolationError
from delaymq_testing.replication.node import Node
from delaymq_testing.replication.world import Network, World

RECOVERY_MS = 60_000
"""Longest time from the end of all faults to a confirmed append with all members in sync."""


class Focus(NamedTuple):
    """Restriction of random scenarios, so that a kind of bug is found in fewer of them."""

    members: int = 0
    faults: frozenset[str] = frozenset()
    settings: dict[str, Any] = {}  # noqa: RUF012
    pace_ms: int = 0


class Scenario:
    """A random group with random faults."""

    def __init__(self, seed: int, focus: Focus = Focus()) -> None:  # noqa: B008
        rng = Random(seed)
        names = ["a", "b", "c", "d", "e"][: focus.members or rng.choice((2, 2, 3, 3, 3, 4, 5))]
        settings = Settings(
            acknowledge=rng.choice((Acknowledge.APPENDED, Acknowledge.FLUSHED)),
            waits_for_replicas=rng.random() < 0.8,
            failover=Failover.MANUAL if rng.random() < 0.1 else Failover.AUTOMATIC,
            min_in_sync=rng.randint(1, len(names)),
            batch_bytes=rng.choice((40, 64, 1 << 18)),
            window_bytes=rng.choice((256, 1 << 22)),
        )
        self.world = World(seed, names, settings._replace(**focus.settings))
        self.random = self.world.random
        self._orders_losses = self.random.random() < 0.3
        self._is_healed = False
        self._ends: dict[int, int] = {}
        """Ends of the logs of masters, by incarnation, when they were first seen after all faults."""
        self.world.flush_share = self.random.choice((0.1, 0.3, 0.7))
        self._client_ms = self.random.choice(((5, 20, 60, 120), (5, 20, 60, 120), (100, 300, 1_000)))
        self._pace_ms = focus.pace_ms or self.random.choice((300, 800, 2_000))
        weights: dict[Callable[[], None], float] = {
            self._crash: 6, self._lose_power: 3, self._crash_in_write: 3, self._crash_after_confirm: 2,
            self._crash_in_change: 2, self._lose_change: 3, self._pause: 4, self._partition: 4, self._block: 4,
            self._isolate_from_register: 5, self._stop_register: 2, self._disturb_register: 4, self._disturb_network: 4,
            self._jump_clock: 3, self._skew_clock: 2, self._lose_connection: 4, self._slow_disk: 3, self._forge: 2,
            self._blackout: 1, self._replace_volume: 1, self._switch_over: 5, self._detach: 3,
            self._detach_far_from_register: 2, self._promote: 1, self._trim: 3, self._fail_appends: 2,
            self._delete_record: 1, self._fill_disk: 2,
        }  # fmt: skip
        if focus.faults:
            weights = {fault: weight for fault, weight in weights.items() if fault.__name__[1:] in focus.faults}
        # Each run leaves out some kinds of faults, so that the others meet longer histories.
        self._weights = {
            fault: weight for fault, weight in weights.items() if self.random.random() < (1.0 if focus.faults else 0.7)
        }

    def run(self, steps: int) -> None:
        """Perform steps with faults, then end them and check that the group recovers."""
        world = self.world
        for node in world.nodes.values():
            node.start()
        world.after(self.random.randint(0, 4_000), self._next_fault)
        world.after(0, self._client)
        while world.steps < steps:
            world.step()
        self._recover()

    # Clients

    def _client(self) -> None:
        node = self.random.choice(list(self.world.nodes.values()))
        choice = self.random.random()
        if choice < 0.7:
            masters = self.world.masters()
            if masters:
                self.random.choice(masters).append()
        elif choice < 0.85:
            node.read()
        else:
            node.snapshot()
        self.world.after(self.random.choice(self._client_ms), self._client)

    # Faults

    def _next_fault(self) -> None:
        if self._is_healed:
            return
        if self._weights:
            (fault,) = self.random.choices(list(self._weights), list(self._weights.values()))
            fault()
            self.world.checker.count(fault.__name__.lstrip("_"))
        self.world.after(self.random.randint(1, 2 * self._pace_ms), self._next_fault)

    def _any(self) -> Node:
        masters = self.world.masters()
        if masters and self.random.random() < 0.4:
            return self.random.choice(masters)
        return self.random.choice(list(self.world.nodes.values()))

    def _later(self, action: Callable[..., None], *arguments: object) -> None:
        self.world.after(self.random.choice((50, 500, 2_500, 6_000, 15_000)), action, *arguments)

    def _crash(self) -> None:
        node = self._any()
        node.crash()
        self._later(node.restart)

    def _lose_power(self) -> None:
        node = self._any()
        node.lose_power()
        self._later(node.restart)

    def _blackout(self) -> None:
        """Let all members lose power."""
        for node in self.world.nodes.values():
            node.lose_power()
            self._later(node.restart)

    def _trap(self, *effects: type[Effect]) -> None:
        """Let a member crash or lose power soon after its next effect of these kinds."""
        node = self._any()
        action = Node.lose_power if self.random.random() < 0.3 else Node.crash
        delay_ms = self.random.choice((50, 1_000, 6_000))

        def fall(node: Node) -> None:
            action(node)
            self.world.after(delay_ms, node.restart)

        node.on_trapped, node.trap = fall, effects

    def _crash_in_write(self) -> None:
        self._trap(CutTo, PersistEpochs, PersistNote)

    def _crash_after_confirm(self) -> None:
        self._trap(SetConfirmed)

    def _crash_in_change(self) -> None:
        self._trap(WriteRegister)

    def _lose_change(self) -> None:
        """Lose the response to the next addition to the set, and the connection with the new member."""

        def lose(writer: str, added: frozenset[str]) -> None:
            pairs = {(writer, name) for name in added} | {(name, writer) for name in added}
            self.world.blocked |= pairs
            self._later(self.world.blocked.difference_update, pairs)

        self.world.register.trap = lose

    def _pause(self) -> None:
        node = self._any()
        node.is_paused = node.member is not None
        self._later(node.resume)

    def _partition(self) -> None:
        names = list(self.world.nodes)
        side = {name for name in names if self.random.random() < 0.5}
        pairs = {(one, other) for one in names for other in names if (one in side) != (other in side)}
        self.world.blocked |= pairs
        self._later(self.world.blocked.difference_update, pairs)

    def _block(self) -> None:
        """Block one direction between two members."""
        one, other = self.random.sample(list(self.world.nodes), 2)
        self.world.blocked.add((one, other))
        self._later(self.world.blocked.discard, (one, other))

    def _isolate_from_register(self) -> None:
        name = self._any().name
        self.world.register.cut_off.add(name)
        self._later(self.world.register.cut_off.discard, name)

    def _stop_register(self) -> None:
        self.world.register.is_down = True
        self._later(setattr, self.world.register, "is_down", False)

    def _disturb_register(self) -> None:
        self.world.register.unreliable = self.random.choice((0.1, 0.4, 0.8))
        self._later(setattr, self.world.register, "unreliable", 0.0)

    def _disturb_network(self) -> None:
        share = self.random.choice((0.02, 0.1, 0.3))
        self.world.network = Network(share, share, share)
        self._later(setattr, self.world, "network", Network())

    def _jump_clock(self) -> None:
        self._any().clock_offset_ms += self.random.choice((-3_600_000, -3_000, 1_000, 12_000, 3_600_000))

    def _skew_clock(self) -> None:
        node = self._any()
        before_ms = int(self.world.now_ms * node.clock_rate)
        node.clock_rate = self.random.choice((0.2, 0.9, 1.0, 1.1, 4.0))
        node.clock_offset_ms += before_ms - int(self.world.now_ms * node.clock_rate)

    def _lose_connection(self) -> None:
        one, other = self.random.sample(list(self.world.nodes.values()), 2)
        one.handle(ConnectionLost(other.name))
        other.handle(ConnectionLost(one.name))

    def _slow_disk(self) -> None:
        node = self._any()
        node.slowness_ms = self.random.choice((300, 1_000))
        self._later(setattr, node, "slowness_ms", 0)

    def _forge(self) -> None:
        """Report more to a master than the sender has."""
        for node in self.world.masters():
            assert node.member is not None
            assert node.member._leading is not None
            for name, peer in node.member._leading.peers.items():
                end = len(node.disk.log) + self.random.choice((16, 1_600))
                node.handle(Received(name, Ack(node.member.epoch, peer.session, end, end, 0)))

    def _trim(self) -> None:
        """Delete old parts of logs."""
        for node in self.world.nodes.values():
            if node.member is not None and not node.is_paused and self.random.random() < 0.7:
                node.trim()

    def _fail_appends(self) -> None:
        node = self._any()
        node.append_failures = self.random.choice((0.1, 1.0))
        self._later(setattr, node, "append_failures", 0.0)

    def _fill_disk(self) -> None:
        """Let a member leave takeovers to others."""
        node = self._any()
        node.handle(Able(False))
        self._later(node.handle, Able(True))

    def _delete_record(self) -> None:
        """Delete the record of the register, which the members write again when all of them answer."""
        self.world.register.delete()

    # Orders

    def _switch_over(self) -> None:
        for node in self.world.masters():
            assert node.member is not None
            target = self.random.choice(list(self.world.nodes))
            node.handle(SwitchOver(target, node.member.epoch))

    def _detach(self) -> None:
        node = self._any()
        if node.member is not None:
            node.handle(PrepareDetach(node.member.epoch))

    def _detach_far_from_register(self) -> None:
        """Let a master stop waiting for a member while it cannot change the register."""
        for master in self.world.masters():
            self.world.register.cut_off.add(master.name)
            self._later(self.world.register.cut_off.discard, master.name)
            node = self.random.choice([node for node in self.world.nodes.values() if node is not master])
            if node.member is None:
                continue
            node.handle(PrepareDetach(node.member.epoch))
            for one, other in ((master, node), (node, master)):
                delay_ms = self.random.choice((0, 1, 1_000, 2_000, 4_000))
                self.world.after(delay_ms, self.world.blocked.add, (one.name, other.name))
                self.world.after(delay_ms + 6_000, self.world.blocked.discard, (one.name, other.name))

    def _promote(self) -> None:
        if self._orders_losses:
            node = self._any()
            if node.member is not None:
                node.handle(Promote(node.member.epoch))

    def _replace_volume(self) -> None:
        """Replace the volume of a member."""
        node = self._any()
        if not self._orders_losses:
            return
        node.replace_volume()
        self._later(node.restart)

    # Recovery

    def _recover(self) -> None:
        world = self.world
        self._is_healed = True
        world.blocked.clear()
        world.network = Network()
        world.register.is_down = False
        world.register.cut_off.clear()
        world.register.unreliable = 0.0
        world.register.trap = None
        world.flush_share = 0.7
        for node in world.nodes.values():
            self._skew_back(node)
            node.trap = ()
            node.slowness_ms = 0
            node.append_failures = 0.0
            if node.is_paused:
                node.resume()
            node.restart()
        if world.run_until(self._has_recovered, RECOVERY_MS):
            return
        # What remains needs an administrator.
        if not world.masters():
            self._promote_longest()
        if not world.run_until(self._has_recovered, RECOVERY_MS):
            states = {node.name: (node.member.role, node.failure) for node in world.nodes.values() if node.member}
            raise ViolationError(f"no recovery: {world.register.record}, {states}")

    def _skew_back(self, node: Node) -> None:
        before_ms = node.clock_offset_ms + int(self.world.now_ms * node.clock_rate)
        node.clock_rate = 1.0
        node.clock_offset_ms = before_ms - self.world.now_ms

    def _has_recovered(self) -> bool:
        """Whether a master has confirmed something new with all members in its set."""
        world = self.world
        for node in world.nodes.values():
            # A member that refuses to follow asks for this.
            if node.failure:
                node.replace_volume()
                node.start()
        record = world.register.record
        if record is None or len(record.in_sync) < len(world.nodes):
            return False
        for node in world.masters():
            if node.member is not None and node.master_epoch == record.epoch:
                known = self._ends.setdefault(node.incarnation, len(node.disk.log))
                return node.member.log.confirmed > known
        return False

    def _promote_longest(self) -> None:
        """Order a takeover, which must be necessary."""
        world = self.world
        world.checker.count("necessary promotions")
        record = world.register.record
        if record is None:
            raise ViolationError("nobody writes the register's first record")
        members = [world.nodes[name] for name in record.in_sync]
        if world.settings.failover is Failover.AUTOMATIC:
            notes = [node.disk.note for node in members]
            kinds = {note.kind if note else None for note in notes}
            if None in kinds or kinds == {NoteKind.LOST_TAIL}:
                raise ViolationError(f"nobody takes over: {record}, {kinds}")
        node = max(members, key=lambda each: (each.disk.note is None, len(each.disk.log)))
        node.handle(Promote(record.epoch))
