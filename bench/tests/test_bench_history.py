"""History of the benchmark's results: recording, replacement, limits, and errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from reporting import commits, history
from reporting.history import Entry, HistoryError, entry_of, joined, merged, newest, page, parse, record
from reporting.report import REAL, Report
from reporting.spread import Spread
from rows import SEND_GROUPS, Sample, processor_row, rate_row
from subjects import Contender

COMMIT = "57c7f02119bc" + "0" * 28
OTHER = "84e2d5f38f75" + "1" * 28


def results(*, commit: str = COMMIT, is_dirty: bool = False, measured_at: str = "2026-11-28T12:00:00Z") -> Any:
    """Return results of two interpreters and RocketMQ's broker in two pairs, as read from a file."""
    builds = ["ours A", "ours B"]
    taking_part = [*(Contender(label, "ours", interpreter="CPython 3.11.7") for label in builds),
                   Contender(REAL, "real")]  # fmt: skip
    report = Report(taking_part, title="DelayMQ compared with RocketMQ")
    for pair, value in ((1, 30_000.0), (2, 28_000.5)):
        for factor, label in enumerate([*builds, REAL], start=1):
            rate, processor = (row("sync8", SEND_GROUPS["sync8"], 1024) for row in (rate_row, processor_row))
            report.add(label, pair, [Sample(rate, value * factor)])
            if label != "ours A" or pair == 1:
                report.add(label, pair, [Sample(processor, 99.96 / factor)])
    report.failures.append("pair 2, serving, ours A: no response")
    state = {"hash": commit, "is_dirty": is_dirty}
    facts = {"commits": dict.fromkeys(builds, state), "measured_at": measured_at}
    return json.loads(json.dumps(report.content(["--pairs", "2"], facts)))


def entry(commit: str = COMMIT, *, is_dirty: bool = False, hour: int = 12) -> Entry:
    return entry_of(results(commit=commit, is_dirty=is_dirty, measured_at=f"2026-11-28T{hour:02}:00:00Z"),
                    allow_dirty=True)  # fmt: skip


def test_entry_contains_medians_ranges_and_ratios() -> None:
    rate, processor = entry().rows
    assert (rate.title, rate.unit, rate.pairs) == ("sync send, 8 threads, 1024 B", "messages/s", 2)
    assert rate.spreads["ours A"] == Spread(29_000, (28_000, 30_000))
    assert rate.spreads["ours B/real"] == Spread(0.67, (0.67, 0.67))
    assert list(rate.spreads) == ["ours A", "ours B", "real", "ours A/real", "ours B/real"]
    assert (processor.spreads["ours A"], processor.pairs) == (Spread(100), 1)


def test_entry_states_the_conditions() -> None:
    facts = entry().facts
    assert list(facts) == [
        "machine",
        "interpreter (ours A)",
        "interpreter (ours B)",
        "options",
        "failed measurements",
    ]
    assert "processors" in facts["machine"]
    assert "load" in facts["machine"]
    assert (facts["options"], facts["failed measurements"]) == ("`--pairs 2`", "1")


def test_page_can_be_parsed_again() -> None:
    entries = [entry(hour=13), entry(OTHER, is_dirty=True)]
    assert parse(page(entries)) == entries
    assert page(parse(page(entries))) == page(entries)
    assert parse(page([])) == []


def test_page_of_this_checkout_can_be_parsed() -> None:
    text = commits.HISTORY_PATH.read_text()
    assert page(parse(text)) == text


def test_parts_of_a_run_are_one_entry(tmp_path: Path) -> None:
    first, second = results(), results(measured_at="2026-11-28T13:00:00Z")
    first["rows"], second["rows"] = [first["rows"][0]], [first["rows"][0] | {"title": "again"}, second["rows"][1]]
    paths = [tmp_path / "1.json", tmp_path / "2.json"]
    for path, part in zip(paths, (first, second), strict=True):
        path.write_text(json.dumps(part))
    found = record(tmp_path / "page.md", *paths, allow_dirty=False)
    assert [row.title for row in found.rows] == ["again", "sync send, 8 threads, 1024 B: processor"]
    assert found.measured_at == "2026-11-28T13:00:00Z"
    assert found.facts["options"] == "`--pairs 2 ; --pairs 2`"
    assert found.facts["failed measurements"] == "2"


def test_parts_of_other_commits_or_columns_are_rejected() -> None:
    for other in (results(commit=OTHER), results() | {"interpreters": {"ours": "CPython 3.13"}}):
        with pytest.raises(HistoryError, match=r"the files differ in `(commits|interpreters)`"):
            joined([results(), other])
    with pytest.raises(HistoryError, match="does not contain results"):
        joined([results(), {}])


