"""Server processes, called by the command line: start, log the addresses, wait for a signal, shut down cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol

import uvloop

from delaymq import kernels
from delaymq.config import BrokerConfig, NamesrvConfig
from delaymq.config.running import RunningSettings
from delaymq.server.logs import output as logs
from delaymq.throttled_log import fields
from delaymq.transport.addresses import host_and_port

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer
    from delaymq.server.groups.handoff import Handoff

EXIT_STOPPED: Final = 0
EXIT_CANNOT_START: Final = 1
EXIT_FAILED: Final = 70
"""Exit code for an unexpected error, which is logged."""

GC_THRESHOLDS: Final = (20_000, 20, 100)
"""Messages create no cycles, so full collections, which block the process, should be rare."""

FINAL_LOG_TIMEOUT_S: Final = 0.2
"""Time for flushing the log on a forced exit."""

_logger = logging.getLogger("delaymq")


class _Server(Protocol):
    async def stop(self) -> None: ...


Event = tuple[str, dict[str, object]]
"""Text and fields of a log line."""
Started = tuple[_Server, Callable[[], list[Event]]]
"""A started server, and a function that returns its log events."""


class Ending:
    """Means of a server to end its process."""

    def __init__(self) -> None:
        self.code = EXIT_STOPPED
        """Exit code of the process when the server has stopped."""
        self.stop: asyncio.Event | None = None
        """Event that ends the server; set when it starts."""

    def end(self, code: int) -> None:
        """Stop the server, and end the process with an exit code."""
        self.code = code
        if self.stop is not None:
            self.stop.set()


class Again(Ending):
    """Request of a server to execute its process again, with its arguments, when it has stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.is_requested = False
        self._action: Callable[[], None] | None = None

    def request(self, reason: str, action: Callable[[], None] | None) -> None:
        """Stop the server, perform an action on its closed store, and execute the process again."""
        self.is_requested, self._action = True, action
        self.end(EXIT_STOPPED)

    def execute(self) -> int:
        """Perform the action, and replace the process. Returns an exit code if the action fails."""
        try:
            if self._action is not None:
                self._action()
        except Exception as error:
            print(f"delaymq: cannot restart: {error}", file=sys.stderr)
            return EXIT_FAILED
        sys.stdout.flush()
        sys.stderr.flush()
        return os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def run_broker(
    config: BrokerConfig,
    *,
    http: bool = True,
    settings: RunningSettings[BrokerConfig] | None = None,
    notes: Sequence[str] = (),
    facts: Sequence[str] = (),
    handoff: Handoff | None = None,
) -> int:
    """Run a broker until a signal, and return the exit code; `notes` are logged as warnings, `facts` as info.

    `handoff`: that of the supervisor of this process.
    """
    logs.start_logs(config.log_format, config.log_level, config.broker_name if handoff is not None else "")
    from delaymq.server.broker_server import BrokerServer  # loaded only when needed

    again = Again()

    async def start() -> Started:
        if config.members:
            server = await _open_member(config, settings, again, http=http)
        else:
            token = handoff.http_token if handoff is not None else ""
            server = BrokerServer.open(config, settings, http=http, inner_http_token=token)
        await server.start()
        if handoff is not None:
            from delaymq.server.groups.handoff import Report

            Report(server.broker.address, server.http_port or 0).send()
        return server, lambda: _broker_events(server)

    code = _run(start, notes, facts, again)
    return again.execute() if again.is_requested and code == EXIT_STOPPED else code


async def _open_member(
    config: BrokerConfig, settings: RunningSettings[BrokerConfig] | None, again: Again, *, http: bool
) -> BrokerServer:
    """Open a broker that is a member of a group."""
    from delaymq.server.broker_server import BrokerServer
    from delaymq.server.replication.joining import endpoints_of, membership_of, register_of
    from delaymq.server.replication.replica import Replica

    membership, endpoints = membership_of(config), await endpoints_of(config)
    register = await register_of(config)
    try:
        server = BrokerServer.open(config, settings, http=http, follows=True)
    except BaseException:
        await register.close()
        if endpoints is not None:
            await endpoints.stop()
        raise

    def restart(reason: str, action: Callable[[], None] | None) -> None:
        if action is None:  # otherwise, it may take a while
            server.pass_on_ports()
        again.request(reason, action)

    server.replica = Replica(server, membership, register, restart, endpoints)
    return server


def run_namesrv(
    config: NamesrvConfig,
    *,
    http: bool = True,
    settings: RunningSettings[NamesrvConfig] | None = None,
    notes: Sequence[str] = (),
) -> int:
    """Run a NameServer until a signal, and return the exit code; `notes` are logged as warnings."""
    logs.start_logs(config.log_format, config.log_level)
    from delaymq.server.namesrv_server import NamesrvServer

    async def start() -> Started:
        server = NamesrvServer(config, settings)
        await server.start(http=http)
        return server, lambda: _namesrv_events(server)

    return _run(start, notes)


