"""Groups of brokers whose tables are replicated, over links in memory that deliver on request.

Everything but the state machine of members is real: brokers with their stores, and `TableReplication`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any, cast

from delaymq.broker.opening import open_broker
from delaymq.clock import now_ms
from delaymq.message.record import SIZE_AND_MAGIC
from delaymq.replication import Member
from delaymq.replication.events import ConnectionLost, Event, Lacks, Received, Tick
from delaymq.replication.messages import Follow
from delaymq.server.replication.table_messages import LinkMessage, TableAck, TablePart, TableReceived
from delaymq.server.replication.tables import TableReplication
from delaymq.server.requests.flushing import Flushing
from delaymq.store.replica.cutting import cut
from delaymq.store.replica.discarding import discard
from delaymq.store.replica.rebuilding import rebuild

from delaymq_testing.broker.harness import Clock, broker_config
from delaymq_testing.store.small_stores import flush

SEGMENT_BYTES = 1 << 16


@dataclass
class Link:
    """What a master and a replica have sent to each other in one session, in order."""

    session: int
    down: deque[Any] = field(default_factory=deque)
    """Parts of tables, bytes of the log (start, bytes), and numbers of intervals."""
    up: deque[Any] = field(default_factory=deque)
    """Acknowledgements, and ends of the log (int)."""
    next: int | None = None
    """Offset of the next byte to be sent; None before the first end of the replica's log."""


class Responses:
    """The part of the server that knows which responses wait."""

    def __init__(self) -> None:
        self.tables_reached: Callable[[], int] = lambda: 0
        self.of_tables = self
        self.awaits_tables = True

    def release(self) -> None:
        pass


class Node:
    """One member, which is restarted in place."""

    def __init__(self, group: TableGroup, name: str) -> None:
        self.group = group
        self.name = name
        self.restart_action: Callable[[], None] | None = None
        self._events: deque[Event] = deque()
        self._is_handling = False
        self.open()

    @property
    def path(self) -> Path:
        return self.group.path / self.name

    def open(self) -> None:
        config = broker_config(
            self.path, mapped_file_size_commit_log=SEGMENT_BYTES, file_reserved_time=1, broker_name="broker-a"
        )
        self.broker = open_broker(config, self.group.clock, follows=True)
        self.responses = Responses()
        self.seen = 0
        """Number of the newest interval whose offsets this process has received."""
        self.tables = TableReplication(
            self.broker,
            cast(Member, self),
            send=self._send,
            disconnect=lambda member, reason: self.group.disconnect(self._replica_of(member)),
            handle=self.handle,
            rebuild=self._rebuild,
            flushing=cast(Flushing, self.responses),
        )

    def kill(self, action: Callable[[], None] | None = None) -> None:
        """Lose everything that is not in files, and start again."""
        self.broker.store.abandon()
        self.restart_action = None
        if action is not None:
            action()
        self.open()

    def _rebuild(self, deleted: Mapping[str, int]) -> None:
        self.restart_action = partial(rebuild, self.path / "store", dict(deleted))

    def _replica_of(self, member: str) -> str:
        return self.name if member == self.group.master else member

    def _send(self, member: str, message: LinkMessage) -> bool:
        link = self.group.links.get(self._replica_of(member))
        if link is None:
            return False
        (link.up if isinstance(message, TableAck) else link.down).append(message)
        return True

    # The state machine, as the replication of tables uses it.

    def session_of(self, member: str) -> int:
        link = self.group.links.get(member)
        return 0 if link is None else link.session

    def follows(self, master: str, epoch: int, session: int) -> bool:
        group = self.group
        return (group.master, group.epoch, self.session_of(self.name)) == (master, epoch, session)

    def required_replicas(self) -> frozenset[str] | None:
        return frozenset(self.group.in_sync - {self.name}) if self.group.master == self.name else None

    def handle(self, event: Event) -> None:
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        while self._events:
            each = self._events.popleft()
            if self.tables.before(each):
                if isinstance(each, Lacks):
                    (self.group.lacking.add if each.lacks else self.group.lacking.discard)(each.member)
                self.tables.after(each)
        self._is_handling = False


