"""Requests to the real broker and its store: DelayMQ responds identically and continues with the store."""

import gzip
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.requests.results import Held
from delaymq.message import names
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, decode_command
from delaymq_testing.broker.harness import FakeSession, Harness, records_of

GOLDEN = Path(__file__).parents[1] / "golden"
DIFFERENT_VALUES = {"msgId"}
"""Offsets in the log differ, since our delayed messages carry their due time."""
COMPARED = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
)


def broker_frames() -> Iterator[tuple[int, str, Command]]:
    """Connection, sender and command of each frame between clients and the broker."""
    with gzip.open(GOLDEN / "frames.jsonl.gz", "rt") as lines:
        for line in lines:
            frame = json.loads(line)
            if frame["server"] == "broker":
                yield frame["connection"], frame["sender"], decode_command(bytes.fromhex(frame["frame"])[4:])


def test_responses_to_the_real_clients_equal_the_real_brokers(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(listen_port=20_911)
    frames = list(broker_frames())
    answers = {
        (connection, command.opaque): command
        for connection, sender, command in frames
        if sender == "server" and command.is_response
    }
    sessions: dict[int, FakeSession] = {}
    compared = 0
    for connection, sender, command in frames:
        if sender != "client" or command.is_response:
            continue
        session = sessions.setdefault(connection, FakeSession(40_000 + connection))
        harness.clock.advance(100)
        harness.broker.hand_over(harness.clock(), 100)
        result = harness.broker.handle(session, command)
        if command.code not in COMPARED:
            continue
        assert isinstance(result, Response)
        expected = answers[connection, command.opaque]
        assert (result.code, result.remark) == (expected.code, expected.remark)
        assert comparable(result.fields) == comparable(expected.fields)
        assert bool(result.body) == bool(expected.body)
        compared += 1
    assert compared == 99
    told = [command.code for session in sessions.values() for command in session.notified]
    sent = [c.code for _, s, c in frames if s == "server" and not c.is_response]
    assert told == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] * sent.count(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)


def comparable(fields: dict[str, str]) -> dict[str, str]:
    return {name: "" if name in DIFFERENT_VALUES else value for name, value in fields.items()}


@pytest.fixture(params=["store-clean", "store-killed"])
def golden_store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A copy of a store that the real broker wrote, and the responses that its producers received."""
    with tarfile.open(GOLDEN / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (commit_log,) = tmp_path.rglob("commitlog")
    sent = [json.loads(line) for line in (GOLDEN / f"{request.param}.sent.jsonl").read_text().splitlines()]
    return commit_log.parent, sent


def test_real_brokers_store_is_served_and_its_pending_messages_are_delivered(
    golden_store: tuple[Path, list[dict[str, Any]]],
) -> None:
    path, sent = golden_store
    harness = Harness(
        path.parent,
        store_path_root_dir=str(path),
        mapped_file_size_commit_log=16_384,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=200,
        max_index_num=400,
        listen_port=20_911,
    )
    try:
        broker = harness.broker
        harness.clock.now_ms = broker.store.last_store_timestamp_ms + 1_000
        told = [line for line in sent if line.get("kind") == "normal"]
        assert told
        for line in told:
            found = harness.answer(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": int(line["offsetMsgId"][-16:], 16)})
            (record,) = records_of(found.body)
            assert record.properties[names.UNIQUE_KEY] == line["msgId"]
        assert "golden_consumer" in broker.groups.table
        retry = broker.topics.get("%RETRY%golden_consumer")
        assert retry is not None
        assert any(key.endswith("@golden_consumer") for key in broker.offsets.table)
        pending = sum(broker.delivery.pending().values())
        assert pending == 6
        before = broker.store.end_offset
        harness.clock.advance(2 * 3_600_000)
        assert broker.hand_over(harness.clock(), 100) == pending
        delivered = [record for record in all_records(harness, before) if names.MARK in record.properties]
        assert len(delivered) == pending
    finally:
        harness.broker.close()


def all_records(harness: Harness, start: int) -> list[Any]:
    """Every record of the log from `start` on that a consumer can pull."""
    records = []
    for topic, queue_id in harness.broker.store.queues():
        offset = 0
        while topic in harness.broker.topics.table:
            response = harness.pull(topic, queue_id, offset)
            assert not isinstance(response, Held)
            if response.code != ResponseCode.SUCCESS:
                break
            records += records_of(response.body)
            offset = int(response.fields["nextBeginOffset"])
    return [record for record in records if record.physical_offset >= start]
