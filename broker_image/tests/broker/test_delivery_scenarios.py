"""Runs the scenarios in tests/broker/delays/*.txt: each line a command, indented lines its expected output."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq.message.errors import IllegalMessageError
from delaymq.message.levels import DelayLevels
from delaymq.message.record import SIZE_AND_MAGIC, decode_record
from delaymq.store.errors import RecordTooLargeError, StoreFullError
from delaymq.store.model import NewRecord
from delaymq_testing.broker.delivery_harness import START_MS, Bench, Settings

FOLDER = Path(__file__).parent / "delays"


class Story:
    """The commands of a story. Times are ms after the start."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.places: dict[str, int] = {}

    def play(self, line: str) -> list[str]:
        for pattern, command in COMMANDS:
            if match := re.fullmatch(pattern, line):
                return command(self, *match.groups())
        raise AssertionError(f"no command reads like this: {line}")

    def levels(self, text: str) -> list[str]:
        self.bench.levels = DelayLevels.parse(text)
        self.bench.delivery.set_levels(self.bench.levels)
        return []

    def overflow(self, choice: str) -> list[str]:
        self.bench.settings = Settings(delay_level_overflow=choice)
        self.bench.delivery.set_settings(self.bench.settings)
        return []

    def at(self, offset_ms: str) -> list[str]:
        self.bench.now_ms = START_MS + int(offset_ms)
        return []

    def send(self, body: str, topic: str | None, level: str) -> list[str]:
        before = self.bench.delivery.counters.clamped
        try:
            appended = self.bench.send(body, int(level), topic=topic or "orders")
        except IllegalMessageError as error:
            return [f"refused: {error}"]
        self.places[body] = appended.physical_offset
        return ["clamped"] if self.bench.delivery.counters.clamped > before else []

    def foreign_send(self, body: str, level: str) -> list[str]:
        self.places[body] = self.bench.foreign_send(body, int(level)).physical_offset
        return []

    def foreign_deliver(self, body: str) -> list[str]:
        self.bench.foreign_deliver(self.places[body])
        return []

    def schedule_raw(self, body: str, properties: str) -> list[str]:
        pairs = dict(pair.split("=", 1) for pair in properties.split())
        self.places[body] = self.bench.append(
            body, topic="SCHEDULE_TOPIC_XXXX", queue_id=0, properties={"UNIQ_KEY": body, "DELAY": "1", **pairs}
        ).physical_offset
        return []

    def hand_over(self, budget: str | None) -> list[str]:
        return self.bench.hand_over(int(budget or 1_000)) or ["nothing"]

    def run_until(self, offset_ms: str) -> list[str]:
        return self.bench.run_until(int(offset_ms)) or ["nothing"]

    def wakeup(self) -> list[str]:
        wakeup_ms = self.bench.delivery.next_wakeup_ms()
        return ["never" if wakeup_ms is None else f"at {wakeup_ms - START_MS}"]

    def flush(self) -> list[str]:
        self.bench.store.flush()
        return []

    def save(self) -> list[str]:
        before = self.bench.files.get("delayOffset.json")
        self.bench.save()
        after = self.bench.files.get("delayOffset.json")
        return [] if before == after or after is None else [after.decode()]

    def snapshot(self) -> list[str]:
        self.bench.take_snapshot()
        return []

    def forget_snapshot(self) -> list[str]:
        self.bench.snapshot = None
        return []

    def kill(self) -> list[str]:
        self.bench.kill()
        return self.start()

    def lose_power(self) -> list[str]:
        self.bench.lose_power()
        return self.start()

    def stop(self) -> list[str]:
        self.bench.stop()
        return [self.bench.files["delayOffset.json"].decode(), *self.start()]

    def start(self) -> list[str]:
        self.bench.start()
        return [
            f"level {each.level}: {each.reason}, {each.stated} → {each.position}"
            for each in self.bench.delivery.corrected
        ]

    def write_file(self, text: str) -> list[str]:
        self.bench.files.pop("delayOffset.json.bak", None)
        self.bench.files["delayOffset.json"] = text.encode()
        return []

    def delete_file(self) -> list[str]:
        self.bench.files.clear()
        return []

    def spoil(self, body: str) -> list[str]:
        """Breaks the body of a delayed record, in the log itself."""
        place = self.places[body]
        size, _ = SIZE_AND_MAGIC.unpack_from(self.bench.store.log, place)
        at = self.bench.store.log.index(body.encode(), place, place + size)
        self.bench.store.log[at] ^= 0xFF
        return []

    def delete_before(self, body: str) -> list[str]:
        self.bench.store.min_offset = self.places[body]
        return []

    def topic_fails(self, topic: str) -> list[str]:
        def refuse(message: NewRecord) -> Exception | None:
            return RecordTooLargeError("too large") if message.topic == topic else None

        self.bench.store.refuse = refuse
        return []

    def disk_is_full(self) -> list[str]:
        self.bench.store.refuse = lambda message: StoreFullError("no space")
        return []

    def store_recovers(self) -> list[str]:
        self.bench.store.refuse = lambda message: None
        return []

    def levels_shown(self) -> list[str]:
        status = self.bench.delivery.status()
        levels = status["levels"]
        assert isinstance(levels, list)
        return [
            f"level {each['level']}: {each['pending']} pending, {each['offset']} of {each['maxOffset']}"
            + (f", {each['settledAbove']} above" if each["settledAbove"] else "")
            + (f", next at {each['nextDueMs'] - START_MS}" if each["nextDueMs"] is not None else "")
            + ("" if each["inTable"] else ", not in the table")
            for each in levels
            if each["maxOffset"] or each["pending"]
        ]

    def counters(self) -> list[str]:
        counters = self.bench.delivery.counters
        return [
            f"{name} {getattr(counters, name)}"
            for name in ("clamped", "dead", "dropped", "corrupt", "gone", "failed", "foreign", "disbelieved")
            if getattr(counters, name)
        ]

    def log(self) -> list[str]:
        """Everything outside the schedule topic: topic, body, store time."""
        found = []
        position = self.bench.store.min_offset
        while position < len(self.bench.store.log):
            record = decode_record(self.bench.store.log, position, check_crc=False)
            position += record.size
            if record.topic != "SCHEDULE_TOPIC_XXXX":
                kind = record.properties.get("__DMQ_MARK", "unmarked").partition(":")[0]
                body = record.body.decode()
                found.append(
                    f"{record.topic}: {kind} {body} at {record.store_timestamp_ms - START_MS}".replace("  ", " ")
                )
        return found