class TableGroup:
    """Members by name; the first one is the first master, and all of them are in sync."""

    def __init__(self, path: Path, names: str, rng: Random) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.rng = rng
        self.clock = Clock()
        self.epoch = 1
        self.master = names[0]
        self.in_sync = set(names)
        self.lacking: set[str] = set()
        self.links: dict[str, Link] = {}
        self.intervals = 0
        self._sessions = 0
        self.nodes = {name: Node(self, name) for name in names}
        self.leader.tables.lead(self.epoch)

    @property
    def leader(self) -> Node:
        return self.nodes[self.master]

    @property
    def reached(self) -> int:
        """Number of the newest change of the master that all members in sync have."""
        return self.leader.responses.tables_reached()

    def is_complete(self, name: str) -> bool:
        """Whether a member has all tables of its session."""
        tables, link = self.nodes[name].tables, self.links.get(name)
        is_begun = link is not None and tables._receiving._session == (self.epoch, link.session)
        return is_begun and tables._followed.is_complete

    def replicas(self) -> list[str]:
        return [name for name in self.nodes if name != self.master]

    # Links

    def connect(self, name: str) -> None:
        """Begin a session, with a log that agrees with the master's."""
        self.disconnect(name)
        node, store = self.nodes[name], self.leader.broker.store
        begin, end = store.min_offset, node.broker.store.end_offset
        if end and end < begin:
            node.kill(partial(discard, node.path / "store"))
        elif (common := self._common_end(node)) < end:
            node.kill(partial(cut, node.path / "store", common))
        self._sessions += 1
        self.links[name] = Link(self._sessions)
        self.leader.handle(Received(name, Follow(self.epoch, self._sessions, 1, "", 0)))
        self.links[name].up.append(node.broker.store.end_offset)

    def _common_end(self, node: Node) -> int:
        """End of the last record that two logs have in common."""
        store, other = self.leader.broker.store, node.broker.store
        at, end = max(store.min_offset, other.min_offset), min(store.end_offset, other.end_offset)
        while at < end:
            size, _ = SIZE_AND_MAGIC.unpack(store.read_bytes(at, SIZE_AND_MAGIC.size))
            if store.read_bytes(at, size) != other.read_bytes(at, size):
                return at
            at += size
        return min(at, end)

    def disconnect(self, name: str) -> None:
        """End a session, with everything that is in transit."""
        if self.links.pop(name, None) is not None:
            self.leader.handle(ConnectionLost(name))
            self.nodes[name].broker.store.forget_received()

    def pump(self, name: str) -> None:
        """Send some bytes of the log, cut anywhere."""
        link, store = self.links.get(name), self.leader.broker.store
        if link is None or link.next is None:
            return
        start = max(link.next, store.min_offset) if not link.next else link.next
        size = min(self.rng.choice([50, 400, 5_000]), SEGMENT_BYTES - start % SEGMENT_BYTES, store.end_offset - start)
        if size > 0:
            data = store.read_bytes(start, size)
            if not data:
                self.disconnect(name)  # retention deleted them
                return
            link.next = start + size
            link.down.append((start, data))

    def deliver(self, name: str) -> bool:
        """Deliver a message in each direction; return whether there was one."""
        link, node = self.links.get(name), self.nodes[name]
        if link is None or not (link.down or link.up):
            return False
        if link.down:
            self._deliver_down(node, link, link.down.popleft())
        if link.up and self.links.get(name) is link:
            message = link.up.popleft()
            if isinstance(message, TableAck):
                self.leader.tables.received(TableReceived(name, message))
            elif link.next is None:
                link.next = message
        return True

    def _deliver_down(self, node: Node, link: Link, message: Any) -> None:
        if isinstance(message, TablePart):
            node.tables.received(TableReceived(self.master, message))
        elif isinstance(message, int):
            node.seen = message if self.is_complete(node.name) else node.seen
        else:
            node.broker.store.append_raw(*message)

    async def work(self) -> None:
        """Let the event loop run, and restart the members that require it."""
        for _ in range(3):
            await asyncio.sleep(0)
        for name, node in self.nodes.items():
            if node.restart_action is not None:
                self.disconnect(name)
                node.kill(node.restart_action)

    async def tick(self) -> None:
        """End an interval: offsets that have changed are sent."""
        self.leader.tables.send_offsets()
        self.leader.handle(Tick())
        await self.work()
        self.intervals += 1
        for link in self.links.values():
            link.down.append(self.intervals)

    async def settle(self) -> None:
        """Connect all members, and deliver everything."""
        for _ in range(100):
            for name in self.replicas():
                if name not in self.links:
                    self.connect(name)
            await self.tick()
            for _ in range(2_000):
                moved = False
                for name in self.replicas():
                    self.pump(name)
                    moved = self.deliver(name) or moved
                await self.work()
                if not moved:
                    break
            self.join()
            ends = {node.broker.store.end_offset for node in self.nodes.values()}
            if len(self.links) == len(self.nodes) - 1 and not self.lacking and len(ends) == 1:
                return
        raise AssertionError(f"the group does not settle: links {self.links.keys()}, lacking {self.lacking}")

    # Membership

    def join(self) -> None:
        """Add the members to the set that have everything."""
        end = self.leader.broker.store.end_offset
        for name in self.links:
            if name not in self.lacking and self.nodes[name].broker.store.end_offset == end:
                self.in_sync.add(name)

    def remove(self, name: str) -> None:
        """Remove a member from the set."""
        self.in_sync.discard(name)
        self.leader.handle(Tick())

    def promote(self, name: str) -> None:
        """Kill the master, and let a member of the set take over."""
        assert name in self.in_sync - {self.master}
        for each in list(self.links):
            self.disconnect(each)
        former, self.master = self.leader, name
        former.kill()
        self.epoch += 1
        self.in_sync.discard(former.name)
        self.lacking.clear()
        self.leader.tables.lead(self.epoch)

    def wipe(self, name: str) -> None:
        """Replace the volume of a member that is not in the set."""
        self.disconnect(name)
        self.nodes[name].kill(partial(rmtree, self.nodes[name].path / "store"))

    def trim(self) -> None:
        """Delete all segments of the master's log but the last one."""
        store = self.leader.broker.store
        flush(store)
        while store.clean(now_ms() + 2 * 3_600_000, at_any_hour=True):  # by the times of the files
            pass

    def close(self) -> None:
        for node in self.nodes.values():
            node.broker.store.abandon()
