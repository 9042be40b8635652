"""Statistics and tables of the benchmark's results."""

import re
from collections.abc import Mapping, Sequence

import pytest
from reporting import spread, tables
from reporting.report import REAL, Report
from reporting.spread import Spread
from rows import Row, Sample
from runner import rotated
from subjects import Contender

RATE = Row("rate", "sync1", "sync send", "messages/s", "higher", "ratio ≥ 1")
PROCESSOR = Row("cpu", "sync1", "sync send: processor", "µs/message", "lower")
OURS = Contender("ours", "ours", interpreter="CPython 3.11.7")
REAL_BROKER = Contender(REAL, "real", version="RocketMQ 4.9.7")
A, B = Contender("A", "ours"), Contender("B", "ours")


def report_of(
    samples: Mapping[str, Sequence[float]],
    *,
    row: Row = RATE,
    base: str = REAL,
    taking_part: Sequence[Contender] = (OURS, REAL_BROKER),
) -> Report:
    """Return a report of one row with the value of each pair, by contender."""
    report = Report(taking_part, title="DelayMQ compared", base=base, has_targets=base == REAL)
    for label, values in samples.items():
        for pair, value in enumerate(values, start=1):
            report.add(label, pair, [Sample(row, value)])
    return report


def cells_of(report: Report) -> dict[str, str]:
    """Return the cells of the report's only row, by column; the columns `range` are numbered."""
    lines = [line for line in report.markdown().splitlines() if line.startswith("|")]
    head, row = tables.parsed(lines[0]), tables.parsed(lines[2])
    names = [f"range {index}" if name == "range" else name for index, name in enumerate(head)]
    return dict(zip(names, row, strict=True))


def test_spread_is_the_median_and_the_range() -> None:
    assert Spread.of([3, 1, 10]) == Spread(3, (1, 10))
    assert Spread.of([4, 2]) == Spread(3, (2, 4))


def test_one_sample_has_no_range() -> None:
    assert Spread.of([5.0]) == Spread(5.0)
    assert Spread.of([]) is None


@pytest.mark.parametrize(
    ("ratios", "excludes"),
    [([1.1, 1.2], True), ([0.7, 0.99], True), ([0.9, 1.1], False), ([1.0, 1.2], False), ([1.5], False)],
)
def test_range_excludes_one_only_if_two_or_more_ratios_are_on_one_side(ratios: list[float], excludes: bool) -> None:
    found = Spread.of(ratios)
    assert found is not None
    assert found.excludes_one is excludes


def test_ratios_are_computed_within_pairs_that_both_completed() -> None:
    assert spread.ratios({1: 10, 2: 30, 3: 50, 4: 7}, {2: 10, 3: 100, 4: 0, 5: 1}) == [3.0, 0.5]


@pytest.mark.parametrize("value", [0, 0.004, 1.005, 9.994, 9.996, 10, 99.94, 99.96, 100, 999.5, 30_049.4, 1_234_567.8])
def test_text_of_a_number_is_stable_when_parsed(value: float) -> None:
    text = spread.number(value)
    assert spread.number(spread.value_of(text)) == text
    assert spread.value_of(text) == pytest.approx(value, rel=0.006, abs=0.005)


def test_cells_of_a_spread_can_be_parsed() -> None:
    for found in (Spread(30_049, (29_000, 31_200)), Spread(1.5), None):
        assert spread.spread_of(*spread.cells(found, spread.number)) == found


def test_row_shows_medians_with_their_ranges() -> None:
    found = cells_of(report_of({"ours": [300, 200, 280], REAL: [100, 400, 200]}))
    assert found == {
        "measurement": "sync send", "unit": "messages/s", "ours": "280", "range 3": "200–300", "real": "200",
        "range 5": "100–400", "ours/real": "1.40", "range 7": "0.50–3.00", "pairs": "3", "better": "higher",
        "target": "ratio ≥ 1",
    }  # fmt: skip


def test_single_pair_is_stated_below_the_table() -> None:
    single = report_of({"ours": [300], REAL: [100]})
    assert cells_of(single)["pairs"] == "1"
    assert "1 pair have no range" in single.terminal()
    assert "1 pair have no range" in single.markdown()
    assert "1 pair" not in report_of({"ours": [300, 200], REAL: [100, 90]}).terminal()


