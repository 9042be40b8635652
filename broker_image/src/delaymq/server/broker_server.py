"""A broker with its ports: connections, held pulls, flushing, delivery, background jobs, registration, HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import time
import uuid
from time import monotonic
from types import GeneratorType
from typing import TYPE_CHECKING, Final

from delaymq import clock
from delaymq.broker.broker import Broker
from delaymq.broker.opening import open_broker
from delaymq.broker.processors.table import refusal
from delaymq.broker.requests.results import Deferred, Held, LinkRequest, Listing, RelayedRequests, TimeSliced
from delaymq.config import BrokerConfig
from delaymq.config.running import RunningSettings
from delaymq.protocol.codes import PULL_CODES, RequestCode
from delaymq.protocol.command import Command, Response, encode_response
from delaymq.server.audit.auditing import AuditedCommand, BrokerAuditing
from delaymq.server.audit.opening import AUDIT_INTERVAL_MS, audit_log
from delaymq.server.audit.requests import BROKER_CHANGES
from delaymq.server.broker_jobs import BrokerJobs
from delaymq.server.ha.plain_slave import PlainSlave
from delaymq.server.ha.slaves import PlainSlaves
from delaymq.server.http.loader import load
from delaymq.server.jobs.background import Background, Job
from delaymq.server.jobs.delivery_timer import DeliveryTimer
from delaymq.server.jobs.drain_lease import DrainLease
from delaymq.server.listening import BACKLOG, Ports, port_of
from delaymq.server.logs.output import LevelFollower
from delaymq.server.long_requests import LongRequests
from delaymq.server.registration import GroupClaim, Registration
from delaymq.server.replication.member_files import refuse_members_store
from delaymq.server.requests.client_requests import ClientRequests
from delaymq.server.requests.client_session import ClientSession
from delaymq.server.requests.file_writes import FileWriter
from delaymq.server.requests.flow_control import FlowControl
from delaymq.server.requests.flushing import Flushing
from delaymq.server.requests.held_requests import HeldRequests
from delaymq.server.requests.listings import Listings, Pages
from delaymq.server.requests.long_polling import HeldPulls
from delaymq.server.requests.plain_sends import MAX_REQUESTS, plain_sends
from delaymq.server.requests.redirection import Redirection
from delaymq.server.requests.replies import reply, unsendable
from delaymq.server.requests.sessions import SERVER_LIMITS, Sessions
from delaymq.server.resources import descriptor_end, raise_descriptor_limit
from delaymq.server.tls.server_tls import ServerTls
from delaymq.transport import RemotingConnection
from delaymq.transport.buffer_budget import BufferBudget
from delaymq.transport.connection import OnCommands, refuse_all
from delaymq.transport.fair_queue import FairQueue

if TYPE_CHECKING:
    from delaymq.server.http.http_server import HttpServer
    from delaymq.server.http.sign_in.accounts import HttpAccounts
    from delaymq.server.replication.links import Links
    from delaymq.server.replication.replica import Replica

DRAIN_TIMEOUT_S: Final = 3.0
"""Maximum wait at shutdown for clients to receive their last responses."""
READ_ONLY: Final = 4

_logger = logging.getLogger(__name__)


class BrokerServer:
    """Broker of a process, possibly next to a NameServer. Call `open`, `start`, then `stop`, once each."""

    def __init__(self, broker: Broker, tls: ServerTls, ports: Ports, descriptor_limit: int) -> None:
        """Create a server; use `open` instead."""
        self.config = config = broker.config
        self.broker = broker
        self.tls = tls
        self.port = port_of(ports.main)
        self.fast_port = port_of(ports.fast) if ports.fast is not None else None
        self.ports_open = False
        self.inner_http_token = ""
        self.decommissioned = False
        self.boot_id = uuid.uuid4().hex
        """Random id of this start."""
        self.start_seconds = 0.0
        self.sessions = Sessions(
            config.max_connections,
            config.channel_idle_ms,
            self._session_closed,
            max_per_address=config.max_connections_per_address,
            descriptor_end=descriptor_end(descriptor_limit, config.max_connections),
        )
        self.buffers = BufferBudget(config.max_buffered_bytes)
        self.held_pulls = HeldPulls(reply, max_bytes=config.max_held_pull_bytes, access=broker.access)
        self.flushing = Flushing(broker.store, lambda: broker.config.flush_interval_commit_log, reply, self._flushed)
        self.client_requests = ClientRequests(reply, self.flushing.wait)
        self.long_requests = LongRequests(broker, self.flushing.wait)
        self.listings = Listings(self._load_pending_pages, broker.guarded)
        self.flow = FlowControl(broker, self.flushing, reply)
        self.clock = DeliveryTimer(
            broker.delivery, self._hand_over, broker.now_ms, lambda: broker.config.timer_clock_step_ms
        )
        self.registration = Registration(broker, config.name_servers)
        self.draining = DrainLease(broker, self.registration.register_soon)
        auditing = Job(name="audit", interval_ms=lambda: AUDIT_INTERVAL_MS, run=lambda: self.auditing.log.task())
        jobs = BrokerJobs(broker, self.held_pulls, self.sessions).jobs()
        self.background = Background([self.flow.job(), auditing, *jobs])
        self.links: Links | None = None
        """Links to the other members of the group; None without replication."""
        self.replica: Replica | None = None
        """Replication, to be set before the start of a server that was opened as a replica."""
        self.plain_slave: PlainSlave | None = None
        """Following of a master over RocketMQ's HA protocol."""
        if config.is_plain_slave:
            self.plain_slave = PlainSlave(broker, self.flushing.flush)
        self.plain_slaves: PlainSlaves | None = None
        if ports.ha is not None:
            broker.ha_port = port_of(ports.ha)
            self.plain_slaves = PlainSlaves(broker.store, lambda: broker.config, ports.ha)
        self.auditing = BrokerAuditing(broker, audit_log(config, config.broker_name, broker.now_ms))
        self._redirection = Redirection()
        self._plain_sends = plain_sends(broker)
        self._held: HeldRequests | None = None
        """Requests that arrive while another member takes over."""
        self._ports = ports
        self._fair_queue = FairQueue()
        self._file_writer = FileWriter(reply, broker.guarded)
        self._log_level = LevelFollower(config.log_level)
        self.http_accounts: HttpAccounts | None = None
        """Accounts on HTTP; None without access control, or before HTTP is served."""
        self._http: HttpServer | None = None
        self._servers: list[asyncio.AbstractServer] = []
        broker.on_settings = self._settings_changed
        if broker.access is not None:
            broker.access.rules.on_changed = self._rules_changed
        broker.watch_arrivals(self.held_pulls.arrived, self.held_pulls.queues, self.held_pulls.property_queues)

    # Life cycle

    @classmethod
    def open(
        cls,
        config: BrokerConfig,
        settings: RunningSettings[BrokerConfig] | None = None,
        *,
        http: bool = True,
        follows: bool = False,
        inner_http_token: str = "",
    ) -> BrokerServer:
        """Bind and recover; raise ServerError, StoreError or AccessError, with nothing left open.

        `follows`: the broker is a member of a group, and does not act before `lead`. A plain slave never does.
        `inner_http_token`: HTTP is for the supervisor of this process, on loopback with this token.
        """
        began = time.monotonic()
        if not (follows or config.read_only):
            refuse_members_store(config.store_path)
        ports = Ports.bind(config, http=http, inner=bool(inner_http_token))
        broker = None
        try:
            descriptor_limit = raise_descriptor_limit()
            tls = ServerTls(config, (config.broker_ip1,))
            broker = open_broker(
                config,
                clock.now_ms,
                port=port_of(ports.main),
                settings=settings,
                follows=follows or config.is_plain_slave,
            )
            server = cls(broker, tls, ports, descriptor_limit)
            server.inner_http_token = inner_http_token
        except BaseException:
            if broker is not None:
                broker.store.abandon()
            ports.close()
            raise
        server.start_seconds = time.monotonic() - began
        return server

    async def start(self) -> None:
        """Listen and register."""
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        await self._listen(loop, self._ports.main, self._on_commands)
        if self._ports.fast is not None:
            await self._listen(loop, self._ports.fast, self._on_fast_commands)
        self.ports_open = True
        self.start_seconds += time.monotonic() - began
        self.tls.start()
        self.sessions.start()
        self.flushing.start()
        self.background.start()
        if self.replica is not None:
            self.use_links(self.replica.links)
            await self.replica.start()
        elif self.plain_slave is not None:
            self.plain_slave.start()
        else:
            self.lead()
        if self._ports.http is not None:
            # HTTP libraries are loaded after clients are served.
            module = await load("delaymq.server.api.app")
            self._http = await module.broker_http(self, self._ports.http)
        self.flow.begin()

    def use_links(self, links: Links) -> None:
        """Accept links of other members of the group."""
        self.links = links
        self.sessions.admit_links(self._on_commands)

    def lead(self, epoch: int = 0, tokens: tuple[str, ...] = ()) -> None:
        """Deliver delayed messages, register with the NameServers, and accept plain slaves.

        As master of a group, with its epoch.
        """
        self.registration.group = GroupClaim(epoch, tokens)
        self.clock.start()
        self.registration.start(insists=epoch > 0)
        if self.plain_slaves is not None:
            self.plain_slaves.start()

    def pass_on_ports(self) -> None:
        """Let the ports stay open while this process executes itself again. Call it before `stop`."""
        self._ports.pass_on(self.config.listen_host)

    def stop_leading(self) -> None:
        """Register no longer: another member of the group may have registered as the master."""
        self.registration.withdraw()

    def hold(self, *, held: bool) -> None:
        """Hold all requests, or handle those that were held."""
        if held:
            self._held = self._held or HeldRequests(reply)
            return
        waiting, self._held = self._held, None
        for connection, commands in waiting.taken() if waiting is not None else ():
            self._on_commands(connection, commands)

    def _flushed(self) -> None:
        self.broker.announce_arrivals()
        if self.replica is not None:
            self.replica.flushed()

    async def _load_pending_pages(self) -> Pages:
        pages: Pages = (await load("delaymq.server.api.listing")).PendingPages(self)
        return pages

    def _settings_changed(self, config: BrokerConfig) -> None:
        self._log_level(config)
        self.flow.apply(config)
        if self.replica is not None:
            self.replica.apply(config)

    def _rules_changed(self) -> None:
        self.held_pulls.review()
        if self.http_accounts is not None:
            self.http_accounts.review()
        if self.broker.access is not None:
            for session_id in self.broker.access.orphans():
                self.sessions.close(session_id)

    async def _listen(self, loop: asyncio.AbstractEventLoop, bound: socket.socket, on_commands: OnCommands) -> None:
        def accepted() -> RemotingConnection:
            return RemotingConnection(
                on_commands,
                on_bytes=self._on_bytes if self._plain_sends is not None else None,
                on_opened=self.sessions.opened,
                on_closed=self.sessions.closed,
                limits=SERVER_LIMITS,
                budget=self.buffers,
                fair_queue=self._fair_queue,
                tls=self.tls.accepting,
            )

        self._servers.append(await loop.create_server(accepted, sock=bound, backlog=BACKLOG))

    @property
    def http_port(self) -> int | None:
        """HTTP port; None without HTTP."""
        return self._http.port if self._http is not None else None

    @property
    def http_connections(self) -> int:
        """Number of open HTTP connections."""
        return self._http.connections if self._http is not None else 0

    @property
    def log_id(self) -> str:
        """Id of the log: the store's, or that of the group."""
        return self.broker.store.store_id if self.replica is None else self.replica.log_id

    def not_ready(self) -> list[str]:
        """Return the reasons why the broker is not ready, as sentences; empty if it is ready."""
        problems = []
        if not self.ports_open:
            problems.append("the ports are not open")
        if self.broker.store.failure is not None:
            problems.append(str(self.broker.store.failure))
        if self.replica is not None:
            problems += self.replica.problems()
            if not self.replica.is_master:
                return problems
        if self.plain_slave is not None:
            return problems + self.plain_slave.problems()
        if not self.registration.is_registered:
            problems += [f"NameServer {link.address}: {link.problem}" for link in self.registration.links]
        return problems

    def decommission(self) -> None:
        """Take the broker out of service: reject writes and advertise read-only routes; pulls and deliveries continue.

        The next `stop` unregisters it.
        """
        self.decommissioned = True
        self.broker.writable = False
        self.broker.apply(dataclasses.replace(self.broker.config, broker_permission=READ_ONLY))
        self.registration.register_soon()

    async def stop(self) -> None:
        """Drain and close everything: flush the log, answer requests waiting for it, and write the files."""
        broker = self.broker
        if self.replica is not None:
            await self.replica.hand_over()
            await self.replica.linger()
        broker.freeze()
        self.sessions.stop_reading()
        self.draining.stop()
        self.clock.stop()
        if self.replica is not None:
            await self.replica.stop()
        if self.plain_slave is not None:
            await self.plain_slave.stop()
        for server in self._servers:
            server.close()
        self.tls.stop()
        self.ports_open = False
        if self.decommissioned:
            await self.registration.unregister()
        self.held_pulls.close()
        self.client_requests.close()
        await self.listings.stop()
        await self._file_writer.stop()
        await self.flushing.stop()
        broker.announce_arrivals()
        await self.sessions.close_all(DRAIN_TIMEOUT_S)
        await self.background.stop()
        if self.plain_slaves is not None:
            await self.plain_slaves.stop()
        if self._http is not None:
            await self._http.stop()
        broker.on_arrival = None
        self.auditing.log.close()
        broker.close()
        await self.registration.stop()

    # Requests

    def _on_commands(self, connection: RemotingConnection, commands: list[Command]) -> None:
        session = connection.session
        if not isinstance(session, ClientSession):
            return  # rejected because of too many connections, and being closed
        if self._held is not None:
            commands = self._held.hold(connection, session, commands)
            if not commands:
                return
        if self.replica is not None and self.replica.is_bypassed:
            commands = self._redirection.take(session, commands)
        broker, flow, flushing = self.broker, self.flow, self.flushing
        if broker.access is not None and session.certificate_name:
            for command in commands:
                broker.access.name_account(session, command)
        began = monotonic()
        if (
            began >= flow.suspicious_at
            or began >= flushing.busy_at
            or (broker.answers_wait and flushing.waiting + len(commands) > flushing.capacity)
            or (connection.deferred_since and began >= connection.deferred_since + flow.patience_s)
        ):
            commands = flow.reject_stale(session, commands, began)
        handle = broker.handle
        send = connection.send
        rest = iter(commands)
        for command in rest:
            if command.code in BROKER_CHANGES:
                command, result = self.auditing.handle(session, command)
            else:
                result = handle(session, command)
            if type(result) is Response and type(command) is AuditedCommand:
                reply(session, command, result)
            elif type(result) is Response:
                try:
                    send(encode_response(command, result))
                except ValueError as error:
                    send(encode_response(command, unsendable(error)))
            elif type(result) is Deferred:
                self.flushing.wait(session, command, result)
            elif type(result) is Held:
                self.held_pulls.hold(session, command, result)
            elif type(result) is RelayedRequests:
                self.client_requests.relay(session, command, result)
            elif type(result) is GeneratorType:
                self._file_writer.submit(session, command, result)
            elif type(result) is TimeSliced:
                self.long_requests.begin(connection, session, command, result, list(rest))
            elif type(result) is Listing:
                self.listings.begin(session, command, result)
            elif type(result) is LinkRequest:
                self._link(session, command)
        took_s = monotonic() - began
        if session.usage is not None:
            session.usage.spent(session, took_s)
        if took_s >= flow.blocked_s:
            flow.note_stall([command.code for command in commands])

    def _on_bytes(self, connection: RemotingConnection, data: bytes) -> int:
        """Store the plain sends and ends of transactions at the start of received bytes; return their size.

        All others are left to `_on_commands`, as are all while one of its checks may reject or hold them.
        """
        session, flow = connection.session, self.flow
        began, waits_since = monotonic(), connection.deferred_since
        if not isinstance(session, ClientSession):
            return 0
        is_plain = (
            self._held is None
            and (self.replica is None or not self.replica.is_bypassed)
            and began < flow.suspicious_at
            and began < self.flushing.busy_at
            and not (self.broker.answers_wait and self.flushing.waiting + MAX_REQUESTS > self.flushing.capacity)
            and not (waits_since and began >= waits_since + flow.patience_s)
        )
        if not is_plain or self._plain_sends is None:
            return 0
        size, responses, count = self._plain_sends.store(session, data)
        if size:
            if session.usage is not None:
                session.usage.spent(session, monotonic() - began)
            if responses and self.broker.answers_wait:
                self.flushing.wait_together(connection, responses, count, self.broker.deferred_success())
            elif responses:
                connection.send(responses)
            if monotonic() - began >= flow.blocked_s:
                flow.note_stall([RequestCode.SEND_MESSAGE_V2])
        return size

    def _on_fast_commands(self, connection: RemotingConnection, commands: list[Command]) -> None:
        pulls = [command for command in commands if command.code in PULL_CODES]
        if pulls:
            refuse_all(connection, pulls)
            commands = [command for command in commands if command.code not in PULL_CODES]
        self._on_commands(connection, commands)

    def _link(self, session: ClientSession, command: Command) -> None:
        if self.links is None:
            reply(session, command, refusal(command.code))
        elif self.links.handle(session.connection, command):
            self.sessions.linked(session)

    def _hand_over(self, now_ms: int, budget: int) -> int:
        count = self.broker.hand_over(now_ms, budget)
        if count and self.broker.waits_for_flush:
            # Consumers see a copy only when it is durable.
            self.flushing.request()
        return count

    def _session_closed(self, session: ClientSession) -> None:
        self.held_pulls.session_closed(session)
        if self.links is not None:
            self.links.closed(session.id)
        self.broker.session_closed(session)
