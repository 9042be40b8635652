"""Plain sends encoded by the compiled kernel are those of its twin, and are stored within all limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest
from delaymq import kernels
from delaymq.api_types.delay_settings import TopicDelaySettings
from delaymq.message import names
from delaymq.message.properties import parse_properties
from delaymq.message.record import Record
from delaymq.protocol.bodies import TopicConfig
from delaymq.protocol.command import Command, Response, decode_command, encode_response
from delaymq.schedule.timeline import TIMELINE_QUEUE
from delaymq.server.requests import plain_sends
from delaymq.server.requests.plain_sends import PlainSends, answer_parts
from delaymq.store.reader import Damage, StoreReader
from delaymq_testing.broker.harness import START_MS, Harness
from delaymq_testing.broker.plain_sends.send_encoder import SendEncoder
from delaymq_testing.broker.plain_sends.sends import (
    ANSWER,
    HOST,
    damaged,
    encoder_arguments,
    java_frame,
    random_frame,
    send_fields_of,
)
from delaymq_testing.broker.plain_sends.signing import Keys
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.store.killed_copies import Killed, KilledError

RULED = ("TIMER_OUT_MS", "TRAN_MSG", "DELAY_CRON", "RETRY_TOPIC", "DELAY_SCHEDULE_ID")
RULES = (
    RULED, names.OWN_PREFIX, list(names.CLOSED_TO_CLIENTS), names.RETRY_PREFIX, plain_sends.NAMES,
    plain_sends.TRANSACTION_RULES, plain_sends.DELAY_RULES,
)  # fmt: skip
TIMED = "TIMER_DELAY_MS\x011000"
REQUESTS = ("DELAY\x011", TIMED)
NO_HALVES: tuple[int, list[Any]] = (-1, [])
DELAYS: tuple[Any, ...] = ((1_000, 5_000), {}, 4 << 20, 4 << 20, 10**9)


class Queue(NamedTuple):
    max_number: int


def tables(chance: Random) -> tuple[dict[str, TopicConfig], dict[tuple[str, int], Queue]]:
    """Topics, one of which may be unusual, and queues, one of which may be missing."""
    own = names.SCHEDULE_TOPIC, names.TIMER_TOPIC
    topics = {
        name: TopicConfig(name, chance.choice([4, 4, 3]), chance.choice([4, 4, 8]))
        for name in ("Orders", "Bills", "t" * 127, "größe", *own, "%RETRY%readers", "x" * 128)
    }
    attribute, value = chance.choice([("perm", 0), ("perm", 6), ("order", True), ("topic_filter_type", "MULTI_TAG")])
    setattr(topics[chance.choice([*topics])], attribute, value)
    queues = {(topic, queue_id): Queue(chance.choice([0, 1, 2**62])) for topic in topics for queue_id in range(8)}
    if chance.random() < 0.2:
        del queues[chance.choice([*queues])]
    return topics, queues


def encoding(chance: Random, data: bytes, keys: Keys | None) -> tuple[Any, ...]:
    """Arguments for an encoder, nearly all valid; `keys`: the account that has to sign."""
    topics, queues = tables(chance)
    host = chance.choice([HOST] * 30 + [bytes(20), b""])
    now_ms = chance.choice([START_MS] * 9 + [0, -1_001, 10**16 - 1_001, 2**63 - 1])
    halves = *NO_HALVES, now_ms, 0
    permitted = set(topics) - set(chance.sample([*topics], chance.choice([0, 0, 3])))
    signer = None if keys is None else (keys.access_key, keys.secret_key.encode(), permitted)
    delays = (
        (1_000, 5_000, 10**9)[: chance.randrange(4)], chance.choice([{}, {"Bills": 1}]),
        chance.choice([4 << 20, 4 << 20, 100, -1]), chance.choice([4 << 20, 4 << 20, 100, -1]),
        chance.choice([10**9, 10**9, 900_000, 2**62, 0, -1]),
    )  # fmt: skip
    return (
        data, topics, host, HOST, chance.choice([4 << 20, 4 << 20, 1_000]), chance.choice(["DefaultCluster", "größe"]),
        ANSWER, chance.choice([True, False]), halves, delays, signer, queues, chance.choice([0, 2**40 + 17]),
        chance.choice([0, 1_700_000_000_000]),
        chance.choice([4 << 20, 4 << 20, 900]), chance.choice([1 << 30, 1 << 30, 3_000, 0]), b"", 0,
    )  # fmt: skip


@NEEDS_KERNELS
def test_compiled_encoder_returns_what_its_twin_returns_for_hostile_bytes() -> None:
    chance = Random(SEED)
    kernel, twin = kernels.compiled("SendEncoder")(*RULES), SendEncoder(*RULES)
    frames = whole = timed = signed = 0
    while frames < FUZZ_INPUTS:
        unusual = chance.choice([0, 0.05, 0.5])
        keys = chance.choice([None, None, Keys("producers-key", "größe-secret"), Keys("größe-key", "s" * 100)])
        made = [random_frame(chance, chance.randrange(2**31), unusual, keys) for _ in range(chance.randrange(1, 8))]
        for number in range(len(made)):
            if chance.random() < 0.2:
                made[number] = damaged(made[number], chance)
        frames += len(made)
        if chance.random() < 0.05:
            keys = chance.choice([None, Keys("producers-key", "another-secret")])
        given = encoding(chance, b"".join(made), keys)
        result = kernel.encode(*given)
        assert result == twin.encode(*given), given[0]
        whole += result[0] == len(given[0])
        timed += sum(queue_id == TIMELINE_QUEUE for _, queue_id, *_ in result[8])
        signed += keys is not None and bool(result[8])
    assert min(whole, 3 * timed, 8 * signed) > FUZZ_INPUTS // 400


@NEEDS_KERNELS
def test_compiled_encoder_stops_before_a_queue_beyond_its_limit() -> None:
    fields = [send_fields_of(Random(number), ("Orders",), 0) | {"e": str(number), "i": ""} for number in range(70)]
    data = b"".join(java_frame(each, number, b"x") for number, each in enumerate(fields))
    topics = {"Orders": TopicConfig("Orders", 100, 100)}
    queues = {("Orders", number): Queue(number) for number in range(100)}
    given = encoder_arguments(data, topics, queues, delays=DELAYS)
    result = kernels.compiled("SendEncoder")(*RULES).encode(*given)
    assert result == SendEncoder(*RULES).encode(*given)
    assert [stretch[1] for stretch in result[4]] == list(range(64))


@NEEDS_KERNELS
@pytest.mark.parametrize(
    "table",
    [{}, {"Orders": None}, {"Orders": object()}, {"Orders": TopicConfig("Orders", 4, 4, 6, None)}],  # type: ignore[arg-type]
)
def test_compiled_encoder_handles_nothing_with_unusable_tables(table: dict[str, Any]) -> None:
    data = java_frame(send_fields_of(Random(1), ("Orders",), 0) | {"i": ""}, 1, b"x")
    for queues in ({}, {("Orders", 0): None}, {("Orders", number): Queue("1") for number in range(4)}):  # type: ignore[arg-type]
        given = encoder_arguments(data, table, queues, delays=DELAYS)
        assert kernels.compiled("SendEncoder")(*RULES).encode(*given) == (0, 0, b"", b"", [], [], b"", [], [], 0)


def frame(number: int = 0, body: bytes = b"hello", **fields: str) -> bytes:
    usual = send_fields_of(Random(number), ("Orders",), 0) | {"e": "0", "i": "KEYS\x01a"}
    return java_frame(usual | fields, number, body)


class Lane:
    """A broker whose queue exists, and its plain sends."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        harness.send("Orders", b"first", {"KEYS": "a"})
        self.sends = PlainSends(harness.broker)

    def handles(self, data: bytes) -> bool:
        """Whether all of the bytes are handled; none are otherwise."""
        before = self.harness.broker.store.end_offset
        size, responses, count = self.sends.store(self.harness.session, data)
        assert (size, bool(responses)) in ((0, False), (len(data), True))
        assert count == responses.count(b'"opaque":')
        assert (self.harness.broker.store.end_offset > before) == bool(size)
        return bool(size)


