"""The NameServer as one object: hands requests to processors, and lets time pass."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from delaymq.config import NamesrvConfig
from delaymq.config.running import RunningSettings
from delaymq.namesrv.kv import KVSettings
from delaymq.namesrv.routes import Routes
from delaymq.namesrv.table import PROCESSORS
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.steps import Steps

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class NamesrvSession(Protocol):
    """One connection of a broker or client."""

    id: int
    """Unique in this process, never used again."""
    remote_address: str


class NameServer:
    """All state of a NameServer. `config` may be replaced while it runs."""

    def __init__(self, config: NamesrvConfig, now_ms: Callable[[], int]) -> None:
        """NamesrvError when the settings' file cannot be read."""
        self.config = config
        self.settings = RunningSettings(NamesrvConfig)
        """The server says where they are from."""
        self.on_settings: Callable[[NamesrvConfig], None] | None = None
        """Called with settings that were changed."""
        self.now_ms = now_ms
        self.routes = Routes()
        self.kv = KVSettings(Path(config.kv_config_path) if config.kv_config_path else None)

    def handle(self, session: NamesrvSession, command: Command) -> Response | Steps[Response]:
        """The answer to `command`, or its change, to be run `guarded`; never raises.

        An unknown code is answered too (the real NameServer stays silent).
        """
        processor = PROCESSORS.get(command.code)
        if processor is None:
            remark = f" request type {command.code} not supported: ask a broker, or use a newer NameServer"
            return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        return self.guarded(command.code, partial(processor, self, session, command))

    def guarded(self, code: int, run: Callable[[], T]) -> T | Response:
        """`run()` for a request of this code, with whatever it raises turned into the answer."""
        try:
            return run()
        except RequestError as error:
            return Response(error.code, error.remark)
        except Exception as error:
            _logger.exception("a request (code %d) failed", code)
            return Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def apply(self, config: NamesrvConfig) -> None:
        """Takes a changed configuration."""
        self.config = config
        if self.on_settings is not None:
            self.on_settings(config)

    def session_closed(self, session: NamesrvSession) -> None:
        """A connection ended; the routes stay for the grace period if it was a master's."""
        grace_ms = self.config.route_grace_ms
        for address in self.routes.session_closed(session.id, self.now_ms(), grace_ms):
            _logger.info("the connection of broker %s closed; a master's routes stay for %d ms", address, grace_ms)

    def expire(self) -> list[int]:
        """Drops brokers that are gone; returns the ids of their sessions, which may be closed."""
        config = self.config
        expired = self.routes.expire(self.now_ms(), config.broker_expire_ms, config.route_grace_ms)
        for broker in expired:
            _logger.info("broker %s (%s) is gone: its routes are dropped", broker.name, broker.address)
        return [broker.session_id for broker in expired]

    def next_expiry_ms(self) -> int | None:
        """When `expire` must run before its next regular time, because a grace period ends."""
        return self.routes.next_grace_end_ms(self.config.route_grace_ms)
