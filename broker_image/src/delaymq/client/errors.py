"""Errors of the client. Every message states what to do; no error exposes another library's exceptions."""

from __future__ import annotations

from typing import Final

from delaymq.message.errors import RecordError
from delaymq.protocol.command import Command
from delaymq.protocol.credential_fields import NEW_CHALLENGE
from delaymq.protocol.errors import RequestError

ACCESS_REFUSAL: Final = "org.apache.rocketmq.acl.common.AclException:"
"""Prefix of the remark when access control rejects a request, in RocketMQ's broker and in DelayMQ."""


class ClientError(Exception):
    """Base of all errors of the client."""


class UnreachableError(ClientError):
    """There is no connection to `address`, or it broke before the response arrived."""

    def __init__(self, address: str, what: str) -> None:
        super().__init__(f"no response from {address}: {what}")
        self.address = address


class AnswerTimeoutError(ClientError):
    """The peer did not respond within `timeout_ms`; the request may have been executed nevertheless."""

    def __init__(self, address: str, timeout_ms: int) -> None:
        super().__init__(f"{address} did not respond within {timeout_ms} ms")
        self.address = address
        self.timeout_ms = timeout_ms


class RefusedError(ClientError):
    """The peer responded with an error `code` and a `remark`."""

    def __init__(self, address: str, code: int, remark: str) -> None:
        super().__init__(f"{address} rejected the request: {remark or 'no reason given'} (response code {code})")
        self.address = address
        self.code = code
        self.remark = remark


class AccessDeniedError(RefusedError):
    """The broker's access control rejected the request: missing or wrong credentials, or an account without
    permission.
    """

    def __init__(self, address: str, code: int, remark: str) -> None:
        what = remark.removeprefix(ACCESS_REFUSAL).strip()
        if "No accessKey is configured" in what:
            hint = "give the client an account: ClientOptions(credentials=Credentials(access_key, secret_key))"
        elif NEW_CHALLENGE in what:
            hint = "the next request does this automatically"
        elif "was sent before" in what:
            hint = "a host between this client and the broker replays requests"
        elif "leave it out" in what:
            hint = "the broker is older than this client: upgrade it"
        elif "Check signature failed" in what:
            hint = "the secret key does not match the broker's secret key for this access key"
        elif "second signature" in what:
            hint = "connect with TLS, or to a broker version that supports the second signature"
        elif "No acl config for" in what:
            hint = "no account file of the broker contains this access key"
        else:
            hint = "the account's rules on the broker do not permit this request"
        super().__init__(address, code, f"{what.partition(', org.apache.rocketmq.')[0]}; {hint}")


def refusal(address: str, answer: Command) -> RefusedError:
    """Return the error for a response whose code indicates a failure."""
    remark = answer.remark or ""
    kind = AccessDeniedError if remark.startswith(ACCESS_REFUSAL) else RefusedError
    return kind(address, answer.code, remark)


class NotPendingError(ClientError):
    """A change was not made, because the message is not pending."""

    def __init__(self, fate: str, text: str, at_ms: int | None = None, by: str = "") -> None:
        super().__init__(text)
        self.fate = fate
        """`delivered`, `cancelled`, `replaced`, `expired`, `dropped`, or `unknown`: no broker knows the message."""
        self.at_ms = at_ms
        """Time of its end in ms since 1970; None if it is unknown."""
        self.by = by
        """Account and address of the client that cancelled it."""


class NoRouteError(ClientError):
    """No broker serves `topic`."""

    def __init__(self, topic: str, hint: str = "create it, or set autoCreateTopicEnable=true on the broker") -> None:
        super().__init__(f"no broker serves topic {topic}: {hint}")
        self.topic = topic


class NoSuchDelayError(ClientError):
    """A delay that is invalid, or a delay or due time that the broker does not support."""


class SendError(ClientError):
    """A send failed on every attempt; the last cause is chained. After a timeout the message may be stored."""

    def __init__(self, topic: str, attempts: int, cause: ClientError) -> None:
        counted = f"{attempts} attempt{'' if attempts == 1 else 's'}"
        super().__init__(f"could not send to {topic} after {counted}: {cause}")
        self.topic = topic
        self.attempts = attempts


class NoReplyError(ClientError):
    """A request was sent, but no reply arrived within `timeout_ms`; a consumer may have processed it nevertheless."""

    def __init__(self, topic: str, timeout_ms: int) -> None:
        super().__init__(
            f"the request was sent to {topic}, but no reply arrived within {timeout_ms} ms: check that a consumer of "
            "the topic replies, or use a longer timeout"
        )
        self.topic = topic
        self.timeout_ms = timeout_ms


class ClosedError(ClientError):
    """The client was closed."""


class BadAnswerError(ClientError):
    """The peer's response is invalid."""

    def __init__(self, address: str, what: object) -> None:
        super().__init__(f"invalid response from {address}: {what}")
        self.address = address


class reading_answer:  # noqa: N801 - a context manager, used like a function
    """Context in which errors of decoding a response are converted into BadAnswerError."""

    # A class, since each pull uses it: a generator with @contextmanager would take several times as long.
    __slots__ = ("_address",)

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, RequestError):
            raise BadAnswerError(self._address, error.remark) from error
        if isinstance(error, RecordError):
            raise BadAnswerError(self._address, error) from error
