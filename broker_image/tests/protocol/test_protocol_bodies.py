"""Typed bodies: wire formats, dialects of other clients, limits."""

import json
import tracemalloc
import zlib
from typing import Any

import msgspec
import pytest
from delaymq.protocol import bodies
from delaymq.protocol.bodies import (
    Body,
    CheckClient,
    ClusterInfo,
    Connection,
    ConsumerConnection,
    ConsumerIds,
    ConsumerOffsets,
    ConsumeStats,
    ConsumeStatsList,
    DataVersion,
    DelayOffsets,
    GroupTable,
    HeartbeatData,
    KVTable,
    LockRequest,
    LockResponse,
    MessageQueue,
    RegisterBody,
    ResetOffset,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
    TopicRoute,
    TopicStats,
    TopicTable,
    body_crc32,
    decode_settings,
    encode_settings,
)
from delaymq.protocol.bodies.base import REQUEST_DIALECT_BYTES
from delaymq.protocol.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st

ALL_BODIES: list[type[Body]] = [
    body
    for body in (getattr(bodies, name) for name in bodies.__all__)
    if isinstance(body, type) and issubclass(body, Body) and body is not Body
]
MQ = b'{"brokerName":"broker-a","queueId":0,"topic":"T"}'
QUEUE = MessageQueue("broker-a", 0, "T")


@st.composite
def any_body(draw: st.DrawFn) -> Body:
    return draw(st.from_type(draw(st.sampled_from(ALL_BODIES))))


def register_strategies() -> None:
    plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    values: dict[Any, st.SearchStrategy[Any]] = {str: plain_text, bool: st.booleans(), float: st.floats(0, 1e9)}

    def values_of(kind: Any) -> st.SearchStrategy[Any]:
        info = msgspec.inspect.type_info(kind)
        return of_info(info)

    def of_info(info: Any) -> st.SearchStrategy[Any]:
        match info:
            case msgspec.inspect.IntType():
                return st.integers(info.ge, info.le)
            case msgspec.inspect.StrType():
                return values[str]
            case msgspec.inspect.BoolType():
                return values[bool]
            case msgspec.inspect.FloatType():
                return values[float]
            case msgspec.inspect.EnumType():
                return st.sampled_from(info.cls)
            case msgspec.inspect.NoneType():
                return st.none()
            case msgspec.inspect.UnionType():
                return st.one_of(*(of_info(each) for each in info.types))
            case msgspec.inspect.ListType():
                return st.lists(of_info(info.item_type), max_size=3)
            case msgspec.inspect.DictType():
                return st.dictionaries(of_info(info.key_type), of_info(info.value_type), max_size=3)
            case msgspec.inspect.StructType():
                return st.builds(info.cls, **{each.name: of_info(each.type) for each in info.fields})
        raise AssertionError(info)

    for body in ALL_BODIES:
        st.register_type_strategy(body, values_of(body))


register_strategies()


@given(any_body())
def test_every_body_survives_a_round_trip(body: Body) -> None:
    assert type(body).decode(body.encode()) == body


@pytest.mark.parametrize("body", ALL_BODIES)
@pytest.mark.parametrize("data", [b"", b"[]", b"7", b'"x"', b"{", b"{1:", b"\xff", b"{{}:1}", b"[" * 100_000])
def test_no_body_is_read_from_garbage(body: type[Body], data: bytes) -> None:
    with pytest.raises(RequestError, match=f"the body is not a valid {body.__name__}: ") as caught:
        body.decode(data)
    assert caught.value.code == 1
    assert len(caught.value.remark) < 500


@pytest.mark.parametrize(
    ("body", "data"),
    [
        (TopicStats, b'{"offsetTable":{' + MQ + b':{"lastUpdateTimestamp":5,"maxOffset":9,"minOffset":0}}}'),
        (
            ConsumeStats,
            b'{"consumeTps":0.5,"offsetTable":{' + MQ + b':{"brokerOffset":9,"consumerOffset":7,"lastTimestamp":5}}}',
        ),
        (ResetOffset, b'{"offsetTable":{' + MQ + b":5}}"),
        (
            ConsumeStatsList,
            b'{"brokerAddr":"a:1","consumeStatsList":[{"G":[{"consumeTps":0.0,"offsetTable":{'
            + MQ
            + b':{"brokerOffset":9,'
            b'"consumerOffset":7,"lastTimestamp":5}}}]}],"totalDiff":2}',
        ),
    ],
)
def test_tables_with_queue_keys_use_javas_format(body: type[Body], data: bytes) -> None:
    read = body.decode(data)
    assert QUEUE.topic in repr(read)
    assert MQ + b":" in read.encode()
    assert body.decode(read.encode()) == read
    assert sorted(read.encode()) == sorted(data)


