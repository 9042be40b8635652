"""kopf within the operator's event loop: the operator starts and stops its tasks and keeps handling signals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import kopf

from delaymq_operator.adapters.credentials import Credentials, authorization
from delaymq_operator.controller.cache import WatchCache
from delaymq_operator.controller.controller import Controller, Release
from delaymq_operator.handlers.settings import configure
from delaymq_operator.handlers.watches import Listed, register

STOP_TIMEOUT_S: Final = 8.0

_logger = logging.getLogger(__name__)


class KopfRunner:
    """Runs kopf's watches and finalizers in one namespace or (None) in all, until `stop`. kopf replaces the signal
    handlers; `own_signals` restores them.
    """

    def __init__(
        self,
        credentials: Credentials,
        namespace: str | None,
        *,
        request_timeout_s: float,
        cache: WatchCache,
        controller: Controller,
        releases: Mapping[str, Release],
        listed: Listed,
        own_signals: Callable[[], None],
    ) -> None:
        self._namespaces = () if namespace is None else (namespace,)
        self._own_signals = own_signals
        self._stop = asyncio.Event()
        self._tasks: Collection[asyncio.Task[Any]] = ()
        self._settings = kopf.OperatorSettings()
        configure(self._settings, request_timeout_s=request_timeout_s)
        self._registry = kopf.OperatorRegistry()
        register(self._registry, cache, controller, releases, listed)

        # kopf calls it in a thread, at first and after every 401.
        def log_in(**_: object) -> kopf.ConnectionInfo:
            return connection_info(credentials)

        kopf.on.login(registry=self._registry)(log_in)

    async def run(self) -> None:
        """Run until `stop`, or raise the error that ended kopf."""
        self._tasks = await kopf.spawn_tasks(
            registry=self._registry,
            settings=self._settings,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            standalone=True,
            stop_flag=self._stop,
        )
        self._own_signals()
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def stop(self) -> None:
        """Stop kopf's tasks, including its handlers."""
        if not self._tasks:
            return
        # Otherwise kopf would kill the process if stopping took long.
        self._stop.set()
        loop = asyncio.get_running_loop()
        handler = loop.get_exception_handler()
        # kopf's callbacks fail for watches that are cancelled while they connect.
        loop.set_exception_handler(_note)
        try:
            # Not kopf.run_tasks, which also ends tasks that others start meanwhile.
            for task in self._tasks:
                task.cancel()
            ended, late = await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)
        finally:
            loop.set_exception_handler(handler)
        for task in ended:
            if not task.cancelled() and task.exception() is not None:
                _logger.debug("error while kopf stopped: %s", task.exception())
        if late:
            _logger.info("kopf did not stop in time: %s", ", ".join(sorted(task.get_name() for task in late)))
        self._tasks = ()


def _note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _logger.debug("error while kopf stopped: %s", context.get("message"))


def connection_info(credentials: Credentials) -> kopf.ConnectionInfo:
    """Return the credentials in kopf's format, read again."""
    loaded = credentials.load()
    scheme, _, token = (authorization(loaded) or "").partition(" ")
    return kopf.ConnectionInfo(
        server=loaded.host,
        ca_path=loaded.ssl_ca_cert or None,
        insecure=not loaded.verify_ssl,
        scheme=scheme if token else None,
        token=token or scheme or None,
        certificate_path=loaded.cert_file or None,
        private_key_path=loaded.key_file or None,
    )