@pytest.fixture
def lane(open_harness: Callable[..., Harness]) -> Lane:
    return Lane(open_harness())


STATES: dict[str, tuple[Callable[[Any], object], Callable[[Any], object]]] = {
    "taken out of service": (
        lambda broker: setattr(broker, "writable", False),
        lambda broker: setattr(broker, "writable", True),
    ),
    "drained": (
        lambda broker: setattr(broker.drain, "takes_sends", False),
        lambda broker: setattr(broker.drain, "takes_sends", True),
    ),
    "with a refusing store": (
        lambda broker: broker.store.refuse_all("The disk is full: free space."),
        lambda broker: broker.store.refuse_all(""),
    ),
    "with a full disk": (
        lambda broker: _refuse_writes(broker, refused=True),
        lambda broker: _refuse_writes(broker, refused=False),
    ),
    "following": (
        lambda broker: setattr(broker, "following", object()),
        lambda broker: setattr(broker, "following", None),
    ),
    "with an ordered topic": (
        lambda broker: setattr(broker.topics.table["Orders"], "order", True),
        lambda broker: setattr(broker.topics.table["Orders"], "order", False),
    ),
    "with settings of delays": (
        lambda broker: broker.delivery.limits.settings.topics.update(Orders=TopicDelaySettings(max_delay_seconds=9)),
        lambda broker: broker.delivery.limits.settings.topics.clear(),
    ),
    "with a shorter table of levels": (
        lambda broker: broker.apply(replace(broker.config, message_delay_level="1s")),
        lambda broker: broker.apply(replace(broker.config, message_delay_level="1s 5s")),
    ),
    "with several tags": (
        lambda broker: setattr(broker.topics.table["Orders"], "topic_filter_type", "MULTI_TAG"),
        lambda broker: setattr(broker.topics.table["Orders"], "topic_filter_type", "SINGLE_TAG"),
    ),
}


