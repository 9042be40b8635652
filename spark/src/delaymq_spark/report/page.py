"""The HTML report: a single self-contained file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from delaymq_spark.report.plots import name_of, plots
from delaymq_spark.report.text import counted, duration, headline, level_of, moment, number, share, size

SHOWN_SEGMENTS = 25
_CSS = """
:root{color-scheme:light dark;--page:#f4f5f7;--card:#fff;--line:#e2e5e9;--text:#22262b;--quiet:#646b75;--warn:#fdf3e4;
--live:#2f7d5b;--pin:#d9912b;--dead:#c9ccd3;--bad:#c0392b}
@media (prefers-color-scheme:dark){:root{--page:#16181b;--card:#1f2226;--line:#33383e;--text:#e6e8ea;--quiet:#9aa2ab;
--warn:#3a2f1c;--live:#4fa57f;--pin:#d9a04b;--dead:#5c626b;--bad:#e06a5c}svg{filter:invert(.9) hue-rotate(180deg)}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.45 system-ui,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0;overflow-wrap:anywhere}h2{font-size:20px;margin:40px 0 10px}
h3{font-size:14px;margin:0 0 8px;font-weight:600}
.sub{color:var(--quiet);margin:4px 0 18px}.said{font-size:18px;margin:0 0 14px;max-width:60em}p{margin:6px 0}
.bar{display:flex;height:26px;border-radius:6px;overflow:hidden;background:var(--line)}.bar i{min-width:2px}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;margin:8px 0 18px;color:var(--quiet);font-size:13px}
.key i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
.live{background:var(--live)}.pin{background:var(--pin)}.gain{background:var(--dead)}
.rest{background:repeating-linear-gradient(45deg,var(--dead) 0 5px,var(--card) 5px 8px)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(225px,1fr));gap:12px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 16px}
.tile b{display:block;font-size:24px;font-weight:600}.tile span{color:var(--quiet);font-size:13px}
.tile.bad{border-left:5px solid var(--bad)}.tile.good{border-left:5px solid var(--live)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:14px;align-items:start}
.wide{grid-column:1/-1}.card{overflow-x:auto;min-width:0}svg{max-width:100%;height:auto;display:block}
.wide svg{min-width:700px}.warn{background:var(--warn);border-color:var(--pin)}
td.kept{color:var(--live)}td.broken{color:var(--bad);font-weight:600}
@media (max-width:600px){.tiles{grid-template-columns:1fr 1fr}main{padding:18px 12px}}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:4px 10px;text-align:right;white-space:nowrap}td:first-child,th:first-child{text-align:left}
th{color:var(--quiet);font-weight:500;border-bottom:1px solid var(--line)}tr+tr td{border-top:1px solid var(--line)}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render(summary: dict[str, Any]) -> str:
    """Return the page for a summary of the job `report`."""
    drawn = plots(summary)
    title = f"Store {name_of(summary['store'], 80)}"
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name=viewport content="width=device-width">',
        f"<title>{escape(title)}</title><style>{_CSS}</style></head><body><main>",
        f"<h1>{escape(title)}</h1><p class=sub>{_subtitle(summary)}</p>",
        _skipped(summary),
        f"<p class=said>{escape(' '.join(headline(summary)))}</p>",
        _bar(summary["compaction"]),
        _tiles(summary),
        _compaction(summary["compaction"], drawn),
        _delay(summary["delay"], drawn),
        _traffic(summary["traffic"], drawn),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _subtitle(summary: dict[str, Any]) -> str:
    totals = summary["totals"]
    words = [f"as of {moment(summary['asOf'])}"]
    if summary["brokerName"]:
        words.append(f"broker {name_of(summary['brokerName'], 60)}")
    if summary["storeId"]:
        words.append(f"store {name_of(summary['storeId'], 60)}")
    if totals["firstStored"]:
        words.append(f"messages from {moment(totals['firstStored'])} to {moment(totals['lastStored'])}")
    return escape(" · ".join(words))


