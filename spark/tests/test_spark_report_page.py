"""The HTML report: completeness, size, escaping, and no external resources."""

from __future__ import annotations

import gzip
import re
import warnings
from datetime import datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from delaymq_spark.report import page as report
from delaymq_spark.report import plots
from delaymq_spark.report.page import render
from delaymq_spark.report.text import headline, lines
from delaymq_spark_testing.summaries import empty_summary, full_summary, iso
from matplotlib import dates
from matplotlib.patches import Rectangle

VOID = {"meta", "path", "use", "rect", "line", "br"}


class Checked(HTMLParser):
    """Parsed page, with its text and the tags that are not closed correctly."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Accept self-closing tags, which need no end tag."""

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def drawn(summary: dict[str, object]) -> tuple[str, str]:
    """Return the page and its text."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = render(summary)
    checked = Checked(page)
    assert checked.wrong == []
    assert checked.open == []
    return page, checked.text


def test_full_store_has_every_figure() -> None:
    page, text = drawn(full_summary())
    assert page.count("<svg") == 9
    assert "None" not in text
    assert "nan" not in text


def test_timed_messages_are_named_in_place_of_a_level() -> None:
    page, _ = drawn(full_summary())
    for cell in ("timed", "level 18"):
        assert f"<td>early</td><td>{cell}</td>" in page
    # The tick of one figure, and the legend of another.
    assert page.count(">timed</text>") == 2
    assert ">level None<" not in page


@pytest.mark.parametrize(("segments", "hours", "topics"), [(1, 1, 1), (41, 2, 2), (1_000, 744, 20)])
def test_small_and_large_stores_fit_the_figures(segments: int, hours: int, topics: int) -> None:
    page, text = drawn(full_summary(segments=segments, hours=hours, topics=topics, names=("T" * 100,)))
    assert len(gzip.compress(page.encode())) < 600_000
    assert ("segments more" in text) == (segments > 25)


def test_empty_store_is_reported_as_empty() -> None:
    page, text = drawn(empty_summary())
    assert "<svg" not in page
    assert "The store is empty." in text
    assert "This store contains no delayed messages." in text


def test_replayable_bytes_and_lagging_groups_appear_on_the_page_and_in_the_terminal() -> None:
    summary = full_summary(segments=4, topics=2)
    summary["compaction"] |= {"deadBytes": 4096, "settledBytes": 3072, "replayableBytes": 1024}
    text = Checked(report._compaction(summary["compaction"], {})).text
    assert "settled or expired3.0 KiB75" in text
    assert "consumed but still replayable1.0 KiB25" in text
    assert "g-Orders-0Orders-01,23481" in text
    assert "and 3 more with less lag" in text
    told = lines(summary, None)
    assert "of the dead bytes 3.0 KiB are settled or expired, 1.0 KiB consumed but still replayable" in told
    assert "  group g-Orders-1 lags by 1,234 messages in Orders-1" in told


def test_counts_of_one_use_the_singular() -> None:
    summary = full_summary()
    summary["totals"].update(messages=1, topics=1, segments=1)
    summary["compaction"]["pins"] = summary["compaction"]["pins"][:1]
    assert re.search(r": 1 message, .*, 1 topic, 1 segment$", lines(summary, None)[0])
    text = drawn(summary)[1]
    assert "1 message in 1 topic" in text
    assert "in or behind 1 segment with pending messages" in text


def test_each_bar_of_the_rate_covers_its_hour() -> None:
    figure = plots._rate(full_summary(hours=3)["traffic"])
    assert figure is not None
    bars = figure.axes[0].patches
    points: Any = figure.axes[1].lines[0].get_xdata()
    first = datetime.fromisoformat(iso(0))
    for number, bar in enumerate(bars):
        assert isinstance(bar, Rectangle)
        begin, end = (dates.num2date(x) for x in (bar.get_x(), bar.get_x() + bar.get_width()))
        assert abs(begin - first - timedelta(hours=number)) < timedelta(seconds=1)
        assert abs(end - begin - timedelta(hours=1)) < timedelta(seconds=1)
        assert abs(points[number] - begin - timedelta(minutes=30)) < timedelta(seconds=1)


def test_store_without_delays_has_no_figures_of_delays() -> None:
    summary = full_summary()
    summary["delay"] = empty_summary()["delay"]
    _, text = drawn(summary)
    assert "This store contains no delayed messages." in text
    assert "Promises" not in text


def test_names_are_shown_literally_and_never_as_markup_or_formulas() -> None:
    names = ("<script>alert(1)</script>", "$\\frac{a}", "主题", "a\x00b\u202e", "&lt;", "'\"")
    page, text = drawn(full_summary(names=names))
    assert "<script" not in page
    assert "\x00" not in page
    assert "\u202e" not in page
    assert "<script>alert(1)</script>-0" in text
    assert "主题-2" in text


def test_page_adapts_to_colour_scheme_and_width_and_loads_nothing() -> None:
    page, _ = drawn(full_summary())
    assert "prefers-color-scheme:dark" in page
    assert "width=device-width" in page
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|href)=["\'](?!#)[^"\']*', page) == []
    assert re.findall(r"url\((?!#)", page) == []


def test_skipped_parts_are_listed_first() -> None:
    summary = full_summary()
    summary |= {"complete": False, "skippedCount": 1}
    summary["delay"]["lossesCertain"] = False
    summary["skipped"] = [
        {
            "file": "/store/commitlog/0",
            "position": 7,
            "offset": 7,
            "lostBytes": 99,
            "reason": "no record",
            "atEnd": False,
        }
    ]
    _, text = drawn(summary)
    assert text.index("Parts of the store were skipped") < text.index("reclaimed by the plan")
    assert "lost at most" in text


def test_headline_states_compaction_lateness_and_losses() -> None:
    summary = full_summary()
    summary["delay"] |= {"lost": 0, "early": 0, "duplicates": 0, "lossesCertain": True}
    told = " ".join(headline(summary))
    assert "is dead; compaction would reclaim" in told
    assert "90 delayed messages were delivered, 99 % at most 90 ms late, at worst 1.2 min." in told
    assert "No message was lost, early or delivered twice." in told
    assert lines(summary, None)[0].startswith("/store: 30,000,000 messages")
