"""What clients tell about themselves, what brokers tell about clients, and locks on queues."""

from typing import Any, ClassVar, Final, Self

from msgspec import field

from delaymq.protocol.bodies.base import REQUEST_DIALECT_BYTES, Body, MessageQueue, written
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import FastJsonError, RequestError
from delaymq.protocol.fastjson import check_size
from delaymq.protocol.integers import Int32, Int64

CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
MAX_HEARTBEAT_BYTES: Final = 1024 * 1024
"""Of a heartbeat; RocketMQ's client in Java states a subscription in some 150 bytes."""
MAX_LOCK_BYTES: Final = 1536 * 1024
"""Of a request for locks: 16,384 queues, the most of a topic, with a name of some 30 characters."""
MAX_HEARTBEAT_VALUES: Final = 100_000
"""Commas and brackets in it: a subscription has some 10."""
_NUMBERED: Final = {
    "consumeType": CONSUME_TYPES,
    "messageModel": MESSAGE_MODELS,
    "consumeFromWhere": CONSUME_FROM_WHERE,
}


class SubscriptionData(Body):
    """What a group wants of one topic. `code_set` has the tags' hashes, `sub_version` the time of its making."""

    topic: str
    sub_string: str = written(lambda: "*")
    tags_set: list[str] = written(list)
    code_set: list[Int32] = written(list)
    sub_version: Int64 = written(int)
    expression_type: str | None = None
    class_filter_mode: bool = written(bool)


class ConsumerData(Body):
    """One consumer group of a client."""

    group_name: str
    consume_type: str = written(lambda: "CONSUME_PASSIVELY")
    message_model: str = written(lambda: "CLUSTERING")
    consume_from_where: str = written(lambda: "CONSUME_FROM_LAST_OFFSET")
    subscription_data_set: list[SubscriptionData] = written(list)
    unit_mode: bool = written(bool)


class ProducerData(Body):
    """One producer group of a client."""

    group_name: str


class HeartbeatData(Body):
    """Body of 34."""

    MAX_BYTES: ClassVar[int] = MAX_HEARTBEAT_BYTES
    MAX_DIALECT_BYTES: ClassVar[int] = REQUEST_DIALECT_BYTES

    client_id: str = field(name="clientID")
    producer_data_set: list[ProducerData] = written(list)
    consumer_data_set: list[ConsumerData] = written(list)

    @classmethod
    def decode(cls, data: bytes | str, *, max_bytes: int | None = None) -> Self:
        """As Body.decode, with bounds that keep it below a few hundredths of a second."""
        try:
            check_size(data, max_bytes or cls.MAX_BYTES, MAX_HEARTBEAT_VALUES)
        except FastJsonError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the heartbeat is too large ({error}): divide the groups and topics of this process among several"
                " clients, each with an instanceName of its own",
            ) from error
        return super().decode(data, max_bytes=max_bytes)

    @classmethod
    def _adapted(cls, tree: Any) -> Any:
        # Clients in C++ write the number of an enum's value.
        consumers = tree.get("consumerDataSet") if isinstance(tree, dict) else None
        for consumer in consumers if isinstance(consumers, list) else ():
            if not isinstance(consumer, dict):
                continue
            for name, values in _NUMBERED.items():
                number = consumer.get(name)
                if isinstance(number, int) and 0 <= number < len(values):
                    consumer[name] = values[number]
        return tree


class CheckClient(Body):
    """Body of 46: is this subscription acceptable?"""

    MAX_BYTES: ClassVar[int] = MAX_HEARTBEAT_BYTES
    MAX_DIALECT_BYTES: ClassVar[int] = REQUEST_DIALECT_BYTES

    client_id: str
    group: str
    subscription_data: SubscriptionData


class ConsumerIds(Body):
    """Answer to 38."""

    consumer_id_list: list[str] = written(list)


class GroupList(Body):
    """Answer to 300."""

    group_list: list[str] = written(list)


class Connection(Body):
    """One client as a broker sees it."""

    client_id: str
    client_addr: str
    language: str
    version: Int32


class ConsumerConnection(Body):
    """Answer to 203."""

    connection_set: list[Connection] = written(list)
    subscription_table: dict[str, SubscriptionData] = written(dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProducerConnection(Body):
    """Answer to 204."""

    connection_set: list[Connection] = written(list)


class ProducerInfo(Body):
    """One producer in ProducerTable."""

    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str
    version: Int32
    last_update_timestamp: Int64


class ProducerTable(Body):
    """Answer to 328: group → its producers."""

    data: dict[str, list[ProducerInfo]] = written(dict)


class LockRequest(Body):
    """Body of 41 and 42: queues to lock for, or to release by, one client of a group."""

    MAX_BYTES: ClassVar[int] = MAX_LOCK_BYTES
    MAX_DIALECT_BYTES: ClassVar[int] = REQUEST_DIALECT_BYTES

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = written(list)


class LockResponse(Body):
    """Answer to 41: the queues that the client holds now."""

    lock_ok_mq_set: list[MessageQueue] = written(list, name="lockOKMQSet")
