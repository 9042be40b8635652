"""Repeating messages with the command line: send, list, show and cancel, against a broker; wrong options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from delaymq.cli.errors import EXIT_USAGE
from delaymq.cli.views.schedules import schedule_line, schedule_text
from delaymq_testing.cli_running import Standalone, called

EVERY = {
    "cron": None, "zone": None, "everyMs": 900_000, "untilMs": None, "runs": None, "missed": "latest", "run": 0,
    "lastRunMs": None,
}  # fmt: skip


def test_schedule_is_sent_listed_shown_and_cancelled(tmp_path: Path) -> None:
    standalone = Standalone(tmp_path)
    with standalone.running():

        def command(*words: str) -> list[str]:
            done = called(*words, environment=standalone.environment)
            assert (done.code, done.err) == (0, ""), done
            return done.lines

        [line] = command(
            "send", "Reports", "daily", "--cron", "0 9 * * 1-5", "--zone", "Europe/Berlin", "--delay-key", "daily"
        )
        assert "first run at 20" in line
        assert "recall handle" in line
        [sent] = command("send", "Reports", "often", "--every", "15m", "--runs", "3", "--missed", "all", "--json")
        assert json.loads(sent)["dueMs"] > 0
        listed = [" ".join(line.split()) for line in command("delay", "list", "--topic", "Reports")]
        assert any("0 9 * * 1-5 Europe/Berlin" in line for line in listed)
        assert any("every 15m" in line for line in listed)
        shown = command("delay", "show", "Reports", "--key", "daily")
        assert shown[0].endswith(": pending")
        assert shown[1].startswith("repeats 0 9 * * 1-5 Europe/Berlin, 0 runs so far, the next at 20")
        [row] = [json.loads(line) for line in command("delay", "show", "Reports", "--key", "daily", "--json")]
        assert row["repeats"]["cron"] == "0 9 * * 1-5"
        assert command("delay", "fire", "Reports", "--id", json.loads(sent)["messageId"])
        assert command("delay", "cancel", "Reports", "--key", "daily") == ["1 message cancelled"]
        wrong = called("send", "Reports", "x", "--cron", "61 * * * *", environment=standalone.environment)
        assert wrong.code not in (0, EXIT_USAGE)
        assert "field 1 (minute) of DELAY_CRON is '61'" in wrong.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--cron", "* * * * *", "--every", "5s"), "--cron and --every exclude each other"),
        (("--cron", "* * * * *", "--delay", "5s"), "--delay and --cron exclude each other"),
        (("--every", "5s", "--at", "2030-01-01T00:00Z"), "--at and --every exclude each other"),
        (("--zone", "UTC"), "--zone needs --cron or --every"),
        (("--every", "5s", "--zone", "UTC"), "--zone needs --cron: an interval has no time zone"),
        (("--runs", "3"), "--runs needs --cron or --every"),
        (("--every", "often"), "--every:"),
        (("--every", "5s", "--until", "tomorrow"), "'tomorrow' is not a due time"),
        (("--every", "5s", "--missed", "some"), "--missed"),
        (("--every", "5s", "--runs", "0"), "--runs"),
    ],
)
def test_wrong_options_are_rejected(words: tuple[str, ...], reason: str) -> None:
    done = called("send", "Reports", "x", *words)
    assert done.code == EXIT_USAGE
    assert reason in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "repeats every 15m, 0 runs so far, the next at 1970-01-01"),
        ({"run": 2, "runs": 3}, "repeats every 15m, 2 of 3 runs so far"),
        ({"run": None}, "an unknown number of runs so far"),
        ({"cron": "0 9 * * *", "zone": "UTC", "everyMs": None}, "repeats 0 9 * * * UTC, "),
        ({"untilMs": 5}, "repeats every 15m, until 1970-01-01"),
        ({"missed": "none"}, ", missed runs: none"),
        ({"run": 1, "lastRunMs": 5}, "1 runs so far, the last at 1970-01-01"),
    ],
)
def test_line_describes_the_schedule(changes: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    assert line in schedule_line({**EVERY, **changes}, 7_000, is_pending=True)


def test_ended_schedule_has_no_next_run() -> None:
    assert "next" not in schedule_line(EVERY, 7_000, is_pending=False)
    assert schedule_text(None) == ""
