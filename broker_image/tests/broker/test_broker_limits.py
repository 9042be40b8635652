"""What clients can make up is bounded, and a disk that refuses a table is told, not hidden."""

import pytest
from broker_harness import FakeSession, Harness, response_of
from delaymq.broker import clients, groups, locks, offsets, topics
from delaymq.protocol.bodies import LockRequest, LockResponse, MessageQueue, SubscriptionGroupConfig
from delaymq.protocol.codes import RequestCode, ResponseCode


def test_no_more_topics_than_the_limit_are_made(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_TOPICS", len(harness.broker.topics.table) + 1)
    assert response_of(harness.send("First")).code == ResponseCode.SUCCESS
    refused = response_of(harness.send("Second"))
    assert (refused.code, "topics already" in str(refused.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert response_of(harness.send("First")).code == ResponseCode.SUCCESS


def test_no_more_groups_than_the_limit_are_made(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_GROUPS", len(harness.broker.groups.table) + 1)
    assert harness.broker.groups.find("first") is not None
    assert harness.broker.groups.find("second") is None
    body = SubscriptionGroupConfig("second").encode()
    answer = harness.answer(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert (answer.code, "groups already" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    again = SubscriptionGroupConfig("first", retry_max_times=3).encode()
    assert harness.answer(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=again).code == ResponseCode.SUCCESS


def test_offsets_are_kept_for_so_many_topics_and_groups_with_names_of_sane_length(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "MAX_KEYS", 1)
    harness.send("Orders")

    def commit(topic: str, group: str) -> int:
        fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 1}
        return harness.answer(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code

    assert commit("Orders", "g" * 1_000) == ResponseCode.SYSTEM_ERROR
    assert commit("Orders", "a") == ResponseCode.SUCCESS
    assert commit("Orders", "b") == ResponseCode.SYSTEM_ERROR
    assert commit("Orders", "a") == ResponseCode.SUCCESS
    assert harness.broker.offsets.table == {"Orders@a": {0: 1}}


def test_no_more_locks_than_the_limit_are_held_by_all_groups_together(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "MAX_LOCKS", 3)

    def lock(group: str, *queue_ids: int) -> list[int]:
        request = LockRequest(group, "c", [MessageQueue("b", queue_id, "Orders") for queue_id in queue_ids])
        answer = harness.answer(RequestCode.LOCK_BATCH_MQ, body=request.encode())
        return [queue.queue_id for queue in LockResponse.decode(answer.body).lock_ok_mq_set]

    assert lock("g", 0, 1) == [0, 1]
    assert lock("h", 0, 1) == [0]
    assert lock("g", 0, 1) == [0, 1]
    harness.clock.advance(60_001)
    harness.broker.expire_clients(harness.clock())
    assert lock("h", 0, 1, 2, 3) == [0, 1, 2]


def test_one_connection_belongs_to_so_many_groups(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_GROUPS_PER_SESSION", 2)
    session = FakeSession()
    consumers = ",".join(f'{{"groupName":"g{n}","subscriptionDataSet":[{{"topic":"T"}}]}}' for n in range(4))
    producers = ",".join(f'{{"groupName":"p{n}"}}' for n in range(4))
    body = f'{{"clientID":"c","consumerDataSet":[{consumers}],"producerDataSet":[{producers}]}}'.encode()
    assert harness.answer(RequestCode.HEART_BEAT, body=body, session=session).code == ResponseCode.SUCCESS
    assert set(harness.broker.clients.consumers) == {"g0", "g1"}
    assert set(harness.broker.clients.producers) == {"p0", "p1"}


def test_a_table_that_cannot_be_written_is_told_and_written_the_next_time(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    files = harness.broker.store.config_files
    fields = {
        "topic": "Orders",
        "defaultTopic": "TBW102",
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    with monkeypatch.context() as context:
        context.setattr(type(files), "save", refuse)
        answer = harness.answer(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert (answer.code, "No space left" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
        harness.broker.offsets.commit("Orders", "readers", 0, 1)
        task = harness.broker.persist_task(harness.clock())
        assert task is not None
        task.run()
        assert isinstance(task.finish(), OSError)
    task = harness.broker.persist_task(harness.clock())
    assert task is not None
    task.run()
    assert task.finish() is None
    assert files.load("topics.json", topics.parse_table).topic_config_table["Orders"].perm == 6  # type: ignore[union-attr]
    stored = files.load("consumerOffset.json", offsets.parse_table)
    assert stored is not None
    assert stored.offset_table == {"Orders@readers": {0: 1}}


def test_tables_that_a_full_disk_refuses_are_logged_once_a_minute_with_a_count(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    broker = harness.broker
    monkeypatch.setattr(type(broker.store.config_files), "save", refuse)
    for _ in range(121):
        broker.topics.dirty = True
        broker.offsets.commit("Orders", "readers", 0, 1)
        for task in (broker.persist_task(harness.clock()), broker.delivery.save_task()):
            if task is not None:
                task.run()
                assert isinstance(task.finish(), OSError)
        harness.clock.advance(1_000)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    for subject in ("topics or groups", "offsets or clients", "delayOffset.json"):
        about = [line for line in lines if line.startswith(f"{subject} could not be written")]
        assert len(about) == 3, subject
        assert "more since the last time" in about[1]
