"""The NameServer: dispatches requests to processors, and expires brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from delaymq.access import OWN_METADATA
from delaymq.blocking_steps import BlockingSteps
from delaymq.config import NamesrvConfig
from delaymq.config.running import RunningSettings
from delaymq.namesrv.errors import REASONS, NamesrvError, RefusalError
from delaymq.namesrv.kv import KVSettings
from delaymq.namesrv.ownership import Ownership
from delaymq.namesrv.routes import Routes
from delaymq.namesrv.session import NamesrvSession
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.access.views import View
    from delaymq.namesrv.rules import NamesrvRules
    from delaymq.protocol.second_signature import Channels

T = TypeVar("T")

_logger = logging.getLogger(__name__)


Processor = Callable[["NameServer", NamesrvSession, Command], Response | BlockingSteps[Response]]


class NameServer:
    """State of a NameServer. `config` may be replaced at run time."""

    def __init__(
        self,
        config: NamesrvConfig,
        processors: Mapping[int, Processor],
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int] | None = None,
        settings: RunningSettings[NamesrvConfig] | None = None,
    ) -> None:
        """Load the key-value file; raise NamesrvError if it cannot be read. `steady_ms` is a monotonic clock."""
        self.config = config
        self._processors = processors
        self.settings = settings or RunningSettings(NamesrvConfig)
        """Settings with their origins."""
        self.on_settings: Callable[[NamesrvConfig], None] | None = None
        """Called with changed settings."""
        self.now_ms = now_ms
        self.steady_ms = steady_ms or now_ms
        self.routes = Routes()
        self.ownership = Ownership(self.routes.links)
        self.rules: NamesrvRules | None = None
        """Access rules; None: no restrictions besides `ownership`."""
        self.channels: Channels | None = None
        """Challenges of connections; only with rules."""
        if config.namesrv_acl_config_path:
            # Most NameServers run without rules.
            from delaymq.namesrv.rules import NamesrvRules
            from delaymq.protocol.second_signature import Channels

            self.channels = Channels()
            self.rules = NamesrvRules(Path(config.namesrv_acl_config_path).absolute(), now_ms)
        elif config.namesrv_acl_metadata == OWN_METADATA:
            raise NamesrvError("namesrvAclMetadata=own needs accounts: set namesrvAclConfigPath to a file with rules")
        self.refused: dict[str, int] = dict.fromkeys(REASONS, 0)
        """Rejected requests by reason."""
        self._throttled = ThrottledLogger(_logger, now_ms)
        self.kv = KVSettings(Path(config.kv_config_path) if config.kv_config_path else None)

    def handle(self, session: NamesrvSession, command: Command) -> Response | BlockingSteps[Response]:
        """Return the response to `command`, or its steps, to be run `guarded`; never raises.

        Unknown codes also get a response, unlike from RocketMQ's NameServer.
        """
        processor = self._processors.get(command.code)
        if processor is None:
            remark = f" request type {command.code} not supported: send it to a broker, or use a newer NameServer"
            return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        answer = self._checked(session, command)
        if answer is not None:
            return answer
        return self.guarded(command.code, partial(processor, self, session, command))

    def is_vouched(self, command: Command) -> bool:
        """Return whether a request that passed `handle` is signed by an account."""
        if self.rules is None:
            return False
        from delaymq.namesrv import guard

        return guard.states_account(command)

    def view_of(self, command: Command) -> View | None:
        """Return which topics the sender of a permitted query may see, None for all."""
        if self.rules is None or not self._restricts(command):
            return None
        from delaymq.namesrv import queries
        from delaymq.protocol.credential_fields import ACCESS_KEY

        return queries.view_of(self.rules.accounts[command.fields[ACCESS_KEY]], self.routes)

    def _restricts(self, command: Command) -> bool:
        from delaymq.namesrv.guard import GUARDED
        from delaymq.namesrv.queries import OF_RULES

        if command.code in GUARDED:
            return False
        return self.config.namesrv_acl_metadata == OWN_METADATA or command.code in OF_RULES

    def refuse(self, session: NamesrvSession, command: Command, reason: str, error: RequestError) -> Response:
        """Count a rejection and return its response."""
        self.refused[reason] += 1
        # Throttled, because a peer can cause this at will.
        text = f"rejected a request with code %d ({reason}): %s"
        self._throttled.warning(text, command.code, error.remark, peer=session.remote_address)
        return Response(error.code, error.remark)

    def _checked(self, session: NamesrvSession, command: Command) -> Response | None:
        """Return the response to a rejected request or a challenge request; None: continue with the processor."""
        rules, channels = self.rules, self.channels
        if rules is None or channels is None:
            return None
        from delaymq.namesrv import guard
        from delaymq.protocol.second_signature import requests_challenge

        if requests_challenge(command):
            server = f"namesrv/{self.config.listen_port}"
            return self.guarded(command.code, lambda: channels.challenge(session.id, server, command))
        try:
            if self._restricts(command):
                guard.check_query(rules, channels, self.routes, session, command)
            else:
                guard.check(rules, channels, session, command)
        except RefusalError as refusal:
            return self.refuse(session, command, refusal.reason, refusal)
        return None

    def guarded(self, code: int, run: Callable[[], T]) -> T | Response:
        """Call `run` for a request of this code, and convert its exceptions to a response."""
        try:
            return run()
        except RequestError as error:
            return Response(error.code, error.remark)
        except Exception as error:
            _logger.exception("a request with code %d failed", code)
            return Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def apply(self, config: NamesrvConfig) -> None:
        """Apply a changed configuration."""
        self.config = config
        if self.on_settings is not None:
            self.on_settings(config)

    def session_closed(self, session: NamesrvSession) -> None:
        """Handle a closed connection; a master's routes stay for the grace period."""
        if self.channels is not None:
            self.channels.closed(session.id)
        grace_ms = self.config.route_grace_ms
        for address in self.routes.session_closed(session.id, self.now_ms(), grace_ms):
            _logger.info("the connection of broker %s was closed; a master's routes stay for %d ms", address, grace_ms)

    def expire(self) -> list[int]:
        """Remove expired brokers, and return the ids of their sessions, which may be closed."""
        config = self.config
        expired = self.routes.expire(self.now_ms(), config.broker_expire_ms, config.route_grace_ms)
        for broker, _ in expired:
            _logger.info("broker %s (%s) has expired: removed its routes", broker.name, broker.address)
        return [session_id for _, session_ids in expired for session_id in session_ids]

    def next_expiry_ms(self) -> int | None:
        """Return when the next grace period ends, at which `expire` must run; None if there is none."""
        return self.routes.next_grace_end_ms(self.config.route_grace_ms)
