"""Reading of audit logs: order, pages, filters, damaged files."""

import random
from pathlib import Path

import pytest
from delaymq.api_types.audit import AuditLine
from delaymq.audit.files import file_name
from delaymq.audit.reading import MAX_LINE_BYTES, Cursor, Filter, cursor_of, cursor_text, read_page
from delaymq_testing.audit_lines import NOW_MS, Clock, attempt, opened, text_of
from delaymq_testing.repetitions import SEED

ALL = Filter()


def filled(folder: Path, count: int, *, max_bytes: int = 65_536) -> list[str]:
    """The topics of `count` lines, one each second, the newest first."""
    clock = Clock()
    log = opened(folder, clock, max_bytes=max_bytes, max_files=1_000)
    for number in range(count):
        log.record(attempt(topic=f"T{number}"), "done", 0)
        clock.ms += 1_000
    log.close()
    return [f"T{number}" for number in reversed(range(count))]


def topics(lines: list[AuditLine]) -> list[str]:
    return [line.target["topic"] for line in lines]


def test_page_has_the_newest_lines_first(tmp_path: Path) -> None:
    expected = filled(tmp_path, 1_000)
    page = read_page(tmp_path, ALL, 5)
    assert topics(page.lines) == expected[:5]
    assert page.next is not None


@pytest.mark.parametrize("limit", [1, 7, 400, 100_000])
@pytest.mark.parametrize("max_bytes", [1 << 40, 1_000])
def test_pages_together_have_all_lines_once(tmp_path: Path, limit: int, max_bytes: int) -> None:
    expected = filled(tmp_path, 1_000)
    found: list[str] = []
    before: Cursor | None = None
    for _ in range(1_002):
        page = read_page(tmp_path, ALL, limit, before, max_bytes)
        found += topics(page.lines)
        before = page.next
        if before is None:
            break
        before = cursor_of(cursor_text(before))
    assert found == expected


def test_pages_stay_valid_while_lines_are_added_and_old_files_deleted(tmp_path: Path) -> None:
    expected = filled(tmp_path, 1_000)
    page = read_page(tmp_path, ALL, 10)
    opened(tmp_path, max_files=1_000).record(attempt(topic="newer"), "done", 0)
    assert topics(read_page(tmp_path, ALL, 10, page.next).lines) == expected[10:20]
    (tmp_path / file_name(1)).unlink()
    rest = read_page(tmp_path, ALL, 10_000, page.next)
    assert rest.next is None
    assert topics(rest.lines) == expected[10 : 10 + len(rest.lines)]
    assert read_page(tmp_path, ALL, 10, (1, 100)).lines == []


def test_folder_without_files_is_an_empty_page(tmp_path: Path) -> None:
    assert read_page(tmp_path / "nothing", ALL, 10).lines == []
    (tmp_path / file_name(1)).touch()
    assert read_page(tmp_path, ALL, 10).next is None


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (Filter(account="operators"), 1),
        (Filter(account="oper"), 0),
        (Filter(action="topic"), 2),
        (Filter(action="topic.delete"), 1),
        (Filter(action="top"), 0),
        (Filter(target="ORD"), 2),
        (Filter(target="mine"), 1),
        (Filter(result="refused"), 1),
        (Filter(peer="10.0.0."), 3),
        (Filter(peer="10.1"), 0),
        (Filter(from_ms=NOW_MS + 1), 2),
        (Filter(until_ms=NOW_MS + 1), 1),
        (Filter(from_ms=NOW_MS + 1, until_ms=NOW_MS + 2), 1),
        (Filter(action="topic", target="orders", result="done"), 1),
    ],
)
def test_filters_select_lines(tmp_path: Path, wanted: Filter, count: int) -> None:
    clock = Clock()
    log = opened(tmp_path, clock)
    log.record(attempt(account="operators", topic="Orders"), "done", 0)
    clock.ms += 1
    log.record(attempt("topic.delete", topic="Orders"), "refused", 16)
    clock.ms += 1
    log.record(attempt("group.put", group="mine"), "done", 0)
    assert len(read_page(tmp_path, wanted, 10).lines) == count


def test_incomplete_last_line_is_not_read(tmp_path: Path) -> None:
    expected = filled(tmp_path, 3)
    with (tmp_path / file_name(1)).open("a") as file:
        file.write('{"time":"2026')
    page = read_page(tmp_path, ALL, 10)
    assert (topics(page.lines), page.unreadable) == (expected, 0)


def test_damaged_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    path = tmp_path / file_name(1)
    good = path.read_bytes().splitlines(keepends=True)
    deep = b"[" * 10_000 + b"\n"
    path.write_bytes(good[0] + b"\xff\xfe\n{}\n" + b"y" * (3 * MAX_LINE_BYTES) + b"\n\n" + deep + good[1])
    page = read_page(tmp_path, ALL, 10)
    assert (topics(page.lines), page.unreadable) == (["T1", "T0"], 4)


def test_unknown_members_of_newer_versions_are_ignored(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    path = tmp_path / file_name(1)
    path.write_text(path.read_text().replace('{"time"', '{"more":[1],"time"'))
    assert topics(read_page(tmp_path, ALL, 10).lines) == ["T0"]


def test_random_bytes_in_files_never_raise(tmp_path: Path) -> None:
    chance = random.Random(f"audit reading {SEED}")
    filled(tmp_path, 600)
    whole = text_of(tmp_path).encode()
    path = tmp_path / file_name(1)
    for _ in range(200):
        data = bytearray(whole[: chance.randrange(len(whole))])
        for _ in range(chance.randrange(50)):
            at = chance.randrange(len(data) + 1)
            data[at:at] = chance.randbytes(chance.choice((1, 3, 70_000)))
        path.write_bytes(data)
        before: Cursor | None = None
        for _ in range(100_000):
            page = read_page(tmp_path, ALL, chance.randrange(1, 50), before, chance.choice((1, 10_000, 1 << 40)))
            if page.next is None:
                break
            assert before is None or page.next < before
            before = page.next
        else:
            raise AssertionError("the pages do not end")


@pytest.mark.parametrize("text", ["", "1", "1-", "-1", "a-b", "1-2-3", "9" * 16 + "-1", "1-" + "9" * 19, "1-2\n"])
def test_invalid_cursors_are_recognised(text: str) -> None:
    assert cursor_of(text) is None