def _skipped(summary: dict[str, Any]) -> str:
    if summary["complete"]:
        return ""
    rows = [
        (name_of(each["file"], 90), number(each["position"]), size(each["lostBytes"]), name_of(each["reason"], 120))
        for each in summary["skipped"]
        if not each["atEnd"]
    ]
    table = _table(("file", "byte", "skipped", "reason"), rows)
    title = "Parts of the store were skipped and are excluded from all figures"
    return f"<div class='card warn'><h3>{title}</h3>{table}</div><p></p>"


def _bar(section: dict[str, Any]) -> str:
    """Return a bar for the whole store."""
    pinning = sum(each["bytes"] for each in section["live"] if each["reason"] in ("pending", "half_pending", "lost"))
    parts = [
        ("live", section["liveBytes"] - pinning, "live"),
        ("pin", pinning, "live: pending delays and transactions"),
        ("gain", section["reclaimableBytes"], "dead, reclaimed by the plan"),
        (
            "rest",
            section["deadBytes"] - section["reclaimableBytes"],
            "dead, in segments that are kept",
        ),
    ]
    there = [(kind, count, text) for kind, count, text in parts if count > 0]
    if not there:
        return ""
    bar = "".join(f"<i class={kind} style='flex:{count}'></i>" for kind, count, _ in there)
    key = "".join(f"<span><i class={kind}></i>{escape(f'{size(count)} {text}')}</span>" for kind, count, text in there)
    return f"<div class=bar>{bar}</div><div class=key>{key}</div>"


def _tiles(summary: dict[str, Any]) -> str:
    totals, compaction, delay = summary["totals"], summary["compaction"], summary["delay"]
    coming = f"pending delays, {number(delay['overdue'])} overdue"
    lost = "lost" if delay["lossesCertain"] else "lost at most (parts were skipped)"
    tiles = [
        (
            size(totals["bytes"]),
            f"{counted(totals['messages'], 'message')} in {counted(totals['topics'], 'topic')}",
            "",
        ),
        (size(compaction["liveBytes"]), f"live, {share(compaction['liveBytes'], totals['bytes'])}", ""),
        (size(compaction["reclaimableBytes"]), f"reclaimable by copying {size(compaction['copiedBytes'])}", ""),
        (duration(delay["worstLatenessMs"]), f"worst lateness, p99 {duration(delay['lateness']['p99Ms'])}", ""),
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
         size(each["reclaimedBytes"]), size(each["replayableBytes"]), size(each["copiedBytes"]),
         number(each["pinningMessages"]),
         moment(each["lastDue"]))
        for each in section["plan"][:SHOWN_SEGMENTS]
    ]  # fmt: skip
    head = ("order", "segment", "action", "bytes", "reclaimed", "replayable", "copied", "pending", "last due")
    more = section["planSegments"] - len(rows)
    note = f"<p>… and {counted(more, 'segment')} more, in summary.json</p>" if more > 0 else ""
    pinned = (
        f"<p>{size(section['pinnedBytes'])} of dead data are in or behind {counted(len(section['pins']), 'segment')} "
        "with pending messages: deleting whole segments from the front of the log cannot reclaim them.</p>"
        if section["pins"]
        else ""
    )
    kept = sum(each["keptBytes"] for each in section["plan"])
    proofs = (
        f"<p>{size(kept)} of dead data are copies of delayed messages whose originals are kept: without its copy, a "
        "delivered message would count as lost.</p>"
        if kept
        else ""
    )
    topics = [
        (name_of(each["topic"], 60), number(each["messages"]), size(each["bytes"]), size(each["deadBytes"]),
         share(each["deadBytes"], each["bytes"]))
        for each in section["topics"]
    ]  # fmt: skip
    dead = [
        (name, size(section[member]), share(section[member], section["deadBytes"]))
        for name, member in (
            ("settled or expired", "settledBytes"),
            ("consumed but still replayable", "replayableBytes"),
        )
        if section["deadBytes"]
    ]
    groups = [
        (name_of(each["group"], 60), name_of(each["topic"], 60), number(each["lag"]), number(each["queues"]),
         number(each["unreadQueues"]))
        for each in section["groups"]
    ]  # fmt: skip
    unlisted = section["groupCount"] - len(groups)
    groups_note = f"<p>… and {number(unlisted)} more with less lag</p>" if unlisted > 0 else ""
    return _section(
        "Dead data and reclaimable space",
        _card("Segments", drawn.get("segments"), wide=True),
        _card("Reasons", drawn.get("reasons")),
        _text("Dead bytes", _table(("", "bytes", "share"), dead)),
        _text("Topics with most dead bytes", _table(("topic", "messages", "bytes", "dead", "share"), topics)),
        _text(
            "Lag of consumer groups",
            _table(("group", "topic", "lag", "queues", "queues without an offset"), groups) + groups_note,
        )
        if groups
        else "",
        _text("The plan", _table(head, rows) + note + pinned + proofs, wide=True),
    )


