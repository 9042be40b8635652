"""A broker server as a member of a replicated group: its role, its links, and the driver of its state machine."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.replication import Acknowledge, LogState, Member, Note, NoteKind, Role, Settings
from delaymq.replication.events import MembersListed, SwitchOver
from delaymq.replication.history import trimmed
from delaymq.server.registration import GroupClaim, Place
from delaymq.server.replication.driver import Driver
from delaymq.server.replication.handshake import Identity
from delaymq.server.replication.links import LinkEvent, Links
from delaymq.server.replication.member_files import Epochs, KnownReplica, MemberFiles, boot_id
from delaymq.server.replication.readers import ReplicaRegistration
from delaymq.server.replication.table_messages import TableReceived
from delaymq.server.replication.tables import TableReplication
from delaymq.server.tls.outgoing import outgoing_tls
from delaymq.store.replica.cutting import cut
from delaymq.store.replica.discarding import discard
from delaymq.store.replica.rebuilding import rebuild
from delaymq.transport.addresses import host_and_port

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker
    from delaymq.config import BrokerConfig
    from delaymq.server.registers import Register
    from delaymq.server.replication.link import Address
    from delaymq.server.replication.secret import GroupSecret
    from delaymq.server.requests.flushing import Flushing

HAND_OVER_S: Final = 4.0
LINGER_S: Final = 0.5
"""Time for which a former master holds requests after a switchover. Nodes direct new connections to the new master a
few tenths of a second after it has published its address."""
_INCARNATION_BITS: Final = 31
_LOG_SHORTENED: Final = ("torn-tail", "log-behind-end")
"""Corrections that ended the log before bytes of it: those of a record that was being written, or damaged ones."""

_logger = logging.getLogger(__name__)

Restart = Callable[[str, Callable[[], None] | None], None]
"""Stops the server, performs an action on the closed store, and starts the process again; takes the reason."""


class Server(Protocol):
    """The part of a broker server that its replication uses."""

    broker: Broker
    flushing: Flushing
    boot_id: str

    def lead(self, epoch: int, tokens: tuple[str, ...]) -> None:
        """Deliver delayed messages, and register with the NameServers, in an epoch and with what members know."""

    def stop_leading(self) -> None:
        """Register no longer."""

    def hold(self, *, held: bool) -> None:
        """Hold all requests, or handle those that were held."""


class Endpoints(Protocol):
    """Where clients find the master."""

    @property
    def problem(self) -> str:
        """Why clients may not reach this master yet; empty: they do."""

    def publish(self, epoch: int) -> None:
        """Publish the address of this member, in the background."""

    async def stop(self) -> None:
        """Publish no longer."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What makes a broker a member of a group."""

    name: str
    members: Mapping[str, Address]
    """Addresses of all members."""
    secret: GroupSecret
    settings: Settings