def run_standalone(
    broker_config: BrokerConfig,
    namesrv_config: NamesrvConfig,
    *,
    http: bool = True,
    settings: RunningSettings[BrokerConfig] | None = None,
    namesrv_settings: RunningSettings[NamesrvConfig] | None = None,
    notes: Sequence[str] = (),
    facts: Sequence[str] = (),
) -> int:
    """Run both in one process until a signal, and return the exit code; logging follows the broker's settings."""
    logs.start_logs(broker_config.log_format, broker_config.log_level)
    from delaymq.server.standalone import Standalone

    async def start() -> Started:
        server = Standalone(broker_config, namesrv_config, settings, namesrv_settings)
        await server.start(http=http)
        return server, lambda: _namesrv_events(server.namesrv) + _broker_events(server.broker)

    return _run(start, notes, facts)


def run_groups(
    config: BrokerConfig,
    groups: Sequence[dict[str, str]],
    command: Sequence[str],
    namesrv: tuple[NamesrvConfig, RunningSettings[NamesrvConfig]] | None = None,
    *,
    notes: Sequence[str] = (),
) -> int:
    """Run broker groups in a process each, and optionally a NameServer, until a signal; return the exit code.

    The arguments are those of Supervisor. Logging follows the settings of the first group.
    """
    logs.start_logs(config.log_format, config.log_level)
    from delaymq.server.groups.supervisor import Supervisor

    ending = Ending()

    async def start() -> Started:
        server = Supervisor(config, groups, command, ending.end, namesrv)
        await server.start()
        return server, lambda: _supervisor_events(server)

    return _run(start, notes, (), ending)


def _run(
    start: Callable[[], Awaitable[Started]],
    notes: Sequence[str],
    facts: Sequence[str] = (),
    ending: Ending | None = None,
) -> int:
    try:
        for note in notes:
            _logger.warning("%s", note)
        for fact in facts:
            _logger.info("%s", fact)
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        try:
            runner.run(_serve(start, ending))
        finally:
            # Closing needs one more thread, which may be unavailable; the loop is closed in any case.
            with contextlib.suppress(RuntimeError):
                runner.close()
    except _refusals_to_start() as error:
        _logger.error("cannot start: %s", error)
        return EXIT_CANNOT_START
    except Exception:
        _logger.exception("the server failed")
        return EXIT_FAILED
    finally:
        logs.stop_logs()
    return ending.code if ending is not None else EXIT_STOPPED


def _refusals_to_start() -> tuple[type[Exception], ...]:
    """Return the exceptions of servers that cannot start, imported only when needed."""
    from delaymq.access.errors import AccessError
    from delaymq.namesrv.errors import NamesrvError
    from delaymq.server.errors import ServerError
    from delaymq.store.errors import StoreError

    return ServerError, StoreError, NamesrvError, AccessError


async def _serve(start: Callable[[], Awaitable[Started]], ending: Ending | None) -> None:
    from delaymq.server.resources import started

    gc.set_threshold(*GC_THRESHOLDS)  # the recovery of a store makes millions of objects, too
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    if ending is not None:
        ending.stop = stop
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop, number)
    # HTTP is loaded in this thread when the server already responds; a lack of threads must fail the start earlier.
    loop.set_default_executor(started(ThreadPoolExecutor(thread_name_prefix="default"), 1))
    server, events = await start()
    # These take milliseconds; by now the server responds.
    from delaymq.interpreter import about_interpreter
    from delaymq.server.heap import keep_large_blocks_apart

    keep_large_blocks_apart()
    interpreter = about_interpreter()
    for text, about in events():
        _logger.info("%s", text, extra=fields(**about, interpreter=interpreter))
    # Exclude long-lived objects from further collections.
    gc.collect()
    gc.freeze()
    await stop.wait()
    _logger.info("stopping")
    await server.stop()
    _logger.info("stopped")


def _on_signal(stop: asyncio.Event, number: int) -> None:
    if stop.is_set() and number == signal.SIGINT:
        # A second Ctrl-C exits immediately; the next start recovers, as after a crash.
        logs.flush_logs(FINAL_LOG_TIMEOUT_S)
        os._exit(128 + number)
    stop.set()


def _http_text(server: Any) -> str:
    """Return the name of the protocol and the address of the HTTP port."""
    protocol = "HTTP" if server.tls.for_http is None else "HTTPS"
    return f"{protocol} on {host_and_port(server.config.http_host, server.http_port)}"


def _broker_events(server: Any) -> list[Event]:
    config: BrokerConfig = server.config
    text = f"broker {config.broker_name} listens on {host_and_port(config.listen_host, server.port)}"
    if server.fast_port is not None:
        text += f" and {server.fast_port}"
    if server.http_port is not None and not server.inner_http_token:
        text += f", {_http_text(server)}"
    text += f"{server.tls.about}, store {config.store_path.absolute()}, started in {server.start_seconds:.2f} s"
    return [(text, {"broker": config.broker_name, "address": server.broker.address, "kernels": kernels.ABOUT})]


def _supervisor_events(server: Any) -> list[Event]:
    names = ", ".join(group.name for group in server.groups)
    events: list[Event] = [(f"supervisor of {len(server.groups)} broker groups: {names}, {_http_text(server)}", {})]
    return events if server.namesrv is None else [*_namesrv_events(server.namesrv), *events]


def _namesrv_events(server: Any) -> list[Event]:
    config: NamesrvConfig = server.config
    address = host_and_port(config.listen_host, server.port)
    text = f"NameServer listens on {address}"
    if server.http_port is not None:
        text += f", {_http_text(server)}"
    text += server.tls.about
    return [(text, {"address": address})]
