"""Supervisor of several broker groups: a process for each group, the NameServer of standalone, and HTTP.

The supervisor has no store and receives no messages, so it has little that can fail. When it ends, the kernel kills
the groups, whose stores recover at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from os import getpid
from typing import TYPE_CHECKING, Final

from delaymq import clock
from delaymq.access.errors import AccessError
from delaymq.config import BrokerConfig, NamesrvConfig
from delaymq.config.running import RunningSettings
from delaymq.server.audit.opening import audit_log
from delaymq.server.errors import ServerError
from delaymq.server.groups.group_process import GroupProcess
from delaymq.server.groups.handoff import Handoff
from delaymq.server.http.loader import load
from delaymq.server.listening import bind, port_of
from delaymq.server.namesrv_server import NamesrvServer
from delaymq.server.resources import raise_descriptor_limit
from delaymq.server.standalone import with_own_name_server
from delaymq.server.tls.server_tls import ServerTls

if TYPE_CHECKING:
    from delaymq.broker.access.rules import Rules
    from delaymq.server.http.http_server import HttpServer

SUPERVISOR: Final = "supervisor"
"""Name of a supervisor in the audit log."""
RULES_INTERVAL_S: Final = 2.0
"""Interval between checks for changed rules, which end sessions; each group checks its own."""
_EXIT_FAILED: Final = 70

_logger = logging.getLogger(__name__)


class Supervisor:
    """Groups of one machine. Call `start`, then `stop`, once each."""

    def __init__(
        self,
        config: BrokerConfig,
        groups: Sequence[dict[str, str]],
        command: Sequence[str],
        on_failed: Callable[[int], None],
        namesrv: tuple[NamesrvConfig, RunningSettings[NamesrvConfig]] | None = None,
    ) -> None:
        """`groups` are the settings of each group that differ from `config`, the settings of the first one.

        `command` starts a group when `--group` with its number is added. `on_failed` is called with an exit code if
        the first start of a group fails.
        """
        self.config = config
        self.http_token = secrets.token_urlsafe(32)
        """Token of the groups' HTTP servers."""
        self.audit = audit_log(config, SUPERVISOR, clock.now_ms, "supervisor")
        """Requests that this process refuses; the groups record all others."""
        self.namesrv = None if namesrv is None else NamesrvServer(*namesrv)
        self.groups = [
            GroupProcess(
                keys["brokerName"],
                [*command, "--group", str(number)],
                lambda keys=keys: self._handoff(keys),  # type: ignore[misc]
                self._started,
            )
            for number, keys in enumerate(groups)
        ]
        self.tls: ServerTls
        """TLS of the HTTP port; set by `start`."""
        self.rules: Rules | None = None
        """Rules of the groups, by which accounts sign in; None without access control."""
        self.is_stopping = False
        self._shared_keys: dict[str, str] = {}
        self._on_failed = on_failed
        self._tasks: list[asyncio.Task[None]] = []
        self._reloading: asyncio.Task[None] | None = None
        self._http: HttpServer | None = None

    async def start(self) -> None:
        """Open the ports of this process and start the groups' processes; raise ServerError or NamesrvError."""
        raise_descriptor_limit()
        if self.config.acl_enable:
            self.rules = await self._load_rules()
        bound = bind(self.config.http_host, self.config.http_port, "the HTTP port")
        try:
            self.tls = ServerTls(self.config)
            if self.namesrv is not None:
                await self.namesrv.start(http=False)
        except BaseException:
            bound.close()
            raise
        if self.tls.for_http is not None:
            self.tls.start()
        self._shared_keys = self._keys_of_all(bound)
        self._tasks = [asyncio.create_task(self._keep(group)) for group in self.groups]
        if self.rules is not None:
            self._reloading = asyncio.create_task(self._reload(self.rules))
        module = await load("delaymq.server.groups.front")  # while the groups start
        self._http = await module.front_http(self, bound)

    async def stop(self) -> None:
        """Stop the groups, then the NameServer and HTTP."""
        self.is_stopping = True
        if self._reloading is not None:
            self._reloading.cancel()
        for group in self.groups:
            group.stop()
        await asyncio.gather(*self._tasks)
        if self.namesrv is not None:
            await self.namesrv.stop()
        if self._http is not None:
            await self._http.stop()
        self.tls.stop()
        self.audit.close()

    @property
    def http_port(self) -> int | None:
        """HTTP port; None before it is open."""
        return self._http.port if self._http is not None else None

    def _keys_of_all(self, http: socket.socket) -> dict[str, str]:
        """Return settings of all groups: the HTTP interface at which they are reached, and their NameServers."""
        keys = {"httpHost": self.config.http_host, "httpPort": str(port_of(http))}
        if self.namesrv is not None:
            keys["namesrvAddr"] = with_own_name_server(self.config.namesrv_addr, self.namesrv)
        return keys

    async def _load_rules(self) -> Rules:
        from delaymq.broker.access.rules import Rules  # most servers have no accounts

        try:
            return await asyncio.to_thread(Rules, self.config.acl_path, clock.now_ms)
        except AccessError as error:
            raise ServerError(str(error)) from error

    async def _reload(self, rules: Rules) -> None:
        """Load changed rule files, like each group."""
        while True:
            await asyncio.sleep(RULES_INTERVAL_S)
            try:
                task = rules.reload_task()
                await asyncio.to_thread(task.run)
                task.finish()
            except Exception:
                _logger.exception("cannot reload the rules of access control")

    def _handoff(self, keys: dict[str, str]) -> Handoff:
        return Handoff(getpid(), self.http_token, {**self._shared_keys, **keys})

    def _started(self) -> None:
        if all(group.report is not None for group in self.groups):
            _logger.info("all %d broker groups run", len(self.groups))

    async def _keep(self, group: GroupProcess) -> None:
        try:
            code = await group.run()
        except Exception:
            _logger.exception("the supervision of broker %s failed", group.name)
            code = _EXIT_FAILED
        if not self.is_stopping:
            _logger.error("broker %s could not be started: stopping all groups", group.name)
            self._on_failed(code if code > 0 else _EXIT_FAILED)
