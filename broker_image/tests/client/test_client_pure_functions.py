"""The client's pure functions: allocation, routes, levels, tags, cached offsets, message validation."""

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from delaymq.client import Message, MessageQueue, NoSuchDelayError, PushConsumerOptions, ReceivedMessage
from delaymq.client.consumer.queues.process_queue import ProcessQueue
from delaymq.client.consumer.rebalance.strategies import allocate_averagely, allocate_by_circle
from delaymq.client.core.delays import level_for, table_of
from delaymq.client.core.network import split_address
from delaymq.client.core.routes import QueueRound, Route, route_of, route_of_new_topic
from delaymq.client.decoding import decode_messages, inflated, stored_messages
from delaymq.client.due_times import delay_in_ms
from delaymq.client.errors import UnreachableError
from delaymq.client.options import ConsumeFrom, ProducerOptions
from delaymq.client.sending.properties import is_plain, outgoing_properties, plain_text, properties_text
from delaymq.client.subscriptions import Subscription, subscription_to
from delaymq.message.compression import MAX_INFLATED_BYTES, inflate
from delaymq.message.errors import IllegalMessageError, RecordError
from delaymq.message.ids import pack_host
from delaymq.message.levels import DelayLevels, delay_text
from delaymq.message.record import encode_record
from delaymq.protocol.bodies import BrokerData, RouteQueues, TopicRoute
from hypothesis import given, settings
from hypothesis import strategies as st


def queues(*counts: int) -> list[MessageQueue]:
    return [MessageQueue(f"b{broker}", number, "T") for broker, count in enumerate(counts) for number in range(count)]


def received(offset: int, body: bytes = b"12345") -> ReceivedMessage:
    return ReceivedMessage(
        topic="T", body=body, queue=MessageQueue("b", 0, "T"), queue_offset=offset, physical_offset=0, message_id="",
        offset_message_id="", properties={}, born_timestamp_ms=0, store_timestamp_ms=0, reconsume_times=0,
    )  # fmt: skip


# Shares.