def test_entry_of_the_same_commit_is_replaced() -> None:
    first, second, other = entry(), entry(hour=14), entry(OTHER, hour=13)
    assert merged(merged([first], other), second) == [second, other]


def test_entry_with_other_columns_is_kept() -> None:
    wide, narrow = entry(), entry(hour=13)
    for row in narrow.rows:
        del row.spreads["ours B"], row.spreads["ours B/real"]
    assert merged([wide], narrow) == [narrow, wide]


def test_entry_with_uncommitted_changes_does_not_replace_that_of_the_commit() -> None:
    clean, dirty = entry(), entry(is_dirty=True, hour=13)
    assert merged([clean], dirty) == [dirty, clean]


def test_oldest_entries_beyond_the_limit_are_removed() -> None:
    entries: list[Entry] = []
    for number in range(history.ENTRIES + 2):
        entries = merged(entries, entry(f"{number:040x}", hour=number))
    assert [each.measured_at[11:13] for each in entries] == [f"{hour:02}" for hour in range(13, 1, -1)]


def test_uncommitted_changes_are_rejected_unless_allowed() -> None:
    with pytest.raises(HistoryError, match=r"uncommitted changes: commit .* or pass --allow-dirty"):
        entry_of(results(is_dirty=True), allow_dirty=False)
    assert entry_of(results(is_dirty=True), allow_dirty=True).is_dirty


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"commits": {"ours A": None}}, "its commit is unknown: use `make bench`"),
        ({"commits": {}}, "its commit is unknown: use `make bench`"),
        ({"commits": {"ours A": {"hash": COMMIT, "is_dirty": False}, "ours B": {"hash": OTHER, "is_dirty": False}}},
         "the results compare different commits"),
        ({"commits": {"A": COMMIT, "B": OTHER}}, "does not contain results of the current bench/run.py"),
        ({"base": "real 5.3.3"}, "compare DelayMQ with 'real 5.3.3', .*: use `make bench` without --real 5.3"),
        ({"rows": []}, "no row was measured: run `make bench` again"),
        ({"rows": [{"title": "x"}]}, "does not contain results of the current bench/run.py"),
        ({"load": None}, "does not contain results of the current bench/run.py"),
        ({"measured_at": 5}, "does not contain results of the current bench/run.py"),
    ],
)  # fmt: skip
def test_other_results_are_rejected(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(HistoryError, match=problem):
        entry_of({**results(), **changes}, allow_dirty=False)


def test_newest_results_of_the_benchmark_are_recorded(tmp_path: Path) -> None:
    for name in ("20261128-110000", "20261128-120000", "compare-20261128-130000", "hostile-20261128-130000",
                 "real-5.3-20261128-130000", "nats-20261128-130000"):  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(results()))
    target = tmp_path / "history.md"
    found = newest(tmp_path)
    assert found.name == "20261128-120000.json"
    record(target, found, allow_dirty=False)
    recorded = record(target, found, allow_dirty=False)
    assert parse(target.read_text()) == [recorded] == [entry()]


def test_missing_or_unreadable_results_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="contains no results: run `make bench` first"):
        newest(tmp_path)
    path = tmp_path / "broken.json"
    for content, problem in (("{", "cannot be read as JSON"), ("[]", "does not contain results")):
        path.write_text(content)
        with pytest.raises(HistoryError, match=problem):
            record(tmp_path / "history.md", path, allow_dirty=False)
    assert not (tmp_path / "history.md").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("## 2026-11-28, commit", "## 28 November, commit"),
        (COMMIT, OTHER),
        ("30,000", "many"),
        ("| messages/s | ", "| "),
        ("| messages/s | ", "messages/s | "),
        ("| fact | value |", "A sentence."),
        ("| fact | value |", "| fact | value | more |"),
        ("| measured at | 2026-11-28", "| measured at | 2026-11-27"),
    ],
)
def test_page_that_was_edited_into_another_form_is_an_error(tmp_path: Path, old: str, new: str) -> None:
    text = page([entry()])
    assert old in text
    target = tmp_path / "history.md"
    target.write_text(text.replace(old, new))
    (tmp_path / "1.json").write_text(json.dumps(results()))
    with pytest.raises(HistoryError, match=r"line \d+ of docs/performance-history.md: .*: restore the page with"):
        record(target, tmp_path / "1.json", allow_dirty=False)
    assert target.read_text() == text.replace(old, new)
