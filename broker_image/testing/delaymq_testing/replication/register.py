"""A linearizable register, with delays, failures, and writes whose outcome the writer does not learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from delaymq.replication import Record
from delaymq.replication.effects import ReportLoss
from delaymq.replication.events import Event, RegisterConflict, RegisterFailed, RegisterRead, RegisterWritten

if TYPE_CHECKING:
    from delaymq_testing.replication.node import Node
    from delaymq_testing.replication.world import World


class Register:
    """The register of a group. An operation takes effect when its request arrives."""

    def __init__(self, world: World, record: Record | None) -> None:
        self._world = world
        self.record = record
        self._version = 1
        self.is_down = False
        self.cut_off: set[str] = set()
        """Members whose operations do not arrive."""
        self.trap: Callable[[str, frozenset[str]], None] | None = None
        """Called with the writer and the added members when the set changes next; the response is lost."""
        self.unreliable = 0.0
        """Share of operations whose request or response is lost or delayed by seconds."""

    def read(self, node: Node, request: int) -> None:
        """Begin a read."""
        self._send(node, request, lambda: RegisterRead(request, str(self._version), self.record))

    def write(self, node: Node, request: int, expected: str, record: Record, stated_loss: ReportLoss | None) -> None:
        """Begin a write."""

        def apply() -> Event | None:
            if not self.matches(expected):
                self._world.checker.count("conflicts")
                return RegisterConflict(request)
            self._version += 1
            changed, self.record = self.record, record
            if changed is not None and changed.in_sync != record.in_sync:
                self._world.checker.count("changed sets")
            self._world.written(record, stated_loss)
            added = record.in_sync - (record.in_sync if changed is None else changed.in_sync)
            if added and self.trap is not None:
                self.trap(node.name, added)
                self.trap = None
                return None
            return RegisterWritten(request, str(self._version))

        self._send(node, request, apply)

    def delete(self) -> None:
        """Delete the record."""
        self._version += 1
        self.record = None
        self._world.checker.deleted()

    def matches(self, expected: str) -> bool:
        return expected == str(self._version)

    def _send(self, node: Node, request: int, apply: Callable[[], Event | None]) -> None:
        world, rng = self._world, self._world.random
        is_late = rng.random() < self.unreliable
        delay_ms = rng.randint(500, 6_000) if is_late and rng.random() < 0.5 else rng.randint(1, 30)
        incarnation = node.incarnation
        loses_request = is_late and rng.random() < 0.3
        loses_response = is_late and rng.random() < 0.6

        def respond(event: Event) -> None:
            if incarnation == node.incarnation:
                node.handle(event)

        def arrive() -> None:
            if loses_request or self.is_down or node.name in self.cut_off:
                if rng.random() < 0.5:
                    world.after(rng.randint(1, 30), respond, RegisterFailed(request))
                return
            event = apply()
            if event is None or loses_response:
                world.checker.count("unknown outcomes")
                event = RegisterFailed(request)
                if rng.random() < 0.5:
                    return
            world.after(rng.randint(1, 30), respond, event)

        world.after(delay_ms, arrive)
