"""Plots of the report: from the summary to SVG texts, without a display or external resources."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import matplotlib as mpl
from matplotlib import dates, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from delaymq_spark.report.text import REASONS, duration, level_of, printable, size

LIVE, PINNING, FREE, ALARM, QUIET = "#2f7d5b", "#d9912b", "#c9ccd3", "#c0392b", "#4a6fa5"
MAX_BARS = 60
"""Maximum number of segments in a plot; more are merged to keep bars distinguishable."""
_HOUR = timedelta(hours=1)
_FAR_CLASSES = ("next week", "next 30 days", "next 365 days", "later")
"""Classes of due times beyond a day, which only timed messages and unusual delay levels have."""
_DUE_CLASSES = ("overdue", "next minute", "next 10 minutes", "next hour", "next day", *_FAR_CLASSES)
_MAX_LABELS = 19
"""RocketMQ's 18 levels, and timed messages."""
_DEAD_COLOURS = (
    "#7d8597",
    "#9a8c98",
    "#b5838d",
    "#6d6875",
    "#a3b18a",
    "#588157",
    "#84a59d",
    "#e5989b",
    "#bfb1c1",
    "#6b9080",
)
_STYLE: dict[Any, Any] = {  # matplotlib's type lists every key
    "svg.fonttype": "none",  # Keeps text as text: small, sharp, and in the page's font.
    "text.parse_math": False,  # External names are not formulas.
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a6",
    "axes.grid": True,
    "grid.color": "#eceef1",
    "axes.axisbelow": True,
    "savefig.transparent": True,  # Shows the page's background, light or dark.
}


def plots(summary: dict[str, Any]) -> dict[str, str]:
    """Return SVG texts by name, only for plots with data."""
    makers = {
        "segments": ("compaction", _segments),
        "reasons": ("compaction", _reasons),
        "lateness": ("delay", _histogram),
        "levels": ("delay", _levels),
        "hours": ("delay", _late_hours),
        "pending": ("delay", _pending),
        "rate": ("traffic", _rate),
        "topics": ("traffic", _topics),
        "sizes": ("traffic", _sizes),
    }
    found = {}
    for name, (section, make) in makers.items():
        if section in summary:
            with mpl.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
                # The page's font has the characters that matplotlib's font lacks.
                warnings.filterwarnings("ignore", message="Glyph .* missing from font")
                figure = make(summary[section])
                if figure is not None:
                    found[name] = _svg(figure)
    return found


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def _new(height: float = 2.9, width: float = 6.4) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def name_of(text: object, limit: int = 34) -> str:
    """Return an external name, printable and short."""
    clean = printable(text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _bytes_axis(axis: Any) -> None:
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: size(value)))
    # Steps that are powers of two.
    low, high = axis.get_view_interval()
    axis.set_major_locator(ticker.MultipleLocator(2 ** max(math.ceil(math.log2(max(high - low, 1) / 5)), 0)))


def _segments(compaction: dict[str, Any]) -> Figure | None:
    segments = sorted(compaction["plan"], key=lambda each: each["segment"])
    if not segments:
        return None
    together = -(-len(segments) // MAX_BARS)
    groups = [segments[at : at + together] for at in range(0, len(segments), together)]
    figure, axes = _new(2.8, 13.2)
    bottom = [0.0] * len(groups)
    parts: tuple[tuple[str, str, Callable[[dict[str, Any]], int]], ...] = (
        ("live", LIVE, lambda s: s["liveBytes"] - s["pinningBytes"]),
        ("live: pending delays and transactions", PINNING, lambda s: s["pinningBytes"]),
        ("dead", FREE, lambda s: s["deadBytes"]),
    )
    for label, colour, of in parts:
        heights = [sum(of(each) for each in group) for group in groups]
        axes.bar(range(len(groups)), heights, 0.85, bottom=bottom, color=colour, label=label)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for at, group in enumerate(groups):
        order = group[0]["order"]
        if together == 1 and len(groups) <= 40:
            text = {"active": "being\nwritten", "keep": ""}.get(group[0]["action"], f"{order}")
            axes.annotate(text, (at, bottom[at]), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    note = f" ({together} per bar)" if together > 1 else "; number: order in the plan"
    axes.set_xlabel(f"segments, oldest first{note}")
    axes.set_xticks([])
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.16, x=0.01)
    _bytes_axis(axes.yaxis)
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=8)
    return figure


