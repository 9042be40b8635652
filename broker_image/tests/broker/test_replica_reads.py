"""Pulls from a replica: what it returns, and when it directs consumers to its master instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delaymq.broker.requests.results import Held
from delaymq.message import names
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.broker.followers import Follower
from delaymq_testing.broker.harness import FakeSession, Harness, records_of
from delaymq_testing.store.raw_logs import log_of

pytestmark = pytest.mark.usefixtures("closed_stores")

HELD: dict[str, Any] = {"sysFlag": 6}
COMMITTING: dict[str, Any] = {"sysFlag": 5, "commitOffset": 3}


class Replica(Harness):
    """A replica with 5 messages of its master, of which 3 are known as confirmed."""

    def __init__(self, path: Path, *, reads: bool = True) -> None:
        self.master = Harness(path / "master", slave_read_enable=True, access_message_in_memory_max_ratio=0)
        self.clock = self.master.clock
        for number in range(5):
            self.master.send(body=b"%d" % number)
            if number == 2:
                self.known = self.master.broker.store.end_offset
        changes: dict[str, Any] = {"slave_read_enable": reads, "access_message_in_memory_max_ratio": 0}
        follower = Follower(path, self.clock, mapped_file_size_commit_log=8 << 20, **changes)
        self.broker = broker = follower.broker
        self.session = FakeSession()
        self.is_current = True
        broker.readers.own_id = 2
        broker.readers.is_current = lambda: self.is_current
        log = log_of(self.master.broker.store)
        follower.receive(log, len(log), Random(0))
        self.master.pull()
        broker.topics.table["Orders"] = self.master.broker.topics.table["Orders"]
        broker.groups.table["readers"] = self.master.broker.groups.table["readers"]
        broker.set_replicated(self.known)


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path)


def directed(replica: Replica, **fields: Any) -> bool:
    """Whether a pull is directed to the master, with its offset unchanged."""
    response = replica.pull(**fields)
    assert isinstance(response, Response)
    if response.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
        return False
    assert response.fields["suggestWhichBrokerId"] == "0"
    assert response.fields["nextBeginOffset"] == str(fields.get("offset", 0))
    return not response.body


def test_replica_returns_what_it_knows_as_confirmed_and_keeps_a_slow_consumer(replica: Replica) -> None:
    response = replica.pull()
    assert isinstance(response, Response)
    assert [record.body for record in records_of(response.body)] == [b"0", b"1", b"2"]
    assert (response.fields["maxOffset"], response.fields["nextBeginOffset"]) == ("3", "3")
    assert response.fields["suggestWhichBrokerId"] == "2"


def test_consumer_at_the_end_waits_and_returns_to_the_master(replica: Replica) -> None:
    held = replica.pull(offset=3, **HELD)
    assert isinstance(held, Held)
    replica.broker.set_replicated(None)
    response = held.resume(False)
    assert isinstance(response, Response)
    assert [record.body for record in records_of(response.body)] == [b"3", b"4"]
    end = replica.pull(offset=5)
    assert isinstance(end, Response)
    assert (end.code, end.fields["suggestWhichBrokerId"]) == (ResponseCode.PULL_NOT_FOUND, "0")


@pytest.mark.parametrize("offset", [4, 5, 6, 1_000])
def test_consumer_that_has_read_more_than_the_replica_knows_is_directed_to_the_master(
    replica: Replica, offset: int
) -> None:
    assert directed(replica, offset=offset)


def test_consumer_of_messages_that_the_replica_deleted_is_directed_to_the_master(replica: Replica) -> None:
    bounds = replica.broker.store.queue_bounds
    replica.broker.store.queue_bounds = lambda topic, queue_id: (2, bounds(topic, queue_id)[1])
    assert directed(replica, offset=1)
    assert not directed(replica, offset=2)


def test_replica_that_may_lack_something_directs_consumers_to_the_master(replica: Replica) -> None:
    replica.is_current = False
    assert directed(replica)
    replica.is_current = True
    replica.broker.set_replicated(0)
    assert directed(replica)
    replica.broker.set_replicated(replica.known)
    assert directed(replica, queue_id=3), "a queue that it does not have"
    assert directed(replica, topic="Other")
    assert directed(replica, consumerGroup="others")
    assert "others" not in replica.broker.groups.table, "tables are those of the master"
    assert not directed(replica)


def test_replica_without_slave_read_enable_directs_consumers_to_the_master(tmp_path: Path) -> None:
    assert directed(Replica(tmp_path, reads=False))


def test_consumer_that_takes_the_replica_for_the_master_does_not_repeat_pulls_continuously(replica: Replica) -> None:
    replica.is_current = False
    held = replica.pull(**HELD)
    assert isinstance(held, Held)
    assert held.deadline_ms == replica.clock(), "until the next check of deadlines"
    assert not held.matches(0)
    response = held.resume(True)
    assert isinstance(response, Response)
    assert response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    replica.broker.lead()
    replica.broker.set_replicated(None)
    response = held.resume(True)
    assert isinstance(response, Response)
    assert response.code == ResponseCode.SUCCESS, "it has become the master"


def test_replica_keeps_no_offsets(replica: Replica) -> None:
    assert isinstance(replica.pull(**COMMITTING), Response)
    place = {"consumerGroup": "readers", "topic": "Orders", "queueId": 0}
    response = replica.answer(RequestCode.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": 3})
    assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert replica.broker.offsets.get("Orders", "readers", 0) is None


def test_replica_writes_no_event_about_a_wrong_offset(replica: Replica) -> None:
    end = replica.broker.store.end_offset
    assert directed(replica, offset=99)
    assert replica.broker.store.end_offset == end
    assert not replica.broker.store.has_queue(names.OFFSET_MOVED_TOPIC, 0)


@pytest.mark.parametrize(("in_sync", "wanted", "suggested"), [([2, 3], 1, "2"), ([2, 3], 3, "3"), ([], 1, "0")])
def test_master_directs_slow_consumers_to_a_replica_in_sync(
    replica: Replica, in_sync: list[int], wanted: int, suggested: str
) -> None:
    master = replica.master
    master.broker.readers.own_id = 1
    master.broker.readers.replica_ids = lambda: in_sync
    master.broker.groups.table["readers"].which_broker_when_consume_slowly = wanted
    response = master.pull()
    assert isinstance(response, Response)
    assert response.fields["suggestWhichBrokerId"] == suggested
    master.broker.apply(replace(master.broker.config, access_message_in_memory_max_ratio=100))
    response = master.pull()
    assert isinstance(response, Response)
    assert response.fields["suggestWhichBrokerId"] == "0", "not slow"