@settings(deadline=None)  # other work on the machine is no failure
@given(
    members=st.sets(st.text("abc@#1", min_size=1, max_size=4), min_size=1, max_size=8),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_average_allocation_assigns_every_queue_once_and_evenly(members: set[str], counts: list[int]) -> None:
    shares = [allocate_averagely(member, members, queues(*counts)) for member in members]
    given_out = [queue for share in shares for queue in share]
    assert sorted(given_out, key=str) == sorted(queues(*counts), key=str)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@settings(deadline=None)
@given(
    members=st.sets(st.text("abc@#1", min_size=1, max_size=4), min_size=1, max_size=8),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_circle_allocation_assigns_every_queue_once_and_evenly(members: set[str], counts: list[int]) -> None:
    shares = [allocate_by_circle(member, members, queues(*counts)) for member in members]
    given_out = [queue for share in shares for queue in share]
    assert sorted(given_out, key=str) == sorted(queues(*counts), key=str)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_circle_allocation_assigns_every_nth_queue_of_all_brokers() -> None:
    assert allocate_by_circle("a", ["b", "a"], queues(3, 2)) == [queues(3)[0], queues(3)[2], queues(3, 2)[4]]
    assert allocate_by_circle("b", ["b", "a"], queues(3, 2)) == [queues(3)[1], queues(3, 2)[3]]
    assert allocate_by_circle("c", ["b", "a"], queues(3, 2)) == []


def test_average_allocation_is_contiguous_and_favours_the_first_members() -> None:
    assert allocate_averagely("a", ["b", "a"], queues(3, 2)) == queues(3)
    assert allocate_averagely("b", ["b", "a"], queues(3, 2)) == queues(0, 2)
    assert allocate_averagely("c", ["b", "a"], queues(3, 2)) == []


# Routes.

ANSWER = TopicRoute(
    broker_datas=[
        BrokerData("b1", "C", {0: "h1:1", 1: "h1:2"}),
        BrokerData("b2", "C", {1: "h2:2"}),
        BrokerData("b3", "C", {0: "h3:1"}),
    ],
    queue_datas=[
        RouteQueues("b3", 2, 1, 4),
        RouteQueues("b1", 1, 2, 6),
        RouteQueues("b2", 1, 1, 6),
        RouteQueues("gone", 4, 4, 6),
    ],
)


def test_route_lists_writable_queues_at_masters_and_all_readable_ones() -> None:
    route = route_of("T", ANSWER)
    assert [(queue.broker_name, queue.queue_id) for queue in route.writable] == [("b1", 0), ("b1", 1)]
    assert [(queue.broker_name, queue.queue_id) for queue in route.readable] == [
        ("b1", 0), ("b2", 0), ("b3", 0), ("b3", 1),
    ]  # fmt: skip
    assert (route.master("b1"), route.master("b2"), route.reader("b2"), route.reader("x")) == (
        "h1:1", None, "h2:2", None,
    )  # fmt: skip
    assert route.addresses() == ["h1:1", "h2:2", "h3:1"]


def test_new_topic_gets_at_most_the_requested_number_of_queues() -> None:
    template = TopicRoute([BrokerData("b", "C", {0: "h:1"})], [RouteQueues("b", 8, 8, 7)])
    assert len(route_of_new_topic("New", template, 4).writable) == 4
    assert route_of_new_topic("New", template, 4).writable[0].topic == "New"


def test_route_with_absurd_queue_numbers_is_bounded() -> None:
    answer = TopicRoute([BrokerData("b", "C", {0: "h:1"})], [RouteQueues("b", 2**31 - 1, 2**31 - 1, 6)])
    assert len(route_of("T", answer).writable) == 65_536


def test_rotation_avoids_the_failed_broker_while_another_exists() -> None:
    route = Route("T", {}, tuple(queues(2, 1)))
    rounds = QueueRound()
    assert [rounds.choose(route.writable, "b0").broker_name for _ in range(3)] == ["b1"] * 3
    assert QueueRound().choose(tuple(queues(2)), "b0").broker_name == "b0"


# Delays.


def test_delay_finds_its_level_in_any_notation() -> None:
    levels = DelayLevels.parse("1s 60s 2m 1d")
    found = [level_for(delay_in_ms(delay), levels, "b") for delay in ("1s", "1m", "60s", "120s", "24h")]
    assert found == [1, 2, 2, 3, 4]


def test_delay_without_a_matching_level_is_rejected_with_a_hint() -> None:
    with pytest.raises(
        NoSuchDelayError, match=r"has no delay level of exactly 2s; its levels are: 1s 90s. Use one of these"
    ):
        level_for(2_000, DelayLevels.parse("1s 90s"), "b")


def test_missing_table_setting_means_default_and_a_broken_one_is_reported() -> None:
    assert table_of({}).max_level == 18
    with pytest.raises(NoSuchDelayError, match="delay level table is invalid"):
        table_of({"messageDelayLevel": "1s nonsense"})


@pytest.mark.parametrize(("ms", "text"), [(1000, "1s"), (90_000, "90s"), (7_200_000, "2h"), (86_400_000, "1d")])
def test_delays_are_shown_in_the_largest_whole_unit(ms: int, text: str) -> None:
    assert delay_text(ms) == text


# Subscriptions.


def test_sql_subscription_is_filtered_by_the_broker() -> None:
    subscription = subscription_to("T", "*", " price > 5", 7)
    assert subscription.accepts("anything")
    told = subscription.data()
    assert (told.expression_type, told.sub_string, told.sub_version) == ("SQL92", "price > 5", 7)
    assert (told.tags_set, told.code_set) == ([], [])


def test_tags_combined_with_sql_or_an_empty_condition_are_rejected() -> None:
    with pytest.raises(ValueError, match="not both"):
        subscription_to("T", "A", "price > 5", 0)
    with pytest.raises(ValueError, match="empty"):
        subscription_to("T", "*", " ", 0)


def test_tags_are_selected_by_name() -> None:
    subscription = Subscription("T", " A ||B|| ")
    assert [subscription.accepts(tag) for tag in ("A", "B", "", "AB")] == [True, True, False, False]
    assert all(Subscription("T", expression).accepts("anything") for expression in ("*", "", " * "))


@pytest.mark.parametrize("expression", ["||", " || ||"])
def test_expression_without_a_tag_is_rejected(expression: str) -> None:
    with pytest.raises(ValueError, match="contains no tag"):
        Subscription("T", expression)


# Cached queues.


@settings(deadline=None)
@given(st.data())
def test_committable_offset_is_the_first_unfinished_one(data: st.DataObject) -> None:
    cached = ProcessQueue(10)
    unfinished: list[int] = []
    following = 10
    for _ in range(data.draw(st.integers(1, 30))):
        if unfinished and bool(data.draw(st.booleans())):
            offset = data.draw(st.sampled_from(unfinished))
            unfinished.remove(offset)
            cached.finish([offset])
            cached.finish([offset])  # a second time changes nothing
        else:
            # Offsets may have gaps: what the broker filtered out.
            new = [following + step for step in data.draw(st.sets(st.integers(0, 5), max_size=4))]
            following += data.draw(st.integers(max((each - following + 1 for each in new), default=0), 8))
            cached.add([received(offset) for offset in sorted(new)], following)
            unfinished += new
        assert cached.commit_offset == min(unfinished, default=following)
        assert cached.pulled_to == following
        assert (cached.count, cached.size_bytes) == (len(unfinished), 5 * len(unfinished))
        assert cached.span == (following - min(unfinished) if unfinished else 0)


# Messages.


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Message(topic="", body=b""), "blank"),
        (Message(topic="a b", body=b""), "illegal characters"),
        (Message(topic="T" * 128, body=b""), "longer than"),
        (Message(topic="T", body=b"", keys=("a b",)), "contain spaces"),
        (Message(topic="T", body=b"", keys=("",)), "must not be empty"),
        (Message(topic="T", body=b"", tags="a\x01b"), "must not contain"),
        (Message(topic="T", body=b"", properties={"DELAY": "3"}), "reserved"),
        (Message(topic="T", body=b"", properties={"__DMQ_DUE": "1"}), "reserved"),
        (Message(topic="T", body=b"", properties={"a": ""}), "must not be empty"),
        (Message(topic="T", body=b"", properties={"a": "\x02"}), "must not be empty or contain"),
        (Message(topic="T", body=b"", properties={"a": "b\0"}), "must not be empty or contain"),
        (Message(topic="T", body=b"", properties={"a": "x" * 32_767}), "the maximum is 32767"),
        (Message(topic="T", body=b"", delay_level=-1), "delay level -1"),
    ],
)
def test_invalid_messages_are_rejected_with_a_reason(message: Message, why: str) -> None:
    with pytest.raises(IllegalMessageError, match=why):
        properties_text(outgoing_properties(message, "ID"))


