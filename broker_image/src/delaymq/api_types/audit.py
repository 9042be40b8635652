"""Types of /api/v1/audit. A line is also the format of the files (docs/formats/audit.md)."""

from typing import Literal

from msgspec import field

from delaymq.api_types.base import Answer

AuditResult = Literal["done", "unconfirmed", "refused"]
"""`unconfirmed`: the change is in effect, but was not on disk or on replicas in time."""


class AuditLine(Answer, omit_defaults=True):
    """One change, or one attempt. Members that do not apply are omitted."""

    time: str
    """ISO 8601 with milliseconds and the offset of the process's time zone."""
    time_ms: int
    server: str
    """Name of the broker; `namesrv` for a NameServer."""
    via: Literal["remoting", "http", "message"]
    """`message`: a message with DELAY_ACTION or TIMER_DEL_UNIQKEY."""
    action: str
    """Such as `topic.put`."""
    result: AuditResult
    status: int
    """Response code, or HTTP status."""
    peer: str
    """Address and port of the client."""
    code: int = 0
    """Request code."""
    route: str = ""
    """Method and path template of an HTTP request."""
    account: str = ""
    """Access key that the request states; empty without access control, and for HTTP."""
    verified: bool = False
    """Whether this request proved its account by a signature, or had the HTTP token."""
    target: dict[str, str] = field(default_factory=dict)
    """Names of what is changed, by kind: topic, group, account, settings…"""
    remark: str = ""
    """Reason of a refusal."""
    suppressed: int = 0
    """Refused attempts from the same network and account before this one that were not recorded."""
    dropped: int = 0
    """Lines before this one that could not be written."""


class AuditLines(Answer):
    """A page of lines, the newest first."""

    as_of_ms: int
    enabled: bool
    """Whether this broker writes an audit log."""
    lines: list[AuditLine]
    next: str | None
    """Value of `before` for the next page; None: there are no older lines."""
    limit: int
    unreadable: int
    """Lines of the examined part that are damaged."""