def _delay(section: dict[str, Any], drawn: dict[str, str]) -> str:
    title = "Delivery lateness"
    if not section["messages"]:
        return _section(title, _text("", "<p>This store contains no delayed messages.</p>", wide=True))
    promises = [
        (
            f"{each['name']} {duration(each['limit']) if each['name'].startswith('99') else ''}",
            duration(each["found"]) if each["name"].startswith("99") else number(each["found"]),
            {True: "kept", False: "broken", None: "–"}[each["kept"]],
        )
        for each in section["promises"]
    ]
    topics = [
        (name_of(each["topic"], 60), number(each["messages"]), number(each["pending"]), duration(each["p50Ms"]),
         duration(each["p99Ms"]), duration(each["maxMs"]))
        for each in section["byTopic"]
    ]  # fmt: skip
    coming = [
        (name_of(each["topic"], 60), number(each["pending"]), *map(number, each["due"].values()))
        for each in section["pendingByTopic"]
    ]
    due_in = section["pendingByTopic"][0]["due"] if coming else ()
    broken = [
        (each["broken"], level_of(each["level"]), name_of(each["topic"], 50), number(each["queueOffset"]),
         moment(each["dueTime"]), duration(each["latenessMs"]), number(each["copies"]), number(each["run"]))
        for each in section["offenders"]
    ]  # fmt: skip
    heads = ("violation", "delay", "topic", "queue offset", "due", "late by", "copies", "run")
    return _section(
        title,
        _text("Promises", _table(("promise", "found", ""), promises)),
        _card("Lateness of delivered messages", drawn.get("lateness")),
        _card("By level", drawn.get("levels")),
        _card("By hour", drawn.get("hours")),
        _card("Pending messages by due time", drawn.get("pending")),
        _text("Pending messages by topic and time until due", _table(("topic", "pending", *due_in), coming)),
        _text("Topics by lateness", _table(("topic", "messages", "pending", "p50", "p99", "max"), topics)),
        _text("Messages that violate a guarantee", _table(heads, broken), wide=True) if broken else "",
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
    if not topics:
        return _section("Traffic", _text("", "<p>This store contains no messages.</p>", wide=True))
    return _section(
        "Traffic",
        _card("Rate", drawn.get("rate"), wide=True),
        _card("Topics by bytes", drawn.get("topics")),
        _card("Body sizes", drawn.get("sizes")),
        _text("Topics (skew: fullest queue divided by the mean)", _table(heads, topics), wide=True),
        _text("Most frequent keys", _table(("key", "topic", "messages", "bytes"), keys)) if keys else "",
        _text("Retries and dead letters", _table(("group", "retries", "dead letters", "bytes"), failures))
        if failures
        else "",
    )


def _section(title: str, *cards: str) -> str:
    return f"<h2>{escape(title)}</h2><div class=grid>{''.join(cards)}</div>"


def _card(title: str, svg: str | None, *, wide: bool = False) -> str:
    return "" if svg is None else _text(title, svg, wide=wide)


def _text(title: str, html: str, *, wide: bool = False) -> str:
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f"<div class='card{' wide' if wide else ''}'>{head}{html}</div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are escaped here only."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td{_class(cell)}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    if not body:
        return "<p class=sub>none</p>"
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _class(cell: str) -> str:
    return f" class={cell}" if cell in ("kept", "broken") else ""
