"""Behaviour on terminals only: prompts, live displays, hidden columns."""

import io
import os
import subprocess
import sys

import pytest
from delaymq.cli import options
from delaymq.cli.commands.delay.watch import _Looks
from delaymq.cli.errors import CommandError
from delaymq.cli.terminal import output, tables
from rich.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answered(monkeypatch: pytest.MonkeyPatch, text: str) -> Terminal:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(text))
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_terminal_prompt_accepts_yes(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    shown = answered(monkeypatch, answer)
    options.confirm("Delete it?", False)
    assert shown.getvalue() == "Delete it? [y/N] "


@pytest.mark.parametrize("answer", ["\n", "n\n", "", "yess\n"])
def test_terminal_prompt_takes_anything_else_as_no(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    answered(monkeypatch, answer)
    with pytest.raises(CommandError, match="nothing was changed") as caught:
        options.confirm("Delete it?", False)
    assert caught.value.exit_code == 1


def text_of(thing: object, width: int = 120) -> str:
    shown = Console(file=io.StringIO(), width=width)
    shown.print(thing)
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def level(offset: int, pending: int) -> dict[str, object]:
    return {
        "level": 2, "delayMs": 5_000, "inTable": True, "offset": offset, "maxOffset": offset + pending,
        "pending": pending, "nextDueMs": None, "lateness": None,
    }  # fmt: skip


def test_live_display_shows_pending_messages_and_rates() -> None:
    looks = _Looks()
    first = text_of(looks.picture({"asOfMs": 1_000, "levels": [level(10, 5)]}))
    assert "5 pending" in first
    assert "/s" not in first
    assert "20/s" in text_of(looks.picture({"asOfMs": 2_000, "levels": [level(30, 0)]}))
    assert "no broker at" in text_of(looks.picture("no broker at http://x"))
    # A broker that was restored counts from another place: no negative rate.
    assert "0/s" in text_of(looks.picture({"asOfMs": 3_000, "levels": [level(1, 0)]}))


def test_live_display_shows_the_rate_of_timed_messages() -> None:
    timed = {"pending": 9, "delivered": 2, "nextDueMs": None, "lateness": dict.fromkeys(("p50Ms", "p99Ms", "maxMs"), 1)}
    looks = _Looks()
    for answer, shown in (
        ({"asOfMs": 1_000, "levels": []}, "0 pending"),  # an older broker, which is replaced
        ({"asOfMs": 2_000, "levels": [], "timed": timed}, "0/s"),
        ({"asOfMs": 4_000, "levels": [], "timed": {**timed, "delivered": 52}}, "25/s"),
        ({"asOfMs": 5_000, "levels": [], "timed": timed}, "0/s"),
    ):
        assert shown in text_of(looks.picture(answer))


def test_narrow_terminal_wraps_text_and_keeps_ids_whole() -> None:
    message_id = "A" * 32
    shown = text_of(tables.table(("id", "how"), [(message_id, "word " * 20)], left=2, elastic=1), width=60)
    assert message_id in shown
    assert shown.count("word") == 20
    assert "hidden columns" not in shown


COLUMNS = ("topic", "kind", "last stored", "messages", "")
ROWS = [("Orders", "normal", "2026-11-21 19:53:31", "12345", "███"), ("Bills", "retry", "", "7", "█")]


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (54, []),
        (53, []),  # a bar is only a picture of a number
        (47, ["messages"]),
        (36, ["last stored"]),
        (25, ["last stored", "messages"]),
        (14, ["kind", "last stored", "messages"]),
    ],
)
def test_narrow_terminal_names_hidden_columns_and_truncates_nothing(width: int, left_out: list[str]) -> None:
    shown = text_of(tables.table(COLUMNS, ROWS, left=3), width)
    assert all(len(line) <= width for line in shown.splitlines())
    assert "…" not in shown
    said = " ".join(shown.split())
    assert (f"hidden columns: {', '.join(left_out)};" in said) is bool(left_out)
    for column, cell in zip(COLUMNS[:-1], ROWS[0][:-1], strict=True):
        assert (cell in said) is (column not in left_out)


def test_first_column_wider_than_the_terminal_wraps() -> None:
    lines = text_of(tables.table(COLUMNS, ROWS, left=3), 4).splitlines()
    assert [line.strip() for line in lines[3:7]] == ["Orde", "rs", "Bill", "s"]


def test_wide_and_control_characters_count_as_displayed() -> None:
    row = ("名前" * 5, "a\x1bb", "x" * 10)
    for width, has_all in ((20 + 3 + 6 + 3 + 10, True), (20 + 3 + 6 + 3 + 9, False)):
        shown = io.StringIO()
        output.PlainConsole(file=shown, width=width).print(tables.table(("a", "b", "c"), [row], left=3))
        assert ("x" * 10 in shown.getvalue()) is has_all
        assert ("hidden columns: c;" in " ".join(shown.getvalue().split())) is not has_all
        assert "名前" * 5 in shown.getvalue()
        assert "a\\x1bb" in shown.getvalue()


def test_pipe_shows_all_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [f"column{number}" for number in range(10)]
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    output.console().print(tables.table(columns, [["x" * 40] * 10], left=10))
    assert out.getvalue().count("x" * 40) == 10
    assert all(column in out.getvalue() for column in columns)


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = io.StringIO()
    monkeypatch.setattr(sys, "stderr", quiet)
    with output.progress("topics", 2) as step:
        step()
    assert quiet.getvalue() == ""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress("topics", 2) as step:
        step()
        step()
    assert "topics" in shown.getvalue()


def test_one_interrupt_ends_a_prompt_within_an_event_loop() -> None:
    code = """
import asyncio, os, signal, sys
from delaymq.cli import options
class Terminal:
    def isatty(self): return True
    def readline(self):
        os.kill(os.getpid(), signal.SIGINT)
        return sys.__stdin__.readline()
sys.stdin = Terminal()
sys.stderr.isatty = lambda: True
async def ask():
    options.confirm("Delete it?", False)
try:
    asyncio.run(ask())
except KeyboardInterrupt:
    os._exit(130)
"""
    reading, writing = os.pipe()
    try:
        done = subprocess.run([sys.executable, "-c", code], stdin=reading, capture_output=True, timeout=60, check=False)
    finally:
        os.close(reading)
        os.close(writing)
    assert done.returncode == 130, done.stderr
