"""A NameServer with its listening port."""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from delaymq import clock
from delaymq.config import NamesrvConfig
from delaymq.config.running import RunningSettings
from delaymq.namesrv import NameServer, open_name_server
from delaymq.protocol.command import Command, Response
from delaymq.server.audit.namesrv import NamesrvAuditing
from delaymq.server.audit.opening import AUDIT_INTERVAL_MS, audit_log
from delaymq.server.audit.requests import NAMESRV_CHANGES
from delaymq.server.http.loader import load
from delaymq.server.jobs.background import Background, Job
from delaymq.server.listening import BACKLOG, bind, port_of
from delaymq.server.logs.output import LevelFollower
from delaymq.server.requests.client_session import ClientSession
from delaymq.server.requests.file_writes import FileWriter
from delaymq.server.requests.replies import reply
from delaymq.server.requests.sessions import SERVER_LIMITS, Sessions
from delaymq.server.resources import descriptor_end, raise_descriptor_limit
from delaymq.server.tls.server_tls import ServerTls
from delaymq.transport import RemotingConnection
from delaymq.transport.buffer_budget import BufferBudget
from delaymq.transport.fair_queue import FairQueue

if TYPE_CHECKING:
    from delaymq.server.http.http_server import HttpServer

DRAIN_TIMEOUT_S: Final = 2.0
MIN_WAIT_MS: Final = 10
RULES_INTERVAL_MS: Final = 2_000
"""Interval between checks for changed rules, as on a broker."""

_logger = logging.getLogger(__name__)


class NamesrvServer:
    """NameServer of a process, possibly next to a broker. Call `start`, then `stop`, once each."""

    def __init__(self, config: NamesrvConfig, settings: RunningSettings[NamesrvConfig] | None = None) -> None:
        self.config = config
        self._settings = settings or RunningSettings(NamesrvConfig)
        self.namesrv: NameServer
        """Set by `start`."""
        self.auditing: NamesrvAuditing
        """Set by `start`."""
        self.tls: ServerTls
        """Set by `start`."""
        self._http: HttpServer | None = None
        self._background: Background | None = None
        """Syncs of the audit log, and checks for changed rules; None before the start."""
        self._expiry: asyncio.TimerHandle | None = None

    async def start(self, *, http: bool = True) -> None:
        """Bind and listen; raise ServerError or NamesrvError, with nothing left open."""
        config = self.config
        bound = bind(config.listen_host, config.listen_port, "the NameServer's port")
        http_bound = None
        try:
            if http and config.http_port:
                http_bound = bind(config.http_host, config.http_port, "the NameServer's HTTP port", beside=(bound,))
            descriptor_limit = raise_descriptor_limit()
            self.tls = ServerTls(config, (config.listen_host,))
            self.namesrv = open_name_server(config, clock.now_ms, clock.steady_ms, self._settings)
            self.namesrv.on_settings = LevelFollower(config.log_level)
            self.auditing = NamesrvAuditing(self.namesrv, audit_log(config, "namesrv", clock.now_ms))
        except BaseException:
            bound.close()
            if http_bound is not None:
                http_bound.close()
            raise
        self.port = port_of(bound)
        self.sessions = Sessions(
            config.max_connections,
            config.channel_idle_ms,
            self._session_closed,
            descriptor_end=descriptor_end(descriptor_limit, config.max_connections),
        )
        self._file_writer = FileWriter(reply, self.namesrv.guarded)
        self._loop = asyncio.get_running_loop()
        self.buffers = BufferBudget(config.max_buffered_bytes)
        fair_queue = FairQueue()

        def accepted() -> RemotingConnection:
            return RemotingConnection(
                self._on_commands,
                on_opened=self.sessions.opened,
                on_closed=self.sessions.closed,
                limits=SERVER_LIMITS,
                budget=self.buffers,
                fair_queue=fair_queue,
                tls=self.tls.accepting,
            )

        self._server = await self._loop.create_server(accepted, sock=bound, backlog=BACKLOG)
        self.tls.start()
        self.sessions.start()
        self._expire()
        jobs = [Job(name="audit", interval_ms=lambda: AUDIT_INTERVAL_MS, run=self.auditing.log.task)]
        rules = self.namesrv.rules
        if rules is not None:
            jobs.append(Job(name="rules", interval_ms=lambda: RULES_INTERVAL_MS, run=rules.reload_task))
        self._background = Background(jobs)
        self._background.start()
        if http_bound is not None:
            module = await load("delaymq.server.namesrv_http")  # loaded after clients are served
            self._http = await module.namesrv_http(self, http_bound)

    @property
    def http_port(self) -> int | None:
        """HTTP port; None without HTTP."""
        return self._http.port if self._http is not None else None

    async def stop(self) -> None:
        """Close the port and the connections."""
        if self._expiry is not None:
            self._expiry.cancel()
        if self._background is not None:
            await self._background.stop()
        self._server.close()
        self.tls.stop()
        self.sessions.stop_reading()
        await self._file_writer.stop()
        await self.sessions.close_all(DRAIN_TIMEOUT_S)
        self.auditing.log.close()
        if self._http is not None:
            await self._http.stop()

    def _on_commands(self, connection: RemotingConnection, commands: list[Command]) -> None:
        session = connection.session
        if not isinstance(session, ClientSession):
            return
        for each in commands:
            command = self.auditing.audited(session, each) if each.code in NAMESRV_CHANGES else each
            result = self.namesrv.handle(session, command)
            if isinstance(result, Response):
                reply(session, command, result)
            else:
                self._file_writer.submit(session, command, result)

    def _session_closed(self, session: ClientSession) -> None:
        self.namesrv.session_closed(session)
        self._plan_expiry()

    def _expire(self) -> None:
        for session_id in self.namesrv.expire():
            self.sessions.close(session_id)
        self._plan_expiry()

    def _plan_expiry(self) -> None:
        # Runs at regular intervals, and when a grace period ends.
        wait_ms = self.namesrv.config.scan_interval_ms
        next_ms = self.namesrv.next_expiry_ms()
        if next_ms is not None:
            wait_ms = min(wait_ms, max(next_ms - clock.now_ms(), MIN_WAIT_MS))
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = self._loop.call_later(wait_ms / 1000, self._expire)
