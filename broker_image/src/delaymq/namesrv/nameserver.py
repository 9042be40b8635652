"""The NameServer as one object: hands requests to processors, and lets time pass."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from delaymq.blocking_steps import BlockingSteps
from delaymq.config import NamesrvConfig
from delaymq.config.running import RunningSettings
from delaymq.namesrv.errors import REASONS, RefusalError
from delaymq.namesrv.kv import KVSettings
from delaymq.namesrv.ownership import Ownership
from delaymq.namesrv.routes import Routes
from delaymq.namesrv.table import PROCESSORS
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.namesrv.rules import NamesrvRules
    from delaymq.protocol.second_signature import Channels

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class NamesrvSession(Protocol):
    """One connection of a broker or client."""

    id: int
    """Unique in this process, never used again."""
    remote_address: str
    remote_host: bytes
    """Packed as message.ids.pack_host does it."""

    @property
    def is_private(self) -> bool:
        """Whether nobody in between can read along."""


class NameServer:
    """All state of a NameServer. `config` may be replaced while it runs."""

    def __init__(
        self, config: NamesrvConfig, now_ms: Callable[[], int], steady_ms: Callable[[], int] | None = None
    ) -> None:
        """NamesrvError when the settings' file cannot be read. `steady_ms` is a clock that nobody sets."""
        self.config = config
        self.settings = RunningSettings(NamesrvConfig)
        """The server says where they are from."""
        self.on_settings: Callable[[NamesrvConfig], None] | None = None
        """Called with settings that were changed."""
        self.now_ms = now_ms
        self.steady_ms = steady_ms or now_ms
        self.routes = Routes()
        self.ownership = Ownership(self.routes.links)
        self.rules: NamesrvRules | None = None
        """Who may change what clients are told; None: everybody, within `ownership`."""
        self.channels: Channels | None = None
        """With rules: what connections sign for."""
        if config.namesrv_acl_config_path:
            # Most NameServers run without them.
            from delaymq.namesrv.rules import NamesrvRules
            from delaymq.protocol.second_signature import Channels

            self.channels = Channels()
            self.rules = NamesrvRules(Path(config.namesrv_acl_config_path).absolute(), now_ms)
        self.refused: dict[str, int] = dict.fromkeys(REASONS, 0)
        """Refused requests by reason."""
        self._throttled = ThrottledLogger(_logger, now_ms)
        self.kv = KVSettings(Path(config.kv_config_path) if config.kv_config_path else None)

    def handle(self, session: NamesrvSession, command: Command) -> Response | BlockingSteps[Response]:
        """The answer to `command`, or its change, to be run `guarded`; never raises.

        An unknown code is answered too (the real NameServer stays silent).
        """
        processor = PROCESSORS.get(command.code)
        if processor is None:
            remark = f" request type {command.code} not supported: ask a broker, or use a newer NameServer"
            return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        answer = self._checked(session, command)
        if answer is not None:
            return answer
        return self.guarded(command.code, partial(processor, self, session, command))

    def is_vouched(self, command: Command) -> bool:
        """Whether an account vouches for a request that `handle` passed on."""
        if self.rules is None:
            return False
        from delaymq.namesrv import guard

        return guard.states_account(command)

    def refuse(self, session: NamesrvSession, command: Command, reason: str, error: RequestError) -> Response:
        """Counts a refusal; the answer."""
        self.refused[reason] += 1
        # A peer can cause this at will.
        text = f"a request was refused ({reason}): code %d: %s"
        self._throttled.warning(text, command.code, error.remark, peer=session.remote_address)
        return Response(error.code, error.remark)

    def _checked(self, session: NamesrvSession, command: Command) -> Response | None:
        """The answer to what the rules refuse, and to the question for a challenge; None: for the processor."""
        rules, channels = self.rules, self.channels
        if rules is None or channels is None:
            return None
        from delaymq.namesrv import guard
        from delaymq.protocol.second_signature import asks_for_challenge

        if asks_for_challenge(command):
            server = f"namesrv/{self.config.listen_port}"
            return self.guarded(command.code, lambda: channels.challenge(session.id, server, command))
        try:
            guard.check(rules, channels, session, command)
        except RefusalError as refusal:
            return self.refuse(session, command, refusal.reason, refusal)
        return None

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
        if self.channels is not None:
            self.channels.closed(session.id)
        grace_ms = self.config.route_grace_ms
        for address in self.routes.session_closed(session.id, self.now_ms(), grace_ms):
            _logger.info("the connection of broker %s closed; a master's routes stay for %d ms", address, grace_ms)

    def expire(self) -> list[int]:
        """Drops brokers that are gone; returns the ids of their sessions, which may be closed."""
        config = self.config
        expired = self.routes.expire(self.now_ms(), config.broker_expire_ms, config.route_grace_ms)
        for broker, _ in expired:
            _logger.info("broker %s (%s) is gone: its routes are dropped", broker.name, broker.address)
        return [session_id for _, session_ids in expired for session_id in session_ids]

    def next_expiry_ms(self) -> int | None:
        """When `expire` must run before its next regular time, because a grace period ends."""
        return self.routes.next_grace_end_ms(self.config.route_grace_ms)