def _reasons(compaction: dict[str, Any]) -> Figure | None:
    dead = [(each, _DEAD_COLOURS[n % len(_DEAD_COLOURS)]) for n, each in enumerate(compaction["dead"])]
    colours = {"pending": PINNING, "half_pending": PINNING, "lost": ALARM}
    live = [(each, colours.get(each["reason"], LIVE)) for each in compaction["live"]]
    rows = [*dead, *live]
    if not rows:
        return None
    figure, axes = _new(0.9 + 0.3 * len(rows))
    axes.barh([REASONS[each["reason"]] for each, _ in rows], [each["bytes"] for each, _ in rows],
              color=[colour for _, colour in rows])  # fmt: skip
    axes.invert_yaxis()
    axes.axhline(len(dead) - 0.5, color="#9aa0a6", linewidth=0.8, linestyle=":")
    for at, (each, _) in enumerate(rows):
        place = (each["bytes"], at)
        axes.annotate(size(each["bytes"]), place, (3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.margins(x=0.16)
    axes.set_title("dead above the line, live below", loc="left", fontsize=9)
    _bytes_axis(axes.xaxis)
    return figure


def _histogram(delay: dict[str, Any]) -> Figure | None:
    buckets = delay["histogram"]
    if not buckets:
        return None
    figure, axes = _new()
    labels = ["early" if each["fromMs"] < 0 else duration(each["fromMs"]) for each in buckets]
    colours = [ALARM if each["fromMs"] < 0 else QUIET for each in buckets]
    axes.bar(labels, [each["messages"] for each in buckets], color=colours, width=0.9)
    axes.set_yscale("symlog", linthresh=10)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel("late by at least")
    axes.set_ylabel("messages")
    return figure


def _levels(delay: dict[str, Any]) -> Figure | None:
    rows = [each for each in delay["byLevel"] if each["p50Ms"] is not None]
    if not rows:
        return None
    figure, axes = _new()
    places = range(len(rows))
    axes.vlines(places, [r["p50Ms"] for r in rows], [r["maxMs"] for r in rows], color=FREE, linewidth=2)
    series = (("p50Ms", LIVE, "o"), ("p90Ms", QUIET, "s"), ("p99Ms", PINNING, "D"), ("maxMs", ALARM, "^"))
    for field, colour, marker in series:
        axes.scatter(places, [r[field] for r in rows], color=colour, marker=marker, s=24, label=field[:-2], zorder=3)
    axes.set_xticks(places, ["timed" if r["level"] is None else str(r["level"]) for r in rows])
    axes.set_xlabel("delay level")
    _lateness_axis(axes, min(r["p50Ms"] for r in rows))
    axes.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=8)
    return figure


def _late_hours(delay: dict[str, Any]) -> Figure | None:
    rows = [each for each in delay["byHour"] if each["p50Ms"] is not None]
    if len(rows) < 2:
        return None
    figure, axes = _new()
    hours = [begin + _HOUR / 2 for begin in _times(rows)]
    for field, colour in (("p50Ms", LIVE), ("p99Ms", PINNING), ("maxMs", ALARM)):
        axes.plot(hours, [r[field] for r in rows], color=colour, label=field[:-2], linewidth=1.4, marker=".")
    _lateness_axis(axes, min(r["p50Ms"] for r in rows))
    _time_axis(axes)
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=8)
    return figure


def _lateness_axis(axes: Axes, least_ms: float) -> None:
    axes.set_yscale("symlog", linthresh=10)
    # Leaves space above the maximum: a marker at the edge would be clipped.
    axes.set_ylim(top=max(axes.get_ylim()[1], 10) * 2)
    if least_ms >= 0:
        axes.set_ylim(bottom=-0.5)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: duration(value)))
    axes.set_ylabel("lateness")


def _pending(delay: dict[str, Any]) -> Figure | None:
    rows = delay["pendingByDue"]
    if not rows:
        return None
    there = {each["due"] for each in rows}
    classes = [name for name in _DUE_CLASSES if name in there or name not in _FAR_CLASSES]
    # Rows are sorted by level; timed messages, which have none, come last.
    levels = list(dict.fromkeys(each["level"] for each in rows))
    figure, axes = _new()
    bottom = [0.0] * len(classes)
    shades = mpl.colormaps["viridis"].resampled(len(levels) + 1)
    for number, level in enumerate(levels):
        counts = {each["due"]: each["messages"] for each in rows if each["level"] == level}
        heights = [counts.get(name, 0) for name in classes]
        label = level_of(level) if len(levels) <= _MAX_LABELS else None
        axes.bar(classes, heights, bottom=bottom, color=shades(number), label=label, width=0.8)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("messages")
    axes.yaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
    axes.tick_params(axis="x", rotation=20)
    if len(levels) <= _MAX_LABELS:
        axes.legend(frameon=False, fontsize=7, ncols=2 if len(levels) > 6 else 1)
    return figure


def _rate(traffic: dict[str, Any]) -> Figure | None:
    rows = [each for each in traffic["byHour"] if each["hour"] is not None]
    if not rows:
        return None
    figure, axes = _new(2.6, 13.2)
    begins = _times(rows)
    # A bar covers its hour; a point of the line is drawn in the middle of its hour.
    axes.bar(
        begins, [each["messages"] / 3600 for each in rows], width=_HOUR / timedelta(days=1), align="edge", color=QUIET
    )
    hours = [begin + _HOUR / 2 for begin in begins]
    axes.set_ylabel("messages per second")
    sizes = axes.twinx()
    sizes.plot(hours, [each["bytes"] / 3600 for each in rows], color=PINNING, linewidth=1.2, marker=".")
    sizes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{size(value)}/s"))
    sizes.set_ylim(bottom=0)
    sizes.grid(visible=False)
    sizes.spines["right"].set_visible(True)
    _time_axis(axes)
    axes.set_title("bars: messages; line: bytes (mean of each hour)", loc="left", fontsize=9)
    return figure


def _topics(traffic: dict[str, Any]) -> Figure | None:
    rows = traffic["topTopics"][:12]
    if not rows:
        return None
    figure, axes = _new(0.9 + 0.26 * len(rows))
    places = range(len(rows))
    axes.barh(places, [each["bytes"] for each in rows], color=QUIET)
    axes.set_yticks(places, [name_of(each["topic"]) for each in rows])
    axes.invert_yaxis()
    _bytes_axis(axes.xaxis)
    return figure


def _sizes(traffic: dict[str, Any]) -> Figure | None:
    rows = traffic["sizes"]
    if not rows:
        return None
    figure, axes = _new()
    axes.bar([size(each["fromBytes"]) for each in rows], [each["messages"] for each in rows], color=QUIET, width=0.9)
    axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel("body of at least")
    axes.set_ylabel("messages")
    return figure


def _times(rows: Sequence[dict[str, Any]]) -> list[Any]:
    return [datetime.fromisoformat(each["hour"]) for each in rows]


def _time_axis(axes: Axes) -> None:
    locator = dates.AutoDateLocator(minticks=3, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