def test_integer_keys_are_read_in_both_forms_and_written_quoted() -> None:
    data = (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{%s:"10.0.0.1:1"},"brokerName":"a","cluster":"C"}},'
        b'"clusterAddrTable":{"C":["a"]}}'
    )
    plain, quoted = ClusterInfo.decode(data % b"0"), ClusterInfo.decode(data % b'"0"')
    assert plain == quoted
    assert plain.broker_addr_table["a"].broker_addrs == {0: "10.0.0.1:1"}
    assert json.loads(plain.encode()) == json.loads(data % b'"0"')
    assert DelayOffsets.decode(b'{"offsetTable":{1:3,18:4}}').offset_table == {1: 3, 18: 4}
    offsets = ConsumerOffsets.decode(b'{"offsetTable":{"T@G":{0:12,1:9}}}')
    assert offsets.offset_table == {"T@G": {0: 12, 1: 9}}
    assert offsets.encode() == b'{"offsetTable":{"T@G":{"0":12,"1":9}}}'


def test_absent_fields_are_omitted_and_defaults_written() -> None:
    assert TopicList(["T"]).encode() == b'{"topicList":["T"]}'
    assert json.loads(TopicConfig("T").encode()) == {
        "order": False,
        "perm": 6,
        "readQueueNums": 16,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 16,
    }
    assert LockResponse().encode() == b'{"lockOKMQSet":[]}'
    assert json.loads(TopicRoute().encode()) == {"brokerDatas": [], "queueDatas": [], "filterServerTable": {}}


def test_route_is_ascii_for_any_names() -> None:
    route = TopicRoute(broker_datas=[bodies.BrokerData("brøker", "延", {0: "a:1"})])
    assert route.encode().isascii()
    assert TopicRoute.decode(route.encode()) == route


def test_go_clients_heartbeat_may_contain_nulls() -> None:
    heartbeat = HeartbeatData.decode(
        b'{"clientID":"ID","producerDataSet":null,"consumerDataSet":[{"groupName":"G","consumeType":"CONSUME_ACTIVELY",'
        b'"messageModel":"BROADCASTING","subscriptionDataSet":[{"topic":"T","subString":"*","tagsSet":null,"codeSet":null,'
        b'"subVersion":5,"expressionType":"TAG"}]}]}'
    )
    assert heartbeat.producer_data_set == []
    (consumer,) = heartbeat.consumer_data_set
    assert (consumer.consume_type, consumer.message_model) == ("CONSUME_ACTIVELY", "BROADCASTING")
    assert consumer.subscription_data_set == [SubscriptionData("T", "*", sub_version=5, expression_type="TAG")]


def test_cpp_clients_heartbeat_may_have_numeric_enums_and_quoted_numbers() -> None:
    heartbeat = HeartbeatData.decode(
        b'{"clientID":"ID","consumerDataSet":[{"groupName":"G","consumeType":0,"messageModel":0,"consumeFromWhere":4,'
        b'"subscriptionDataSet":[{"topic":"T","subVersion":"5"}]}]}'
    )
    (consumer,) = heartbeat.consumer_data_set
    assert consumer.consume_type == "CONSUME_ACTIVELY"
    assert consumer.message_model == "BROADCASTING"
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert consumer.subscription_data_set[0].sub_version == 5
    with pytest.raises(RequestError):
        HeartbeatData.decode(b'{"clientID":"ID","consumerDataSet":[{"groupName":"G","consumeType":7}]}')


def test_body_error_names_the_position() -> None:
    with pytest.raises(RequestError, match=r"missing required field `groupName`.*consumerDataSet"):
        HeartbeatData.decode(b'{"clientID":"ID","consumerDataSet":[{}]}')
    with pytest.raises(RequestError, match=r"queueId"):
        LockRequest.decode(
            b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":4294967296,"topic":"t"}]}'
        )


def test_unknown_members_are_ignored() -> None:
    assert KVTable.decode(b'{"table":{"k":"v"},"more":{0:{{"a":1}:[null]}}}') == KVTable({"k": "v"})
    assert KVTable.decode(b'{"table":{"k":"v"},"more":{"0":[null]}}') == KVTable({"k": "v"})


def test_real_brokers_config_files_are_read() -> None:
    table = TopicTable.decode(
        b'{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"timestamp":5\n\t},\n\t"topicConfigTable":{\n\t\t"T":{\n\t\t\t"order":false,'
        b'\n\t\t\t"perm":7,\n\t\t\t"readQueueNums":8,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n\t\t\t"topicName":"T",\n\t\t\t'
        b'"topicSysFlag":0,\n\t\t\t"writeQueueNums":8\n\t\t}\n\t}\n}'
    )
    assert table == TopicTable(DataVersion(3, 5), {"T": TopicConfig("T", 8, 8, 7)})
    groups = GroupTable.decode(
        b'{"dataVersion":{"counter":1,"timestamp":2},"subscriptionGroupTable":{"G":{"groupName":"G"}}}'
    )
    assert groups.subscription_group_table["G"].retry_max_times == 16


def test_connections_use_javas_names() -> None:
    connection = ConsumerConnection([Connection("ID", "10.0.0.2:5", "JAVA", 409)])
    assert json.loads(connection.encode()) == {
        "connectionSet": [{"clientAddr": "10.0.0.2:5", "clientId": "ID", "language": "JAVA", "version": 409}],
        "subscriptionTable": {},
    }


