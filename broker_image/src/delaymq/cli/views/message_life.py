"""History of a message, as text."""

from __future__ import annotations

from typing import Any

from delaymq.cli.terminal.output import console
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import format_time
from delaymq.cli.views.schedules import schedule_line


def show_life(answer: dict[str, Any]) -> None:
    """Print a response of /api/v1/messages/{id}."""
    out = console()
    keys = f", keys {' '.join(answer['keys'])}" if answer["keys"] else ""
    out.print(f"{answer['messageId']} of {answer['topic']}{keys}: {answer['state']}")
    if answer.get("repeats") is not None:
        line = schedule_line(answer["repeats"], answer["dueMs"], is_pending=answer["state"] == "pending")
        out.print(line, soft_wrap=True)
    rows = [(format_time(each["atMs"]), each["event"], each["group"] or "", each["detail"]) for each in answer["life"]]
    out.print(table(("time", "event", "group", "details"), rows, left=4, elastic=3))
    body = answer["body"]
    text = body["text"] if body["text"] is not None else f"base64 {body['base64']}"
    shown = text if len(text) <= 400 else f"{text[:400]}…"
    out.print(f"body, {body['bytes']} bytes: {shown}", soft_wrap=True)
    if body.get("notUnpacked"):
        out.print(f"the body is shown as stored: {body['notUnpacked']}", soft_wrap=True)
