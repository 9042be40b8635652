"""A replica's broker refuses requests that change what it receives from its master, and changes nothing for others."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from delaymq.broker.processors.table import _OF_MASTERS
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.broker.followers import Follower
from delaymq_testing.broker.harness import FakeSession, Harness
from delaymq_testing.store.raw_logs import log_of

pytestmark = pytest.mark.usefixtures("closed_stores")


def followed(tmp_path: Path) -> Harness:
    """A harness whose broker follows the log of another one, and has its topic."""
    source = Harness(tmp_path / "source")
    source.send("Orders")
    log = log_of(source.broker.store)
    follower = Follower(tmp_path, source.clock)
    follower.receive(log, len(log), Random(1))
    follower.broker.topics.replicate("Orders", source.broker.topics.table["Orders"])
    follower.broker.master_name = lambda: "member a at 10.0.0.1:10911"
    source.broker.store.abandon()
    source.broker, source.session = follower.broker, FakeSession()
    return source


@pytest.mark.parametrize("code", sorted(_OF_MASTERS))
def test_requests_that_change_tables_are_refused_with_the_name_of_the_master(tmp_path: Path, code: int) -> None:
    response = followed(tmp_path).ask(code, {}, b"{}")
    assert isinstance(response, Response)
    assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (response.remark or "").endswith("send the request to member a at 10.0.0.1:10911")


def test_heartbeats_create_nothing(tmp_path: Path) -> None:
    harness = followed(tmp_path)
    broker = harness.broker
    broker.groups.replicate("readers", broker.groups.table["TOOLS_CONSUMER"])
    topics, groups = set(broker.topics.table), set(broker.groups.table)
    beat = b'{"clientID":"c","consumerDataSet":[{"groupName":"readers"},{"groupName":"others"}],"producerDataSet":[]}'
    assert harness.answer(RequestCode.HEART_BEAT, {}, beat).code == ResponseCode.SUCCESS
    assert set(broker.topics.table) == topics
    assert set(broker.groups.table) == groups


def test_java_consumers_repeat_their_query_for_an_offset(tmp_path: Path) -> None:
    response = followed(tmp_path).ask(RequestCode.QUERY_CONSUMER_OFFSET, language="JAVA")
    assert isinstance(response, Response)
    assert (response.code, response.fields) == (ResponseCode.SUCCESS, {})


def test_changes_are_accepted_when_the_replica_has_taken_over(tmp_path: Path) -> None:
    harness = followed(tmp_path)
    harness.broker.lead()
    assert harness.send("New").code == ResponseCode.SUCCESS
    assert "New" in harness.broker.topics.table
