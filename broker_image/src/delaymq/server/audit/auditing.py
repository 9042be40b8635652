"""Audit of remoting requests: a change is recorded just before its response is sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from delaymq.audit.log import Attempt
from delaymq.broker.requests.session import Session
from delaymq.message.ids import network_of
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, Response
from delaymq.protocol.credential_fields import ACCESS_KEY
from delaymq.server.audit.requests import BROKER_CHANGES, Change, names_of, secrets_of

if TYPE_CHECKING:
    from delaymq.api_types.audit import AuditResult
    from delaymq.audit.log import AuditLog
    from delaymq.broker.broker import Broker
    from delaymq.broker.delivery.changes.requests import ChangeRequest
    from delaymq.broker.requests.results import Result

UNCONFIRMED: Final = frozenset(
    (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
)
"""Response codes of changes that are in effect."""


class Peer(Protocol):
    """A connection."""

    remote_host: bytes
    remote_address: str


class SignedSession(Session, Protocol):
    """A connection that states who signed its last request."""

    signer: str
    """Account of the last signature that was verified."""


class AuditedCommand(Command, gc=False):
    """A request whose response is recorded; `requests.replies` calls `answered` with it."""

    keeps_result: ClassVar[bool] = True
    answered: Callable[[Response], None] | None = None


def audited(command: Command, answered: Callable[[Response], None]) -> AuditedCommand:
    """Return `command` with a function that receives its response."""
    return AuditedCommand(
        code=command.code,
        opaque=command.opaque,
        flag=command.flag,
        language=command.language,
        version=command.version,
        remark=command.remark,
        fields=command.fields,
        body=command.body,
        binary=command.binary,
        answered=answered,
    )


def result_of(code: int) -> AuditResult:
    """Return the result that a response code states."""
    if code == ResponseCode.SUCCESS:
        return "done"
    return "unconfirmed" if code in UNCONFIRMED else "refused"


def attempt_of(session: Peer, command: Command, change: Change, account: str) -> Attempt:
    """Return the attempt that a request states; `account` is the stated one."""
    return Attempt(
        via="remoting",
        action=change.action,
        peer=session.remote_address,
        network=network_of(session.remote_host),
        code=command.code,
        account=account,
        complete=partial(_complete, command, change),
    )


def _complete(command: Command, change: Change, attempt: Attempt) -> None:
    attempt.target, attempt.secrets = names_of(change, command), tuple(secrets_of(command))


class BrokerAuditing:
    """Audit of a broker's requests."""

    def __init__(self, broker: Broker, log: AuditLog) -> None:
        self._broker = broker
        self.log = log
        broker.on_message_change = self._changed_by_message

    def handle(self, session: SignedSession, command: Command) -> tuple[Command, Result]:
        """Handle a request of BROKER_CHANGES. Returns the request for which the result is, and the result."""
        broker = self._broker
        account = command.fields.get(ACCESS_KEY, "") if broker.access is not None else ""
        is_commit = command.code == RequestCode.UPDATE_CONSUMER_OFFSET
        if not self.log.is_on or (is_commit and not self._is_administrative_commit(command, account)):
            return command, broker.handle(session, command)
        attempt = attempt_of(session, command, BROKER_CHANGES[command.code], account)
        recorded = audited(command, partial(self._answered, attempt))
        session.signer = ""
        result = broker.handle(session, recorded)
        attempt.verified = bool(account) and session.signer == account
        if type(result) is not Response:
            attempt.completed()  # a response that waits may release the body
        return recorded, result

    def _is_administrative_commit(self, command: Command, account: str) -> bool:
        """Return whether an offset commit is an administrator's. Consumers commit without waiting for a response."""
        access = self._broker.access
        known = None if access is None else access.rules.accounts.get(account)
        return known is not None and known.admin and not command.flag & FLAG_ONEWAY

    def _answered(self, attempt: Attempt, response: Response) -> None:
        self.log.record(attempt, result_of(response.code), response.code, response.remark)

    def _changed_by_message(
        self, session: Session, command: Command, request: ChangeRequest, code: int, remark: str | None
    ) -> None:
        """Record a change that a message requests. A send that waits for the disk is recorded before it waits."""
        if not self.log.is_on:
            return
        target = {"topic": request.topic, "key": request.key, "id": request.unique_id, "group": request.group}
        account = command.fields.get(ACCESS_KEY, "") if self._broker.access is not None else ""
        attempt = Attempt(
            via="message",
            action=f"delay.{request.action}",
            peer=session.remote_address,
            network=network_of(session.remote_host),
            code=command.code,
            target=target,
            account=account,
            # Messages of unverified accounts reach this place only from addresses that need no signature.
            verified=bool(account) and self._is_signed(session, command),
            secrets=tuple(secrets_of(command)),
        )
        self.log.record(attempt, result_of(code), code, remark)

    def _is_signed(self, session: Session, command: Command) -> bool:
        access = self._broker.access
        return access is not None and access.account_of(session, command) is not None