def _refuse_writes(broker: Any, *, refused: bool) -> None:
    retention = broker.store._retention
    retention.disk = retention.disk._replace(writes_refused=refused)


@NEEDS_KERNELS
@pytest.mark.parametrize("state", STATES)
def test_brokers_in_another_state_leave_sends_to_their_processor(lane: Lane, state: str) -> None:
    enter, leave = STATES[state]
    lane.harness.send("Orders", b"second", {"DELAY": "2"})
    sends = frame(i="DELAY\x012")
    assert lane.handles(sends)
    enter(lane.harness.broker)
    assert not lane.handles(sends)
    leave(lane.harness.broker)
    assert lane.handles(sends)


@NEEDS_KERNELS
def test_first_timed_message_of_a_broker_is_left_to_its_processor(lane: Lane) -> None:
    broker, timed = lane.harness.broker, frame(i=TIMED)
    assert not lane.handles(timed)
    assert broker.topics.table.get(names.TIMER_TOPIC) is None
    lane.harness.send("Orders", b"second", {"TIMER_DELAY_MS": "1000"})
    assert broker.topics.table.get(names.TIMER_TOPIC) is not None
    assert lane.handles(timed)


@NEEDS_KERNELS
def test_timed_messages_that_may_be_rejected_are_left_to_their_processor(lane: Lane) -> None:
    broker, timed = lane.harness.broker, frame(i="TIMER_DELAY_SEC\x017201")
    lane.harness.send("Orders", b"second", {"TIMER_DELAY_MS": "1000"})
    assert lane.handles(timed)
    broker.apply(replace(broker.config, timer_max_delay_sec=7_200))
    assert not lane.handles(timed)
    broker.apply(replace(broker.config, timer_max_delay_sec=7_201))
    assert lane.handles(timed)
    broker.delivery.limits.settings.topics["Orders"] = TopicDelaySettings(max_delay_seconds=9)
    assert not lane.handles(timed)


