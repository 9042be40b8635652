"""Executes a page of docs/ as a reader would: saves its programs, runs its commands, compares their output.

A fenced block below a line that ends with a file name in backticks and a colon is saved under that name. `sh` blocks
are run in order; a `text` block after one is its expected output. Hidden comments state exceptions:
`<!-- page: stays -->` (the command runs until the test ends), `<!-- page: stays: WORD, WORD -->` (the same for lines of
the block that contain one of the words), `<!-- page: not run -->`.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from delaymq_testing import any_disk

COMMAND_LIMIT_S = 60.0
BLOCK = re.compile(r"(?P<before>[^\n]*)\n+```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
SAVED_AS = re.compile(r"`([\w.-]+)`:$")
VARYING = (
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}",
    r"(?:\d\d:\d\d:\d\d(?:\.\d{3})?|\d{4}-\d\d-\d\d \d\d:\d\d)",
    r"[0-9A-F]{32}",
    r"\b\d{13}\b",
    r"[\d.]+ m?s\b",
    r"broker-a, queue \d+, offset \d+",
    r"broker-a, queue \d+",
    r"recall handle [\w+/=-]+",
)
"""Values that vary between runs: times, with a date if it is another day, IDs, durations, queues, recall handles."""
COUNT = r"\b\d+\b"
"""Values that vary when the page is followed twice: counts of messages, dead letters and so on."""
NOT_LATE = re.compile(r"(?<=:\d\d)  (?=\d+/\d+)")
"""Place of the lateness in the line of a level that has not delivered yet. On the second run, it may have done so: a
level of a minute, on a slow machine.
"""
LATENESS = r"(?:(?:  [\d.]+ m?s){3})?  "
PATIENCE = ("producer.start();", "producer.setSendMsgTimeout(15_000); producer.start();")
"""On a shared machine, a program's first send may take longer than RocketMQ's timeout of 3 s."""


@dataclass(frozen=True)
class Step:
    """A block of a page."""

    mark: str
    language: str
    saved_as: str | None
    text: str


def steps_of(page: Path) -> list[Step]:
    """Return the blocks of a page in order."""
    found = []
    for match in BLOCK.finditer(page.read_text()):
        mark = re.fullmatch(r"<!-- page: (.*) -->", match["before"])
        name = SAVED_AS.search(match["before"])
        found.append(Step(mark[1] if mark else "", match["language"], name[1] if name else None, match["text"]))
    return found


def without_widths(text: str) -> str:
    """Remove the padding of tables, which depends on their content."""
    return "\n".join(re.sub(r" {2,}", "  ", re.sub("─+", "─", line)).strip() for line in text.strip().splitlines())


def pattern_of(expected: str, *, again: bool = False) -> re.Pattern[str]:
    """Return a pattern for the output shown by the page, except for varying values; `again`: with other counts."""
    text = without_widths(expected)
    if again:
        return re.compile(LATENESS.join(_pattern(part, (*VARYING, COUNT)) for part in NOT_LATE.split(text)))
    return re.compile(_pattern(text, VARYING))


def _pattern(text: str, varying: Sequence[str]) -> str:
    pieces = re.split(f"({'|'.join(varying)})", text)
    kinds = [next((kind for kind in varying if re.fullmatch(kind, piece)), None) for piece in pieces]
    return "".join(kind or re.escape(piece) for kind, piece in zip(kinds, pieces, strict=True))


@dataclass
class PageRun:
    """One page in its own folder. `places` maps texts of its commands to replacements by the test."""

    folder: Path
    path_folders: list[Path]
    places: Mapping[str, str] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    _staying: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _again: bool = False

    def follow_twice(self, page: Path) -> None:
        """Call `follow` twice: on the second run, background commands still run and earlier messages exist."""
        self.follow(page)
        self._again = True
        self.follow(page)

    def follow(self, page: Path) -> None:
        """Execute the page from its first block to its last; AssertionError if output differs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        steps = steps_of(page)
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            if step.mark == "not run":
                continue
            if step.saved_as is not None:
                (self.folder / step.saved_as).write_text(step.text.replace(*PATIENCE))
            elif step.language == "sh":
                shown = following.text if following and following.language == "text" else None
                self._block(step, shown)

    def printed_by(self, word: str) -> str:
        """Return what the background command that contains `word` has printed so far."""
        [process] = [each for each in self._staying if word in str(each.args)]
        return self._log_path(self._staying.index(process)).read_text()

    def close(self) -> None:
        """Stop the background commands as Ctrl-C does."""
        for process in reversed(self._staying):
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(COMMAND_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _block(self, step: Step, shown: str | None) -> None:
        self.ran.append(step.text)
        text = step.text
        for place, other in self.places.items():
            text = text.replace(place, other)
        if step.mark == "stays":
            self._start(text)
        elif step.mark.startswith("stays: "):
            words = step.mark.removeprefix("stays: ").split(", ")
            for line in text.splitlines():
                if any(word in line for word in words):
                    self._start(line)
                else:
                    self._type(line, None)
        else:
            self._type(text, shown)

    def _type(self, text: str, shown: str | None) -> None:
        # `timeout` stops the block's programs too, and keeps their output.
        words = ["timeout", str(COMMAND_LIMIT_S), "bash", "-e", "-c", text]
        done = subprocess.run(
            words, cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
        if shown is not None:
            found = pattern_of(shown, again=self._again).fullmatch(without_widths(done.stdout))
            assert found, f"{text}printed\n{done.stdout}\nbut the page shows\n{shown}"

    def _log_path(self, number: int) -> Path:
        return self.folder / f"stays-{number}.log"

    def _start(self, text: str) -> None:
        if self._again:
            return
        log_path = self._log_path(len(self._staying))
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {text}"], cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._staying.append(process)
        deadline = time.monotonic() + COMMAND_LIMIT_S
        # The line for which the page tells the reader to wait.
        while "standalone" in text and "listens on 127.0.0.1:10911" not in log_path.read_text():
            assert process.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline, log_path.read_text()
            time.sleep(0.05)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DELAYMQ_")}
        path = os.pathsep.join([*map(str, self.path_folders), kept["PATH"]])
        return {
            **kept,
            **any_disk.ENVIRONMENT,
            "PATH": path,
            "HOME": str(self.folder),
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
        }