class Replica:
    """The replication of one broker server, which was opened as a replica. Call `start` on the event loop."""

    def __init__(
        self,
        server: Server,
        membership: Membership,
        register: Register,
        restart: Restart,
        endpoints: Endpoints | None = None,
    ) -> None:
        """`restart` is called at most once, when the process cannot continue in its role.

        `endpoints` receives the address of this member when it becomes master.
        """
        broker, config = server.broker, server.broker.config
        self._server = server
        self._broker = broker
        self.settings = membership.settings
        self._restart_process = restart
        self.name = membership.name
        self._secret = membership.secret
        self.members = dict(membership.members)
        """Addresses of all members."""
        self._endpoints = endpoints
        self._is_restarting = False
        self._is_ending = False
        self._is_held = False
        self._may_store = True
        broker.master_name = self._master_name
        self._files = MemberFiles(broker.store.own_files)
        self._note: Note | None = None
        member = Member(
            membership.name,
            1 + secrets.randbelow((1 << _INCARNATION_BITS) - 1),
            membership.settings,
            self._log_state(),
            frozenset(membership.members),
        )
        member.limit_catch_up(config.ha_max_bytes_per_second)
        identity = Identity(config.broker_cluster_name, config.broker_name, membership.name, server.boot_id)
        self.links = Links(
            identity,
            membership.members,
            membership.secret,
            self._received,
            tls=partial(outgoing_tls, broker.config),
        )
        self._tables = TableReplication(
            broker,
            member,
            send=self.links.send,
            disconnect=self.links.disconnect,
            handle=lambda event: self.driver.handle(event),
            rebuild=self._rebuild,
            flushing=server.flushing,
        )
        self.driver = Driver(
            member,
            broker.store,
            self.links,
            register,
            self._files,
            self,
            tables=self._tables,
            flush_soon=self._flush_soon,
            register_timeout_s=membership.settings.register_timeout_ms / 1_000,
        )
        broker.readers.is_current = lambda: member.may_read
        broker.readers.may_be_outdated = lambda: member.may_be_replaced
        broker.readers.replica_ids = self._replica_ids
        self._number_members()
        self.registration = ReplicaRegistration(broker, self._place, self._claim)

    def _place(self) -> Place:
        """Return the broker id and the address of this member while it is a replica."""
        address = self._broker.config.replica_address or host_and_port(*self.members[self.name])
        return Place(self._broker.readers.own_id, address)

    def _claim(self) -> GroupClaim:
        """Return what a registration states about the group."""
        config = self._broker.config
        tokens = self._secret.tokens(config.broker_cluster_name, config.broker_name)
        return GroupClaim(self.driver.member.epoch, tokens)

    def _number_members(self) -> None:
        """Give each member a broker id of its own, from 1 on, which does not depend on who is master."""
        self._ids = {name: number for number, name in enumerate(sorted(self.members), 1)}
        self._broker.readers.own_id = self._ids.get(self.name, 0)

    def _replica_ids(self) -> list[int]:
        return [self._ids[name] for name in self.driver.member.in_sync() - {self.name} if name in self._ids]

    def _master_name(self) -> str:
        master = self.driver.member.master
        if master not in self.members:
            return "the group's master, which is not known now"
        host, port = self.members[master]
        return f"the group's master, member {master} at {host}:{port}"

    def _received(self, event: LinkEvent) -> None:
        if isinstance(event, TableReceived):
            self._tables.received(event)
        else:
            self.driver.handle(event)

    def _log_state(self) -> LogState:
        """Return the log as it is on disk, with the note that the start has to record."""
        store = self._broker.store
        epochs, known = self._files.epochs(), self._files.replica()
        note = known.note if known is not None else None
        if note is None and not store.end_offset and not self._is_known_as_empty(epochs, known):
            note = Note(NoteKind.EMPTY, 0, 0)
        elif note is None and known is not None and self._may_have_lost_bytes(known):
            note = Note(NoteKind.LOST_TAIL, 0, 0)
        store_id = store.store_id if epochs is None else epochs.store_id
        if epochs is None and store.end_offset and self._files.is_restored:
            # It lacks what the original stored after the backup, and may have stored other messages since. Under the
            # original's id, these would look like bytes of epoch 0.
            note = note or Note(NoteKind.LOST_TAIL, 0, 0)
            store_id = str(uuid.uuid4())
        self._note = note
        history = () if epochs is None else trimmed(epochs.history, store.end_offset)
        # A snapshot states nothing beyond what was confirmed.
        confirmed = store.recovery.snapshot_end if history else 0
        return LogState(
            store_id,
            history,
            store.end_offset,
            store.flushed_offset,
            min(confirmed, store.end_offset),
            note,
            store.min_offset,
            was_killed=not store.recovery.clean,
        )

    def _is_known_as_empty(self, epochs: Epochs | None, known: KnownReplica | None) -> bool:
        """Whether nothing was ever stored in the log: the volume is not a new one, which lacks what was confirmed."""
        if known is None or epochs is None or self._broker.store.recovery.corrections:
            return False
        return all(not each.start for each in epochs.history)

    def _may_have_lost_bytes(self, known: KnownReplica) -> bool:
        """Whether bytes that the previous process acknowledged may be missing."""
        recovery = self._broker.store.recovery
        if not recovery.clean and known.boot_id != boot_id():
            # What the kernel had not written yet is gone.
            return Acknowledge.APPENDED in (known.acknowledge, self.settings.acknowledge)
        return any(correction.what in _LOG_SHORTENED for correction in recovery.corrections)

    def problems(self) -> list[str]:
        """Return the reasons why this member is not ready, as sentences."""
        member = self.driver.member
        if self.driver.failure:
            return [self.driver.failure]
        if member.problem:
            return [member.problem]
        if member.role is Role.MASTER:
            problems = [] if self._may_store else [f"fewer than {self.settings.min_in_sync} members are in sync"]
            unpublished = self._endpoints.problem if self._endpoints is not None else ""
            return [*problems, unpublished] if unpublished else problems
        if member.is_counted:
            return []
        problem = self.driver.register_problem or self.driver.append_problem
        if problem:
            return [f"this replica is not in sync: {problem}"]
        return [f"this replica is not in sync with the master {member.master}" if member.master else "no master"]

    @property
    def log_id(self) -> str:
        """Id of the log, which all members of the group share."""
        return self.driver.member.log.store_id

    @property
    def is_master(self) -> bool:
        """Whether this member acts as the broker of the group."""
        return self.driver.member.role is Role.MASTER

    @property
    def is_bypassed(self) -> bool:
        """Whether new connections of clients reach another member, by the address that all members share."""
        return self._endpoints is not None and not self.is_master

    # Life cycle

    async def start(self) -> None:
        """Connect to the other members, and take part."""
        self._broker.set_replicated(self.driver.member.log.confirmed)
        # With the note: a clean stop before the member has recorded it again would hide its cause.
        await asyncio.get_running_loop().run_in_executor(
            None, self._files.write_replica, self._note, self.settings.acknowledge
        )
        self.links.start()
        self.driver.start()
        self.registration.start()

    async def hand_over(self) -> None:
        """Let a replica take over before the process ends, if this member is the master.

        Waits up to 4 s, for a replica in sync to connect as well. Without replicas in sync, it returns immediately.
        """
        self._is_ending = True
        ends_at = time.monotonic() + HAND_OVER_S
        while self.is_master and time.monotonic() < ends_at:
            targets = self.driver.member.in_sync() - {self.name}
            if not targets:
                return
            if not self._is_held:
                self._order_switchover(targets)
            await asyncio.sleep(0.05)

    def _order_switchover(self, targets: AbstractSet[str]) -> None:
        """Hand over to one of these members, if one of them is connected."""
        replicas = self.driver.member.replicas()
        for target in sorted(targets):
            if target in replicas and replicas[target].is_connected:
                _logger.info("handing over to %s", target)
                self.driver.order(SwitchOver(target, self.driver.member.epoch))
                return

    async def linger(self) -> None:
        """Hold requests before this process ends until their clients reach the new master by the shared address.

        A client whose connection is reset earlier would be refused by this member, and spend its retries. A process
        that executes itself again keeps its ports open instead.
        """
        if self._is_held and not (self.is_master or self._is_restarting or self._endpoints is None):
            await asyncio.sleep(LINGER_S)

    async def stop(self) -> None:
        """Take part no longer."""
        await self.registration.stop()
        await self.driver.stop()
        if self._endpoints is not None:
            await self._endpoints.stop()
        await self.links.stop()

    @property
    def is_held(self) -> bool:
        """Whether requests are held for a switchover."""
        return self._is_held

    def apply(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self.driver.member.limit_catch_up(config.ha_max_bytes_per_second)
        if config.members:
            self.set_members(config.members)

    def set_members(self, members: Mapping[str, Address]) -> None:
        """Replace the members, after a change of the settings."""
        if members == self.members:
            return
        self.members = dict(members)
        self._number_members()
        self.links.set_members(members)
        self.driver.handle(MembersListed(frozenset(members)))

    def flushed(self) -> None:
        """Note that more of the log is on disk."""
        self.driver.flushed()

    def _flush_soon(self) -> None:
        if self.settings.acknowledge is Acknowledge.FLUSHED:
            self._server.flushing.request()

    # Host of the driver

    def lead(self, epoch: int) -> None:
        """Act as the broker of the group."""
        if self._endpoints is not None:
            self._endpoints.publish(epoch)
        self._broker.store.pins.hold("replicas", self._needed_by_replicas, gives_way=True)
        self._tables.lead(epoch)
        self._broker.replicate(waits=self.settings.waits_for_replicas)
        self._broker.store.watch_appends(lambda: self.driver.grown())
        self.registration.leave()
        self._server.lead(*self._claim())
        self.driver.grown()

    def _needed_by_replicas(self) -> int | None:
        """Return the oldest offset that connected replicas have yet to receive; None if retention does not matter.

        A replica that lacks more than `haPinMaxBytes` has to receive the whole log again.
        """
        store = self._broker.store
        oldest = max(store.end_offset - self._broker.config.ha_pin_max_bytes, store.min_offset)
        replicas = self.driver.member.replicas().values()
        needed = [each.acknowledged for each in replicas if each.is_connected and each.acknowledged >= oldest]
        return min(needed, default=None)

    def stop_leading(self, reason: str) -> None:
        """Store nothing more, and restart as a replica."""
        self._broker.store.follow(follows=True)
        self._server.stop_leading()
        self.restart(reason)

    def hold(self, held: bool) -> None:
        """Store nothing new, or continue."""
        if held:
            self._tables.send_offsets()  # the target receives them before it takes over
        self._is_held = held
        self._refuse_if_necessary()
        self._server.hold(held=held)

    def set_in_sync(self, members: frozenset[str], *, may_store: bool) -> None:
        """Take note of the members in sync, and whether these suffice to store messages."""
        _logger.info("members in sync: %s", ", ".join(sorted(members)))
        self._may_store = may_store
        self._server.flushing.in_sync = len(members)
        self._server.flushing.min_in_sync = self.settings.min_in_sync
        self._refuse_if_necessary()

    def _refuse_if_necessary(self) -> None:
        """Set why the store accepts nothing, if there is a reason."""
        refusal = ""
        if self._is_held:
            refusal = "the broker is about to hand over to a replica: try again"
        elif not self._may_store:
            refusal = f"fewer than {self.settings.min_in_sync} members of the group are in sync: try again"
        self._broker.store.refuse_all(refusal)

    def confirm(self, offset: int) -> None:
        """Let readers read up to an offset, and send the responses that waited for it."""
        self._broker.set_replicated(offset)
        self._server.flushing.replicated()

    def cut(self, offset: int) -> None:
        """Restart with a log that ends at an offset."""
        reason = f"the log diverges from the master's at offset {offset}, and is cut there"
        self.restart(reason, partial(cut, self._broker.store.path, offset))

    def discard(self, reason: str) -> None:
        """Restart with an empty log."""
        self.restart(f"the log is discarded: {reason}", partial(discard, self._broker.store.path))

    def _rebuild(self, deleted: Mapping[str, int]) -> None:
        """Restart with queues that are built again, without the records of other deleted topics."""
        self.driver.halt()
        reason = "other topics were deleted than those that the master deleted: the queues are built again"
        self.restart(reason, partial(rebuild, self._broker.store.path, dict(deleted)))

    def store_failed(self, reason: str) -> None:
        """Restart with a note, so that the other members take over: the disk may lack what it accepted."""
        note = self.driver.member.log.note
        if note is None and self.settings.acknowledge is Acknowledge.APPENDED:
            note = Note(NoteKind.LOST_TAIL, 0, 0)
        self.restart(reason, partial(self._files.write_replica, note, self.settings.acknowledge))

    def restart(self, reason: str, action: Callable[[], None] | None = None) -> None:
        """Restart the process, after an action on the closed store."""
        if not (self._is_restarting or (self._is_ending and action is None)):
            self._is_restarting = True
            _logger.warning("restarting as a replica: %s", reason)
            self._restart_process(reason, action)