@NEEDS_KERNELS
@pytest.mark.parametrize("wait", ["WAIT\x01false", "WAIT\x01true ", "WAIT\x01no"])
def test_sends_that_do_not_wait_with_others_are_left_to_their_processor(lane: Lane, wait: str) -> None:
    assert lane.handles(frame(i=wait))
    lane.harness.broker.replicate(waits=True)
    assert not lane.handles(frame(i=wait))
    assert lane.handles(frame(i="WAIT\x01True"))
    assert lane.handles(frame(i="KEYS\x01a"))


@NEEDS_KERNELS
def test_read_only_broker_and_ipv6_producers_are_left_to_the_processor(lane: Lane) -> None:
    lane.harness.session.remote_host = bytes(20)
    assert not lane.handles(frame())
    lane.harness.broker.close()
    assert not lane.handles(frame())


@NEEDS_KERNELS
def test_deleted_topic_is_left_to_the_processor(lane: Lane) -> None:
    broker = lane.harness.broker
    assert lane.handles(frame())
    config = broker.topics.table.pop("Orders")
    assert not lane.handles(frame())
    broker.topics.table["Orders"] = config
    queue = broker.store._queues.table.pop(("Orders", 0))
    assert not lane.handles(frame())
    broker.store._queues.table[("Orders", 0)] = queue
    config.read_queue_nums = config.write_queue_nums = 0
    assert not lane.handles(frame())


@NEEDS_KERNELS
def test_end_of_a_segment_is_left_to_the_processor(open_harness: Callable[..., Harness]) -> None:
    lane = Lane(open_harness(mapped_file_size_commit_log=64 * 1024))
    log = lane.harness.broker.store._log
    while lane.handles(frame(body=bytes(3_000))):
        pass
    left = log.open_end - log.end_offset
    assert left < 4_000
    lane.harness.send("Orders", bytes(3_000), {"KEYS": "a"})
    assert log.segment_base == 64 * 1024
    assert lane.handles(frame(body=bytes(3_000)))


@NEEDS_KERNELS
def test_changed_configuration_applies_to_the_next_send(lane: Lane) -> None:
    broker = lane.harness.broker
    assert lane.handles(frame())
    broker.apply(broker.config.__class__(**(vars_of(broker.config) | {"region_id": "north", "max_message_size": 10})))
    assert not lane.handles(frame(body=bytes(11)))
    _, response, _ = lane.sends.store(lane.harness.session, frame(3))
    assert decode_command(response[4:]).fields["MSG_REGION"] == "north"


