"""Stores that an earlier DelayMQ, without timed messages, wrote: they open from the snapshot and deliver once."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.store.reader import StoreReader
from delaymq_testing.broker.harness import Clock, FakeSession, Harness, broker_config, response_of
from delaymq_testing.store.small_stores import GOLDEN

MESSAGES = 104
FAR = 26
"""Messages that are due 3,000 days after they were sent."""
WRITTEN_MS = 1_795_662_000_000
"""Shortly before the stores were written."""
DAY_MS = 86_400_000
SETTINGS = {
    "message_delay_level": "1s 2s 1h 3000d",
    "mapped_file_size_commit_log": 16_384,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 200,
    "max_index_num": 400,
}
"""Those with which the stores were written."""


class Upgraded(Harness):
    """A broker that opens a golden store."""

    def __init__(self, path: Path, kind: str) -> None:
        self.store_path = path / "store"
        with tarfile.open(GOLDEN / f"store-version1-{kind}.tar.gz") as archive:
            archive.extractall(self.store_path, filter="data")
        self.before = self.copies()
        self.state_path = self.store_path / "delaymq" / "state.json"
        self.clock = Clock(WRITTEN_MS + DAY_MS)
        self.config = broker_config(path, **SETTINGS)
        self.broker = open_broker(self.config, self.clock)
        self.session = FakeSession()

    def copies(self) -> Counter[str]:
        """Delivered messages by unique key."""
        records = StoreReader(self.store_path).records()
        return Counter(record.properties[names.UNIQUE_KEY] for record in records if record.topic == "Golden")

    def deliver(self) -> None:
        while self.broker.hand_over(self.clock(), 7):
            pass

    def versions(self) -> tuple[Any, Any]:
        content = json.loads(self.state_path.read_bytes())
        return content["formatVersion"], content["minimumReader"]


@pytest.fixture(params=["clean", "killed"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def test_earlier_store_opens_from_its_snapshot(tmp_path: Path, kind: str) -> None:
    upgraded = Upgraded(tmp_path, kind)
    report = upgraded.broker.store.recovery
    assert (report.snapshot_used, report.clean) == (True, kind == "clean")
    assert report.corrections == []
    if kind == "clean":
        assert report.replayed_records == 0
    else:
        assert 0 < report.replayed_records < MESSAGES // 2
    assert upgraded.broker.delivery.pending_total() == MESSAGES - len(upgraded.before)
    upgraded.broker.close()


def test_topics_of_an_earlier_store_are_unknown_until_delivery(tmp_path: Path, kind: str) -> None:
    upgraded = Upgraded(tmp_path, kind)
    unknown = upgraded.broker.delivery.unknown_topics
    assert 0 < unknown <= MESSAGES - len(upgraded.before)
    assert upgraded.broker.delivery.pending_of_topic("Golden") is None
    upgraded.restart()
    assert upgraded.broker.delivery.unknown_topics == unknown
    upgraded.clock.advance(3_000 * DAY_MS)
    upgraded.deliver()
    assert upgraded.broker.delivery.pending_of_topic("Golden") == 0
    upgraded.broker.close()


@pytest.mark.parametrize("kills", [0, 1])
def test_pending_messages_of_an_earlier_store_are_delivered_once(tmp_path: Path, kind: str, kills: int) -> None:
    upgraded = Upgraded(tmp_path, kind)
    for _ in range(kills):
        upgraded.broker.hand_over(upgraded.clock(), 7)
        upgraded.broker.store.abandon()
        upgraded.broker = open_broker(upgraded.config, upgraded.clock)
    upgraded.deliver()
    delivered = upgraded.copies()
    assert len(upgraded.before) < len(delivered) == MESSAGES - FAR
    assert set(delivered.values()) == {1}
    upgraded.restart()
    upgraded.clock.advance(3_000 * DAY_MS)
    upgraded.deliver()
    delivered = upgraded.copies()
    assert (len(delivered), set(delivered.values())) == (MESSAGES, {1})
    assert upgraded.versions() == (1, 1)
    upgraded.broker.close()


def test_earlier_programs_are_excluded_by_the_first_timed_message(tmp_path: Path, kind: str) -> None:
    upgraded = Upgraded(tmp_path, kind)
    assert response_of(upgraded.send("Golden", properties={"UNIQ_KEY": "level", "DELAY": "3"})).code == 0
    assert upgraded.versions() == (1, 1)
    assert response_of(upgraded.send("Golden", properties={"UNIQ_KEY": "timed", "TIMER_DELAY_MS": "1000"})).code == 0
    assert upgraded.versions() == (2, 2)
    upgraded.broker.store.abandon()
    upgraded.broker = open_broker(upgraded.config, upgraded.clock)
    upgraded.clock.advance(1_000)
    upgraded.deliver()
    assert upgraded.copies()["timed"] == 1
    upgraded.broker.close()