def test_reset_for_cpp_is_a_list() -> None:
    assert json.loads(ResetOffset({QUEUE: 5}).encode_as_list()) == {
        "offsetTable": [{"brokerName": "broker-a", "offset": 5, "queueId": 0, "topic": "T"}]
    }


def test_compressed_registration_survives_a_round_trip() -> None:
    body = RegisterBody(TopicTable(DataVersion(3, 5), {"T": TopicConfig("T", 4, 8, 7)}), ["10.0.0.9:1"])
    data = body.encode_compressed()
    assert zlib.decompress(data)[4:] == (
        b'{"counter":3,"timestamp":5}\0\0\0\x01\0\0\0\x12T 4 8 7 SINGLE_TAG\0\0\0\x0e["10.0.0.9:1"]'
    )
    assert RegisterBody.decode_request(data, compressed=True, crc32=body_crc32(data)) == body
    with pytest.raises(RequestError, match="crc32 not match"):
        RegisterBody.decode_request(data, compressed=True, crc32=1)


def piece(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "truncated"),
        (b"no zlib", "incorrect header"),
        (zlib.compress(b"x" * 50)[:-6], "truncated"),
        (zlib.compress(b""), "ends in the middle of a length"),
        (zlib.compress(b"\xff\xff\xff\xff"), "exceeds"),
        (zlib.compress(piece(b"{}") + b"\xff\xff\xff\xff"), "exceeds"),
        (zlib.compress(piece(b"[]") + bytes(4)), "DataVersion"),
        (zlib.compress(piece(b"{}") + b"\0\0\0\x01" + piece(b"T 4 4 6")), "is not a topic"),
        (zlib.compress(piece(b"{}") + b"\0\0\0\x01" + piece(b"T 4 x 6 SINGLE_TAG")), "is not a topic"),
        (zlib.compress(piece(b"{}") + b"\0\0\0\x01" + piece(b"\xff 4 4 6 SINGLE_TAG")), "is not a topic"),
        (zlib.compress(piece(b"{}") + bytes(4) + piece(b"{}")), "filter servers"),
        (zlib.compress(piece(b"{}") + bytes(4)), "ends in the middle of a length"),
    ],
)
def test_broken_compressed_registration_is_rejected(data: bytes, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        RegisterBody.decode_request(data, compressed=True)


def test_inflated_registration_is_limited() -> None:
    bomb = zlib.compress(bytes(200 * 1024 * 1024), 9)
    assert len(bomb) < 256 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="expands to more"):
            RegisterBody.decode_request(bomb, compressed=True)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 * 1024 * 1024


def test_oversized_body_is_rejected_unparsed_and_callers_may_raise_the_limit() -> None:
    data = KVTable({"k": "v" * 5_000_000}).encode()
    with pytest.raises(RequestError, match="exceeds the limit"):
        KVTable.decode(data)
    assert len(KVTable.decode(data, max_bytes=6_000_000).table["k"]) == 5_000_000
    with pytest.raises(RequestError, match="values"):
        ConsumerIds.decode(b'{"consumerIdList":[' + b"{}," * 1_300_000 + b"{}]}")
    with pytest.raises(RequestError, match=r"the heartbeat is too large .* 100000 values.: divide the groups"):
        HeartbeatData.decode(b'{"consumerDataSet":[' + b"{}," * 60_000 + b"{}]}")


def test_settings_are_read_and_written_as_lines() -> None:
    data = b"# comment\n\nbrokerName = broker-a\r\nurl=a=b\nempty=\n"
    assert decode_settings(data) == {"brokerName": "broker-a", "url": "a=b", "empty": ""}
    assert encode_settings({"a": "1", "b": "x\ny"}) == b"a=1\nb=x y\n"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff", "utf-8"),
        (b"a=1\nno setting", "line 2 is not key=value: 'no setting'"),
        (b"=1", "line 1"),
        (b"a=1\n" * 10_001, "lines"),
    ],
)
def test_unreadable_settings_are_rejected(data: bytes, problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        decode_settings(data)


@pytest.mark.parametrize("kind", [HeartbeatData, LockRequest, CheckClient, SubscriptionGroupConfig])
def test_tolerant_parser_reads_small_requests_only(kind: type[Body]) -> None:
    small, large = b'{1:"%b"}' % (b"x" * 1_000), b'{1:"%b"}' % (b"x" * REQUEST_DIALECT_BYTES)
    with pytest.raises(RequestError) as of_fields:
        kind.decode(small)
    assert "not standard JSON" not in of_fields.value.remark
    with pytest.raises(RequestError, match=r"exceeds? the limit of 65536"):
        kind.decode(large)


def test_lock_request_of_the_largest_topic_is_read_and_a_larger_one_rejected() -> None:
    def body(count: int) -> bytes:
        queues = [MessageQueue("broker-a", number, "Orders-of-a-department") for number in range(count)]
        return LockRequest("readers", "client", queues).encode()

    assert len(LockRequest.decode(body(16_384)).mq_set) == 16_384
    with pytest.raises(RequestError, match="exceeds the limit of 1572864"):
        LockRequest.decode(body(25_000))
