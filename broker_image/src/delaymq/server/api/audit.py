"""GET /api/v1/audit: pages of the audit log, with filters."""

from typing import Annotated, Final

import msgspec

from delaymq.api_types.audit import AuditLines, AuditResult
from delaymq.audit.reading import Filter, Page, cursor_of, cursor_text, read_page
from delaymq.server.api.routing import Api, ApiError, Limit, Query, TimeMs

MAX_LINES: Final = 200
"""Maximum lines per page."""
MAX_READ_BYTES: Final = 4 << 20
"""Part of the files that one request reads in search of lines: some 0.1 s."""
_CURSOR: Final = "^[0-9]{1,15}-[0-9]{1,18}$"

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class AuditQuery(Query):
    """Parameters of a page."""

    account: Text | None = None
    action: Text | None = None
    """An action, or its part before a dot: `topic` selects `topic.put` and `topic.delete`."""
    target: Text | None = None
    """Only lines with this text in a name, regardless of case."""
    result: AuditResult | None = None
    peer: Text | None = None
    """Only lines whose address begins with this text."""
    from_ms: TimeMs | None = None
    until_ms: TimeMs | None = None
    before: Annotated[str, msgspec.Meta(max_length=64, extra_json_schema={"pattern": _CURSOR})] | None = None
    """`next` of the previous page."""
    limit: Limit = 100
    """Requested number; at most 200 are returned."""


async def audit(api: Api, query: AuditQuery) -> AuditLines:
    """Return a page, the newest lines first. It may have few lines, or none, although older ones exist."""
    limit, before = min(query.limit, MAX_LINES), None
    if query.before is not None:
        before = cursor_of(query.before)
        if before is None:
            text = f"before is {query.before!r}: send the value of next in the previous page"
            raise ApiError(400, "bad_request", text)
    wanted = Filter(
        account=query.account or "",
        action=query.action or "",
        target=query.target or "",
        result=query.result or "",
        peer=query.peer or "",
        from_ms=query.from_ms,
        until_ms=query.until_ms,
    )
    folder = api.server.auditing.log.folder
    page = Page()
    if folder is not None:
        try:
            async with api.reading():
                page = await api.in_thread(read_page, folder, wanted, limit, before, MAX_READ_BYTES)
        except OSError as error:
            raise ApiError(503, "unreadable", f"the audit log in {folder} cannot be read ({error.strerror})") from error
    return AuditLines(
        as_of_ms=api.broker.now_ms(),
        enabled=folder is not None,
        lines=page.lines,
        next=None if page.next is None else cursor_text(page.next),
        limit=limit,
        unreadable=page.unreadable,
    )
