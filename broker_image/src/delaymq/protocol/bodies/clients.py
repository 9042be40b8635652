"""Bodies about clients: heartbeats, members of groups, and queue locks."""

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
"""Maximum size of a heartbeat; RocketMQ's Java client states a subscription in about 150 bytes."""
MAX_LOCK_BYTES: Final = 1536 * 1024
"""Maximum size of a lock request: 16,384 queues, a topic's maximum, with a name of about 30 characters."""
MAX_HEARTBEAT_VALUES: Final = 100_000
"""Maximum number of commas and brackets in a heartbeat; a subscription has about 10."""
_NUMBERED: Final = {
    "consumeType": CONSUME_TYPES,
    "messageModel": MESSAGE_MODELS,
    "consumeFromWhere": CONSUME_FROM_WHERE,
}


class SubscriptionData(Body):
    """Subscription of a group to one topic. `code_set` has the hashes of the tags, `sub_version` the creation time."""

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
    """Request body of 34."""

    MAX_BYTES: ClassVar[int] = MAX_HEARTBEAT_BYTES
    MAX_DIALECT_BYTES: ClassVar[int] = REQUEST_DIALECT_BYTES

    client_id: str = field(name="clientID")
    producer_data_set: list[ProducerData] = written(list)
    consumer_data_set: list[ConsumerData] = written(list)

    @classmethod
    def decode(cls, data: bytes | str, *, max_bytes: int | None = None) -> Self:
        """Decode a heartbeat; see Body.decode. Limits keep the time below a few hundredths of a second."""
        try:
            check_size(data, max_bytes or cls.MAX_BYTES, MAX_HEARTBEAT_VALUES)
        except FastJsonError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the heartbeat is too large ({error}): divide the groups and topics of this process among several"
                " clients with different instanceNames",
            ) from error
        return super().decode(data, max_bytes=max_bytes)

    @classmethod
    def _adapted(cls, tree: Any) -> Any:
        # C++ clients write enum values as numbers.
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
    """Request body of 46, which checks a subscription."""

    MAX_BYTES: ClassVar[int] = MAX_HEARTBEAT_BYTES
    MAX_DIALECT_BYTES: ClassVar[int] = REQUEST_DIALECT_BYTES

    client_id: str
    group: str
    subscription_data: SubscriptionData


class ConsumerIds(Body):
    """Response body of 38."""

    consumer_id_list: list[str] = written(list)


class GroupList(Body):
    """Response body of 300."""

    group_list: list[str] = written(list)


class Connection(Body):
    """One connection of a client."""

    client_id: str
    client_addr: str
    language: str
    version: Int32


class ConsumerConnection(Body):
    """Response body of 203."""

    connection_set: list[Connection] = written(list)
    subscription_table: dict[str, SubscriptionData] = written(dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProducerConnection(Body):
    """Response body of 204."""

    connection_set: list[Connection] = written(list)


class ProducerInfo(Body):
    """One producer in ProducerTable."""

    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str
    version: Int32
    last_update_timestamp: Int64


class ProducerTable(Body):
    """Response body of 328: group → producers."""

    data: dict[str, list[ProducerInfo]] = written(dict)


class LockRequest(Body):
    """Request body of 41 and 42: queues that one client of a group locks or releases."""

    MAX_BYTES: ClassVar[int] = MAX_LOCK_BYTES
    MAX_DIALECT_BYTES: ClassVar[int] = REQUEST_DIALECT_BYTES

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = written(list)


class LockResponse(Body):
    """Response body of 41: the queues that the client holds."""

    lock_ok_mq_set: list[MessageQueue] = written(list, name="lockOKMQSet")