def test_failed_measurement_of_one_contender_reduces_the_pairs() -> None:
    found = cells_of(report_of({"ours": [300, 200, 280], REAL: [100]}))
    assert (found["pairs"], found["ours/real"], found["range 7"]) == ("1", "3.00", "")


def test_run_of_one_contender_has_no_ratios() -> None:
    assert "ours/real" not in report_of({"ours": [300]}, taking_part=[OURS]).terminal()


@pytest.mark.parametrize(
    ("row", "values", "expected"),
    [
        (RATE, [110, 120, 130], "B better"),
        (RATE, [90, 80, 70], "B worse"),
        (PROCESSOR, [110, 120, 130], "B worse"),
        (PROCESSOR, [90, 80, 70], "B better"),
        (RATE, [90, 120, 130], ""),
        (RATE, [200], ""),
    ],
)
def test_comparison_marks_rows_that_differ_in_every_pair(row: Row, values: list[float], expected: str) -> None:
    samples = {"A": [100.0] * len(values), "B": values}
    assert cells_of(report_of(samples, row=row, base="A", taking_part=(A, B)))["difference"] == expected


def test_comparison_states_how_often_a_difference_appears_by_chance() -> None:
    text = report_of({"A": [1, 1, 1, 1, 1], "B": [2, 2, 2, 2, 2]}, base="A", taking_part=(A, B)).terminal()
    assert "1 in 16 shows one by chance with 5 pairs" in text


def test_json_contains_every_sample() -> None:
    content = report_of({"ours": [300, 200], REAL: [100, 400]}).content(["--quick"], {"commits": {}})
    (row,) = content["rows"]
    assert row["pairs"] == {"ours": {1: 300, 2: 200}, REAL: {1: 100, 2: 400}}
    assert row["ratios"]["ours"] == [3.0, 0.5]
    assert (content["arguments"], content["commits"]) == (["--quick"], {})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", content["measured_at"])


def test_report_states_title_and_versions() -> None:
    found = report_of({"ours": [300], REAL: [100]})
    assert found.markdown().startswith("# DelayMQ compared\n\n| measurement |")
    assert found.terminal().startswith("DelayMQ compared\n\nmeasurement")
    assert "; ours on CPython 3.11.7; real: RocketMQ 4.9.7" in found.markdown()
    content = found.content([])
    assert (content["title"], content["versions"]) == ("DelayMQ compared", {REAL: "RocketMQ 4.9.7"})


def test_row_that_a_contender_does_not_have_is_neither_empty_nor_a_failure() -> None:
    found = report_of({"ours": [300, 200]})
    found.add_missing(REAL, {"sync1", "other"}, "it sends only batches")
    cells = cells_of(found)
    assert (cells["ours"], cells["real"], cells["ours/real"], cells["pairs"]) == ("250", "no such row", "–", "2")
    assert "- no such row: sync1, real: it sends only batches\n" in found.markdown()
    assert "\nno such row: other, real: it sends only batches\n" in found.terminal()
    content = found.content([])
    assert content["failures"] == []
    assert content["no_such_rows"] == [
        {"group": group, "contender": REAL, "reason": "it sends only batches"} for group in ("other", "sync1")
    ]


def test_cells_with_special_characters_can_be_parsed() -> None:
    cells = ["a | b", "back\\slash", "", "two\nlines", "end\\|"]
    line = tables.markdown(cells, [])[0]
    assert tables.parsed(line) == ["a | b", "back\\slash", "", "two lines", "end\\|"]


@pytest.mark.parametrize("line", ["", "|", "| |", "text", "| a", "a |"])
def test_line_that_is_not_a_table_row_is_rejected(line: str) -> None:
    with pytest.raises(ValueError, match="a table row is expected here"):
        tables.parsed(line)


def test_each_pair_starts_with_another_contender() -> None:
    order = ["".join(each.label for each in rotated([A, B, OURS], pair)) for pair in (1, 2, 3, 4)]
    assert order == ["ABours", "BoursA", "oursAB", "ABours"]