COMMANDS: list[tuple[str, Callable[..., list[str]]]] = [
    (r"the levels are (.+)", Story.levels),
    (r"levels above the table are (clamp|reject)ed?", Story.overflow),
    (r"at (\d+)", Story.at),
    (r"send (\S+)(?: to (\S+))? at level (\d+)", Story.send),
    (r"the real broker stores (\S+) at level (\d+)", Story.foreign_send),
    (r"the real broker delivers (\S+)", Story.foreign_deliver),
    (r"a record (\S+) in queue 0 with (.+)", Story.schedule_raw),
    (r"hand over(?: at most (\d+))?", Story.hand_over),
    (r"until (\d+)", Story.run_until),
    (r"when is the next wake-up\?", Story.wakeup),
    (r"flush", Story.flush),
    (r"save", Story.save),
    (r"take a snapshot", Story.snapshot),
    (r"the snapshot is lost", Story.forget_snapshot),
    (r"kill and start", Story.kill),
    (r"lose power and start", Story.lose_power),
    (r"stop and start", Story.stop),
    (r"delayOffset\.json is (.*)", Story.write_file),
    (r"delayOffset\.json is deleted", Story.delete_file),
    (r"the record of (\S+) is spoiled", Story.spoil),
    (r"retention deletes what is before (\S+)", Story.delete_before),
    (r"topic (\S+) takes no messages", Story.topic_fails),
    (r"the disk is full", Story.disk_is_full),
    (r"the store takes messages again", Story.store_recovers),
    (r"what is pending\?", Story.levels_shown),
    (r"what was counted\?", Story.counters),
    (r"what is in the log\?", Story.log),
]
# The more special reading comes first.
COMMANDS.sort(key=lambda command: command[0] == r"delayOffset\.json is (.*)")


def steps_of(text: str) -> list[tuple[int, str, list[str]]]:
    steps: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            steps[-1][2].append(line.strip())
        else:
            steps.append((number, line.strip(), []))
    return steps


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_delivery_follows_the_scenario(path: Path) -> None:
    story = Story()
    for number, line, expected in steps_of(path.read_text(encoding="utf-8")):
        assert story.play(line) == expected, f"{path.name}:{number}: {line}"


def test_scenarios_exist_and_are_not_empty() -> None:
    stories = sorted(FOLDER.glob("*.txt"))
    assert len(stories) >= 10
    assert all(any(expected for *_, expected in steps_of(path.read_text(encoding="utf-8"))) for path in stories)