@pytest.mark.parametrize("wait_stored", [True, False])
def test_plain_message_has_the_properties_of_any_other(wait_stored: bool) -> None:
    message = Message(topic="T", body=b"", wait_stored=wait_stored)
    assert is_plain(message)
    assert plain_text(message, "ID") == properties_text(outgoing_properties(message, "ID"))
    more: list[dict[str, Any]] = [{"tags": "a"}, {"keys": ("k",)}, {"properties": {"a": "b"}}, {"delay_level": -1}]
    assert not any(is_plain(Message(topic="T", body=b"", **fields)) for fields in more)


def test_string_is_one_key_and_a_list_is_kept() -> None:
    assert Message(topic="T", body=b"", keys="order-1").keys == ("order-1",)
    assert Message(topic="T", body=b"", keys=["order-1", "customer-7"]).keys == ("order-1", "customer-7")
    assert Message(topic="T", body=b"", keys="").keys == ()
    assert outgoing_properties(Message(topic="T", body=b"", keys="order-1"), "ID")["KEYS"] == "order-1"


def test_mutable_bytes_are_copied() -> None:
    body = bytearray(b"a book")
    message = Message(topic="T", body=body)  # type: ignore[arg-type]  # by who has no types
    body[0:1] = b"x"
    assert message.body == b"a book"
    assert Message(topic="T", body=memoryview(b"a book")).body == b"a book"  # type: ignore[arg-type]  # the same


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"body": "text"}, r"the body must be bytes, not 'text' \(str\): encode it, as in body=text.encode\(\)"),
        ({"body": {"a": 1}}, r"the body must be bytes, not \{'a': 1\} \(dict\)"),
        ({"body": None}, "the body must be bytes"),
        ({"keys": 4711}, r"keys must be a string, or a tuple or list of strings, not 4711 \(int\)"),
        ({"keys": b"order-1"}, "keys must be a string"),
        ({"keys": ("order-1", 2)}, r"each key must be a string, not 2 \(int\)"),
        ({"topic": None}, "topic must be a string"),
        ({"tags": ["a", "b"]}, "a message has one tag"),
        ({"properties": "a=b"}, "properties must be a dict of strings"),
        ({"properties": {"price": 5}}, r"property price: the value must be a string, not 5 \(int\)"),
        ({"properties": {5: "price"}}, "names of properties must be strings"),
        ({"delay_level": "5s"}, "use delay='5s'"),
        ({"flag": "x"}, "flag must be a whole number"),
        ({"flag": 2**31}, "flag must be at least -2147483648 and at most 2147483647, not 2147483648"),
        ({"flag": -(2**31) - 1}, "flag must be at least -2147483648"),
        ({"body": "x" * 1_000}, "x…"),
    ],
)
def test_field_of_wrong_type_is_rejected_clearly(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(IllegalMessageError, match=why):
        outgoing_properties(Message(**{"topic": "T", "body": b"", **fields}), "ID")


def record(body: bytes, sys_flag: int = 0, topic: bytes = b"T", properties: bytes = b"") -> bytes:
    host = pack_host("127.0.0.1", 10911)
    return encode_record(
        topic=topic, queue_id=2, queue_offset=3, physical_offset=255, flag=0, sys_flag=sys_flag, born_timestamp_ms=1,
        born_host=host, store_timestamp_ms=2, store_host=host, reconsume_times=0, prepared_transaction_offset=0,
        body=body, properties=properties,
    )  # fmt: skip


def test_records_become_messages() -> None:
    retry = b"RETRY_TOPIC\x01First\x02UNIQ_KEY\x01U\x02DELAY\x014\x02KEYS\x01a b"
    data = record(b"1") + record(zlib.compress(b"two"), 1, b"%RETRY%G", retry)
    first, second = inflated(stored_messages(data, "b", retry_topic="%RETRY%G"), "b")
    assert (first.body, first.message_id, first.keys, first.due_ms) == (
        b"1",
        "7F00000100002A9F00000000000000FF",
        (),
        None,
    )
    assert (second.body, second.topic, second.queue.topic) == (b"two", "First", "%RETRY%G")
    assert (second.message_id, second.delay_level, second.keys) == ("U", 4, ("a", "b"))


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"\0" + data])
def test_damaged_response_is_distinguished_from_messages(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(RecordError):
        decode_messages(spoil(record(b"1")), "b")


@pytest.mark.parametrize(
    ("position", "junk"),
    [(84, b"\x7f\xff\xff\xff"), (88, b"X"), (89, b"\xff")],  # body's length, body, topic's length
)
def test_record_damaged_on_disk_does_not_block_others(position: int, junk: bytes) -> None:
    damaged = bytearray(record(b"2"))
    damaged[position : position + len(junk)] = junk
    data = record(b"1") + bytes(damaged) + record(b"3") + bytes(damaged)
    assert [message.body for message in decode_messages(data, "b")] == [b"1", b"3"]


def test_invalid_or_endless_compressed_body_is_rejected() -> None:
    bomb = zlib.compress(bytes(MAX_INFLATED_BYTES + 1))
    for body in (bomb, b"no zlib", zlib.compress(b"cut")[:-3]):
        with pytest.raises(RecordError, match="compressed with zlib"):
            inflate(body, 0)


# Options and addresses.


def test_invalid_options_are_rejected() -> None:
    for wrong in (
        lambda: ProducerOptions(retries=-1),
        lambda: ProducerOptions(send_timeout_ms=0),
        lambda: PushConsumerOptions(concurrency=0),
        lambda: PushConsumerOptions(max_reconsume_times=-2),
        lambda: PushConsumerOptions(consume_from=ConsumeFrom.TIMESTAMP, consume_timestamp_ms=-1),
        lambda: PushConsumerOptions(max_cached_messages_of_topic=0),
        lambda: PushConsumerOptions(batch=0),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            wrong()


def test_topic_limits_are_divided_among_queues_and_never_raise_a_queues_limit() -> None:
    options = PushConsumerOptions(max_cached_messages_of_topic=2_500, max_cached_bytes_of_topic=3)
    assert options.queue_limits(0) == (1_000, 3)
    assert options.queue_limits(2) == (1_000, 1)
    assert options.queue_limits(10) == (250, 1)
    assert PushConsumerOptions().queue_limits(10) == (1_000, 100 * 1024 * 1024)


def test_addresses_are_host_and_port() -> None:
    assert split_address("[::1]:9876") == ("::1", 9876)
    for wrong in ("", "host", "host:", ":1", "host:x", "host:0", "host:65536"):
        with pytest.raises(UnreachableError, match="use host:port"):
            split_address(wrong)