def vars_of(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def test_parts_of_a_response_are_those_of_the_usual_encoder(open_harness: Callable[..., Harness]) -> None:
    broker = open_harness(region_id="<id> <handle> 1234567890").broker
    to_id, to_queue_id, to_queue_offset, to_opaque, end, to_handle, after_handle, _ = answer_parts(broker)
    fields = {
        "msgId": f"{broker.message_id_prefix}00000000000000FF", "queueId": "3", "queueOffset": "12",
        "MSG_REGION": broker.region, "TRACE_ON": "true",
    }  # fmt: skip
    header = b"00000000000000FF".join((to_id, to_queue_id)) + b"3" + to_queue_offset + b"12" + to_opaque + b"-5" + end
    assert encode_response(Command(310, -5), Response(0, None, fields))[8:] == header
    header = header.replace(to_opaque, to_handle + b"djE=" + after_handle)
    assert encode_response(Command(310, -5), Response(0, None, fields | {"recallHandle": "djE="}))[8:] == header


@NEEDS_KERNELS
def test_failure_after_the_append_is_raised_with_the_messages_in_the_log(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("an observer fails")

    before = lane.harness.broker.store.end_offset
    monkeypatch.setattr(lane.harness.broker.store._dispatcher, "_receiving_runs", [fail])
    with pytest.raises(RuntimeError):
        lane.handles(frame())
    assert lane.harness.broker.store.end_offset > before
    monkeypatch.undo()
    assert lane.handles(frame())
    assert [record.body for record in lane.harness.pulled()] == [b"first", b"hello", b"hello"]


@NEEDS_KERNELS
@pytest.mark.parametrize("request_text", REQUESTS)
def test_delayed_messages_are_delivered_although_an_observer_failed(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, request_text: str
) -> None:
    broker, delayed = lane.harness.broker, frame(i=request_text)
    lane.harness.send("Orders", b"second", parse_properties(request_text))

    def fail(*_: object) -> None:
        raise RuntimeError("an observer fails")

    monkeypatch.setattr(broker.store._dispatcher, "_receiving_runs", [fail])
    with pytest.raises(RuntimeError):
        lane.handles(delayed + delayed)
    monkeypatch.undo()
    assert lane.handles(delayed)
    assert broker.delivery.pending_total() == 4
    lane.harness.clock.advance(1_000)
    broker.hand_over(lane.harness.clock(), 64)
    assert [record.body for record in lane.harness.pulled()] == [b"first", b"second", *[b"hello"] * 3]


@NEEDS_KERNELS
@pytest.mark.parametrize("request_text", ["DELAY\x0118", "TIMER_DELAY_SEC\x013600"])
def test_full_memory_of_the_index_becomes_a_run(lane: Lane, request_text: str) -> None:
    timeline = lane.harness.broker.delivery.timeline
    lane.harness.send("Orders", b"second", parse_properties(request_text))
    timeline.sizes = timeline.sizes._replace(memory=4)
    assert lane.handles(frame(i=request_text) * 7)
    assert (len(timeline._memory), [run.count for run in timeline.runs]) == (0, [8])
    assert timeline.partitions.messages == 8


@NEEDS_KERNELS
@pytest.mark.parametrize("request_text", REQUESTS)
def test_delayed_messages_are_dispatched_and_delivered_although_the_index_failed(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, request_text: str
) -> None:
    broker = lane.harness.broker
    lane.harness.send("Orders", b"second", parse_properties(request_text))
    lane.harness.clock.advance(1_000)
    broker.hand_over(lane.harness.clock(), 64)
    assert broker.delivery.next_wakeup_ms() is None
    woken: list[int] = []
    broker.delivery.on_wakeup_earlier = lambda: woken.append(1)

    def fail() -> None:
        raise OSError("no space")

    monkeypatch.setattr(broker.delivery.timeline, "freeze_if_full", fail)
    with pytest.raises(OSError, match="no space"):
        lane.handles(frame(i=request_text) + frame())
    monkeypatch.undo()
    assert woken == [1]
    lane.harness.clock.advance(1_000)
    broker.hand_over(lane.harness.clock(), 64)
    assert [record.body for record in lane.harness.pulled()] == [b"first", b"second", b"hello", b"hello"]


@NEEDS_KERNELS
@pytest.mark.parametrize(("copies", "count", "records"), [(1, 100, 0), (2, 100, 0), (2, 2_000, 2), (2, 9_999, 5)])
def test_killed_copy_of_sends_leaves_a_torn_tail_without_a_hole(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, copies: int, count: int, records: int
) -> None:
    log = lane.harness.broker.store._log
    monkeypatch.setattr(log, "mapping", Killed(log.mapping, copies, count))
    with pytest.raises(KilledError):
        lane.handles(b"".join(frame(number, body=b"content" * 100) for number in range(5)))
    monkeypatch.undo()
    found = list(StoreReader(lane.harness.config.store_path).walk())
    assert not [each for each in found if isinstance(each, Damage)]
    assert sum(isinstance(each, Record) for each in found) == 1 + records


def test_brokers_without_kernels_do_not_take_plain_sends(open_harness: Callable[..., Harness]) -> None:
    assert (plain_sends.encoder is None) == (kernels.compiled("SendEncoder") is None)
    assert (plain_sends.plain_sends(open_harness().broker) is None) == (plain_sends.encoder is None)


@NEEDS_KERNELS
def test_brokers_with_names_that_are_no_text_do_not_take_plain_sends(open_harness: Callable[..., Harness]) -> None:
    assert plain_sends.plain_sends(open_harness(broker_name="\udc80").broker) is None
