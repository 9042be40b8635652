"""The processes: start, say where they listen, wait for a signal, stop cleanly. What the command line calls."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, Protocol

import uvloop

from delaymq.config import BrokerConfig, NamesrvConfig
from delaymq.namesrv.errors import NamesrvError
from delaymq.server.errors import ServerError
from delaymq.store.errors import StoreError
from delaymq.transport.connection import host_and_port

EXIT_STOPPED: Final = 0
EXIT_CANNOT_START: Final = 1
EXIT_FAILED: Final = 70
"""A defect; the log has it."""

GC_THRESHOLDS: Final = (20_000, 20, 100)
"""Messages make no cycles: a full collection, which stops everything, should be rare."""

_logger = logging.getLogger(__name__)


class _Server(Protocol):
    async def start(self, *, http: bool = True) -> None: ...

    async def stop(self) -> None: ...


def run_broker(config: BrokerConfig, *, http: bool = True) -> int:
    """Runs a broker until a signal; the exit code."""
    from delaymq.server.broker_server import BrokerServer  # what a command does not need, it does not load

    server = BrokerServer(config)
    return _run(server, lambda: _broker_lines(server), http)


def run_namesrv(config: NamesrvConfig, *, http: bool = True) -> int:
    """Runs a NameServer until a signal; the exit code."""
    from delaymq.server.namesrv_server import NamesrvServer

    server = NamesrvServer(config)
    return _run(server, lambda: _namesrv_lines(server), http)


def run_standalone(broker_config: BrokerConfig, namesrv_config: NamesrvConfig, *, http: bool = True) -> int:
    """Runs both in one process until a signal; the exit code."""
    from delaymq.server.standalone import Standalone

    server = Standalone(broker_config, namesrv_config)
    return _run(server, lambda: _namesrv_lines(server.namesrv) + _broker_lines(server.broker), http)


def _run(server: _Server, lines: Callable[[], list[str]], http: bool) -> int:
    if not logging.getLogger().handlers:
        logging.basicConfig(
            level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(server, lines, http))
    except (ServerError, StoreError, NamesrvError) as error:
        print(f"delaymq: cannot start: {error}", file=sys.stderr, flush=True)
        return EXIT_CANNOT_START
    except Exception:
        _logger.exception("the server failed")
        return EXIT_FAILED
    return EXIT_STOPPED


async def _serve(server: _Server, lines: Callable[[], list[str]], http: bool) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop, number)
    await server.start(http=http)
    for line in lines():
        print(line, file=sys.stderr, flush=True)
    # What lives from here on to the end is not looked at again by every collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    await stop.wait()
    _logger.info("stopping")
    await server.stop()
    print("delaymq: stopped", file=sys.stderr, flush=True)


def _on_signal(stop: asyncio.Event, number: int) -> None:
    if stop.is_set() and number == signal.SIGINT:
        # Somebody at a terminal does not want to wait: as after a crash, the next start recovers.
        os._exit(128 + number)
    stop.set()


def _broker_lines(server: Any) -> list[str]:
    config: BrokerConfig = server.config
    lines = [f"broker {config.broker_name} listens on {host_and_port(config.listen_host, server.port)}"]
    if server.fast_port is not None:
        lines[0] += f" and {server.fast_port}"
    if server.http_port is not None:
        lines[0] += f", HTTP on {host_and_port(config.http_host, server.http_port)}"
    lines[0] += f", store {config.store_path.absolute()}, started in {server.start_seconds:.2f} s"
    return lines


def _namesrv_lines(server: Any) -> list[str]:
    config: NamesrvConfig = server.config
    line = f"NameServer listens on {host_and_port(config.listen_host, server.port)}"
    if server.http_port is not None:
        line += f", HTTP on {host_and_port(config.http_host, server.http_port)}"
    return [line]
