"""Pulls over a damaged log skip lost messages and return all later ones."""

from pathlib import Path

from delaymq.broker.opening import open_broker
from delaymq.broker.requests.results import Held
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.broker.harness import Harness, records_of, response_of


def stored(harness: Harness, count: int) -> list[tuple[int, int]]:
    """Sends `count` messages to one queue; where their records stand: (physical offset, size)."""
    places = []
    for number in range(count):
        start = harness.broker.store.end_offset
        assert response_of(harness.send(body=b"%d" % number)).code == ResponseCode.SUCCESS
        places.append((start, harness.broker.store.end_offset - start))
    return places


def damage(harness: Harness, position: int, data: bytes) -> None:
    with (Path(harness.broker.store.path) / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(position)
        file.write(data)


def bodies_to_the_end(harness: Harness) -> list[bytes]:
    """As a consumer reads: each pull begins where the last one said."""
    bodies, offset = [], 0
    for _ in range(20):
        response = harness.pull(offset=offset)
        assert isinstance(response, Response)
        bodies += [record.body for record in records_of(response.body)]
        offset = int(response.fields["nextBeginOffset"])
        if offset == int(response.fields["maxOffset"]):
            return bodies
    raise AssertionError(f"the consumer is stuck at {offset}")


def test_consumer_passes_a_hole_bridged_at_start(harness: Harness) -> None:
    places = stored(harness, 6)
    harness.broker.store.abandon()
    (Path(harness.broker.store.path) / "delaymq" / "snapshot.json").unlink(missing_ok=True)
    offset, size = places[2]
    damage(harness, offset, bytes(size))
    harness.broker = open_broker(harness.config, harness.clock)
    assert [each.what for each in harness.broker.store.recovery.corrections].count("log-hole") == 1
    assert bodies_to_the_end(harness) == [b"0", b"1", b"3", b"4", b"5"]


def test_pull_of_only_lost_messages_moves_past_them(harness: Harness) -> None:
    places = stored(harness, 3)
    harness.broker.store.abandon()
    offset, size = places[1]
    damage(harness, offset, bytes(size))
    harness.broker = open_broker(harness.config, harness.clock)
    response = harness.pull(offset=1, maxMsgNums=1, sysFlag=2 | 4)
    assert not isinstance(response, Held)
    assert response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert response.fields["nextBeginOffset"] == "2"


def test_records_damaged_at_run_time_do_not_affect_others(harness: Harness) -> None:
    places = stored(harness, 6)
    damage(harness, places[3][0], bytes(places[3][1]))
    assert bodies_to_the_end(harness) == [b"0", b"1", b"2", b"4", b"5"]


def test_record_with_wrong_size_does_not_affect_others(harness: Harness) -> None:
    places = stored(harness, 4)
    damage(harness, places[1][0], (places[1][1] + 7).to_bytes(4, "big"))
    assert bodies_to_the_end(harness) == [b"0", b"2", b"3"]
    damage(harness, places[0][0], bytes(4))
    assert bodies_to_the_end(harness) == [b"2", b"3"]


def test_pull_of_only_damaged_records_returns_the_next_offset(harness: Harness) -> None:
    places = stored(harness, 2)
    for offset, size in places:
        damage(harness, offset, bytes(size))
    response = harness.pull()
    assert isinstance(response, Response)
    assert (response.code, response.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
    assert response.fields["nextBeginOffset"] == "2"


def test_damaged_queue_offset_is_not_returned_to_consumers(harness: Harness) -> None:
    places = stored(harness, 5)
    damage(harness, places[2][0] + 20, (1 << 40).to_bytes(8, "big"))
    for sys_flag in (4, 2 | 4):
        response = harness.pull(sysFlag=sys_flag)
        assert isinstance(response, Response)
        assert [(record.queue_offset, record.body) for record in records_of(response.body)] == [
            (number, b"%d" % number) for number in range(5)
        ]
    tagged = harness.pull(subscription="*", maxMsgNums=2, offset=1)
    assert isinstance(tagged, Response)
    assert [record.queue_offset for record in records_of(tagged.body)] == [1, 2]
