"""A simulated group: time, network, and the processes on their disks."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import NamedTuple

from delaymq.replication import Note, Record, Settings
from delaymq.replication.effects import ReportLoss
from delaymq.replication.events import ConnectionLost, Detach

from delaymq_testing.replication.checker import Checker
from delaymq_testing.replication.node import Node, receive
from delaymq_testing.replication.register import Register


class Network(NamedTuple):
    """Shares of messages that are lost, repeated, and delayed by up to a second."""

    lost: float = 0.0
    repeated: float = 0.0
    delayed: float = 0.0


class World:
    """A group of members. Each step is one event of one of them."""

    def __init__(self, seed: int, names: list[str], settings: Settings) -> None:
        self.random = random.Random(seed)
        self.settings = settings
        self.now_ms = 0
        self.steps = 0
        self.network = Network()
        self.blocked: set[tuple[str, str]] = set()
        """Pairs of sender and receiver between which no message arrives."""
        self.nodes = {name: Node(self, name, f"store-{names[0]}" if name == names[0] else "") for name in names}
        record = Record(0, "", 0, frozenset({names[0]})) if self.random.random() < 0.5 else None
        self.checker = Checker(record)
        self.register = Register(self, record)
        self.flush_share = 0.7
        """Share of ticks at which a member flushes its log."""
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = 0
        self._incarnation = 0
        self._uid = 0

    # Time

    def after(self, delay_ms: int, action: Callable[..., None], *arguments: object) -> None:
        """Perform an action later."""
        self._number += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._number, action, arguments))

    def step(self) -> None:
        """Perform the next action."""
        self.now_ms, _, action, arguments = heapq.heappop(self._events)
        self.steps += 1
        action(*arguments)

    def run_until(self, is_done: Callable[[], bool], limit_ms: int) -> bool:
        """Perform actions until a condition holds. Returns whether it does within a time."""
        end_ms = self.now_ms + limit_ms
        while not is_done():
            if self.now_ms >= end_ms:
                return False
            self.step()
        return True

    def run_for(self, time_ms: int) -> None:
        """Perform the actions of a time."""
        self.run_until(lambda: False, time_ms)

    def next_incarnation(self) -> int:
        self._incarnation += 1
        return self._incarnation

    def next_uid(self) -> int:
        self._uid += 1
        return self._uid

    # Network

    def send(self, sender: str, receiver: str, message: object) -> None:
        """Send a message."""
        rng, network = self.random, self.network
        copies = 1
        if network.lost and rng.random() < network.lost:
            copies = 0
        elif network.repeated and rng.random() < network.repeated:
            copies = 2
        for _ in range(copies):
            delay_ms = (
                rng.randint(1, 1_000) if network.delayed and rng.random() < network.delayed else rng.randint(1, 8)
            )
            self.after(delay_ms, self._deliver, sender, receiver, message)

    def _deliver(self, sender: str, receiver: str, message: object) -> None:
        if (sender, receiver) not in self.blocked:
            receive(self.nodes[receiver], sender, message)

    def disconnected(self, name: str) -> None:
        """Report the end of the connections of a process to its peers."""
        for other in self.nodes.values():
            if other.name != name and (name, other.name) not in self.blocked:
                self.after(self.random.randint(1, 20), other.handle, ConnectionLost(name))

    def log_before(self, offset: int) -> bytes | None:
        """Return the confirmed log before an offset; None if it is not known any more, after a stated loss."""
        return bytes(self.checker.history[:offset]) if len(self.checker.history) >= offset else None

    # Observations

    def in_sync(self) -> frozenset[str]:
        return self.register.record.in_sync if self.register.record is not None else frozenset()

    def written(self, record: Record, stated_loss: ReportLoss | None) -> None:
        disks = {name: node.disk for name, node in self.nodes.items()}
        master = self.nodes.get(record.master)
        is_alive = master is not None and master.member is not None and master.incarnation == record.incarnation
        self.checker.written(record, disks, stated_loss, is_alive=is_alive)

    def confirmed(self, node: Node, start: int, end: int) -> None:
        known = len(self.checker.history)
        self.checker.confirmed(node.name, node.incarnation, node.master_epoch, start, end, node.disk)
        if len(self.checker.history) > known:
            for name in self.in_sync():
                self.checker.check_member(name, self.nodes[name].disk)

    def check_in_sync(self, name: str) -> None:
        if name in self.in_sync():
            self.checker.check_member(name, self.nodes[name].disk)

    def ready_to_detach(self, name: str, note: Note) -> None:
        """Order masters to detach a member that has recorded its note."""
        self.checker.count("detach notes")
        for node in self.nodes.values():
            if node.name != name:
                self.after(self.random.randint(1, 3_000), node.handle, Detach(name, note.epoch, note))

    def masters(self) -> list[Node]:
        """Return the members that believe to be masters."""
        return [node for node in self.nodes.values() if node.is_master]
