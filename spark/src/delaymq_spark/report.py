"""The HTML report: one file that needs nothing else, for looking at first and reading second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from delaymq_spark.report_plots import name_of, plots
from delaymq_spark.report_text import duration, number, share, size

SHOWN_SEGMENTS = 40
_CSS = """
:root{color-scheme:light}*{box-sizing:border-box}
body{margin:0;background:#f4f5f7;color:#22262b;font:15px/1.45 system-ui,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0}h2{font-size:19px;margin:38px 0 10px}h3{font-size:14px;margin:0 0 6px;font-weight:600}
.sub{color:#646b75;margin:4px 0 20px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px}
.tile,.card{background:#fff;border:1px solid #e2e5e9;border-radius:8px;padding:14px 16px}
.tile b{display:block;font-size:24px;font-weight:600}.tile span{color:#646b75;font-size:13px}
.tile.bad{border-left:5px solid #c0392b}.tile.good{border-left:5px solid #2f7d5b}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:14px}.wide{grid-column:1/-1}
.card{overflow-x:auto}svg{max-width:100%;height:auto;display:block}
table{border-collapse:collapse;width:100%;font-size:13px}th,td{padding:4px 10px;text-align:right;white-space:nowrap}
th{color:#646b75;font-weight:500;border-bottom:1px solid #d5d9de}td:first-child,th:first-child{text-align:left}
tr+tr td{border-top:1px solid #f0f1f3}.warn{background:#fdf3e4;border-color:#eac98f}p{margin:6px 0}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render(summary: dict[str, Any]) -> str:
    """The page for a summary of the job `report`."""
    drawn = plots(summary)
    title = f"Store {name_of(summary['store'], 80)}"
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name=viewport content="width=device-width">',
        f"<title>{escape(title)}</title><style>{_CSS}</style></head><body><main>",
        f"<h1>{escape(title)}</h1><p class=sub>{_subtitle(summary)}</p>",
        _skipped(summary),
        _tiles(summary),
        _compaction(summary["compaction"], drawn),
        _delay(summary["delay"], drawn),
        _traffic(summary["traffic"], drawn),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _subtitle(summary: dict[str, Any]) -> str:
    totals = summary["totals"]
    words = [f"as of {summary['asOf']}"]
    if summary["storeId"]:
        words.append(f"store {name_of(summary['storeId'], 60)}")
    if totals["firstStored"]:
        words.append(f"messages from {totals['firstStored']} to {totals['lastStored']}")
    return escape(" · ".join(words))


def _skipped(summary: dict[str, Any]) -> str:
    if summary["complete"]:
        return ""
    rows = [
        (name_of(each["file"], 90), number(each["position"]), size(each["lostBytes"]), name_of(each["reason"], 120))
        for each in summary["skipped"]
        if not each["atEnd"]
    ]
    table = _table(("file", "byte", "skipped", "why"), rows)
    title = "Parts of the store were skipped: all figures leave them out"
    return f"<div class='card warn'><h3>{title}</h3>{table}</div><p></p>"


def _tiles(summary: dict[str, Any]) -> str:
    totals, compaction, delay = summary["totals"], summary["compaction"], summary["delay"]
    coming = f"delayed messages to come, {number(delay['overdue'])} overdue"
    lost = "lost" if delay["lossesCertain"] else "lost at most (parts were skipped)"
    tiles = [
        (size(totals["bytes"]), f"{number(totals['messages'])} messages in {number(totals['topics'])} topics", ""),
        (size(compaction["liveBytes"]), "live", ""),
        (size(compaction["reclaimableBytes"]), f"reclaimable for {size(compaction['copiedBytes'])} copied", ""),
        (duration(delay["worstLatenessMs"]), "worst lateness", ""),
        (number(delay["pending"]), coming, _bad(delay["overdue"])),
        (number(delay["lost"]), lost, _bad(delay["lost"])),
        (number(delay["duplicates"]), "delivered twice", _bad(delay["duplicates"])),
        (number(delay["early"]), "delivered early", _bad(delay["early"])),
    ]
    cells = [
        f"<div class='tile {kind}'><b>{escape(big)}</b><span>{escape(small)}</span></div>" for big, small, kind in tiles
    ]
    return f"<div class=tiles>{''.join(cells)}</div>"


def _bad(count: int) -> str:
    return "bad" if count else "good"


def _compaction(section: dict[str, Any], drawn: dict[str, str]) -> str:
    rows = [
        (str(each["order"] or ""), f"{each['segment']:020d}", each["action"], size(each["bytes"]),
         size(each["reclaimedBytes"]), size(each["copiedBytes"]), number(each["pinningMessages"]),
         each["lastDue"] or "")
        for each in section["plan"][:SHOWN_SEGMENTS]
    ]  # fmt: skip
    head = ("order", "segment", "action", "bytes", "given back", "copied", "still to come", "last due")
    more = section["planSegments"] - len(rows)
    note = f"<p>… and {more} segments more, in summary.json</p>" if more > 0 else ""
    pinned = (
        f"<p>{size(section['pinnedBytes'])} of dead bytes stand in or behind {len(section['pins'])} segments that"
        " hold messages still to come: deletion of whole segments from the front cannot reach them.</p>"
        if section["pins"]
        else ""
    )
    topics = [
        (name_of(each["topic"], 60), number(each["messages"]), size(each["bytes"]), size(each["deadBytes"]),
         share(each["deadBytes"], each["bytes"]))
        for each in section["topics"]
    ]  # fmt: skip
    return _section(
        "What is dead, and what compaction would give back",
        _card("Segments", drawn.get("segments"), wide=True),
        _card("Why", drawn.get("reasons")),
        _text("Topics with most dead bytes", _table(("topic", "messages", "bytes", "dead", "share"), topics)),
        _text("The plan", _table(head, rows) + note + pinned, wide=True),
    )


def _delay(section: dict[str, Any], drawn: dict[str, str]) -> str:
    promises = [
        (
            f"{each['name']} {duration(each['limit']) if each['name'].startswith('99') else ''}",
            duration(each["found"]) if each["name"].startswith("99") else number(each["found"]),
            {True: "kept", False: "BROKEN", None: "–"}[each["kept"]],
        )
        for each in section["promises"]
    ]
    topics = [
        (name_of(each["topic"], 60), number(each["messages"]), number(each["pending"]), duration(each["p50Ms"]),
         duration(each["p99Ms"]), duration(each["maxMs"]))
        for each in section["byTopic"]
    ]  # fmt: skip
    broken = [
        (each["broken"], str(each["level"]), name_of(each["topic"], 50), number(each["queueOffset"]),
         each["dueTime"] or "", duration(each["latenessMs"]), number(each["copies"]))
        for each in section["offenders"]
    ]  # fmt: skip
    heads = ("what", "level", "topic", "entry", "due", "late", "copies")
    return _section(
        "How punctual the delays were",
        _text("Promises", _table(("promise", "found", ""), promises)),
        _card("Lateness of delivered messages", drawn.get("lateness")),
        _card("By level", drawn.get("levels")),
        _card("By hour", drawn.get("hours")),
        _card("Still to come, by when it is due", drawn.get("pending")),
        _text("Topics, the latest first", _table(("topic", "messages", "to come", "p50", "p99", "max"), topics)),
        _text("Messages that broke a promise", _table(heads, broken), wide=True) if broken else "",
    )


def _traffic(section: dict[str, Any], drawn: dict[str, str]) -> str:
    topics = [
        (name_of(each["topic"], 60), number(each["messages"]), size(each["bytes"]), number(each["queues"]),
         number(each["skew"]), number(each["peakHourMessages"]))
        for each in section["topTopics"]
    ]  # fmt: skip
    keys = [
        (name_of(each["keys"], 50), name_of(each["topic"], 40), number(each["messages"]), size(each["bytes"]))
        for each in section["hotKeys"]
    ]
    failures = [
        (name_of(each["group"], 60), number(each["retries"]), number(each["deadLetters"]), size(each["bytes"]))
        for each in section["failures"]
    ]
    heads = ("topic", "messages", "bytes", "queues", "skew", "busiest hour")
    return _section(
        "What came in",
        _card("Rate", drawn.get("rate"), wide=True),
        _card("Topics by bytes", drawn.get("topics")),
        _card("Sizes of bodies", drawn.get("sizes")),
        _text("Topics (skew: fullest queue by the mean one)", _table(heads, topics), wide=True),
        _text("Keys that many messages carry", _table(("key", "topic", "messages", "bytes"), keys)) if keys else "",
        _text("Retries and dead letters", _table(("group", "retries", "dead letters", "bytes"), failures))
        if failures
        else "",
    )


def _section(title: str, *cards: str) -> str:
    return f"<h2>{escape(title)}</h2><div class=grid>{''.join(cards)}</div>"


def _card(title: str, svg: str | None, *, wide: bool = False) -> str:
    return "" if svg is None else _text(title, svg, wide=wide)


def _text(title: str, html: str, *, wide: bool = False) -> str:
    return f"<div class='card{' wide' if wide else ''}'><h3>{escape(title)}</h3>{html}</div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are escaped here and nowhere else."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    if not body:
        return "<p class=sub>none</p>"
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
