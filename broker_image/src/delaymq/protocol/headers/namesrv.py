"""Headers of a NameServer: registrations, routes, write permission, key-value settings."""

from delaymq.protocol.headers.base import Header
from delaymq.protocol.integers import Int32, Int64


class RegisterBrokerRequestHeader(Header):
    """Request 103."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool | None = None
    body_crc32: Int32 | None = None
    epoch: Int64 | None = None
    """DelayMQ only: rises with each promotion of a replica; used in registrations that are signed or have a token."""
    group_tokens: str | None = None
    """DelayMQ only: what members of a replicated group know, in hexadecimal, separated by commas. The NameServer keeps
    them, and accepts another member's registration with one of them and a higher epoch.
    """


class RegisterBrokerResponseHeader(Header):
    """Response to 103."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(Header):
    """Request 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class GetRouteInfoRequestHeader(Header):
    """Request 105."""

    topic: str
    accept_standard_json_only: bool | None = None


class QueryDataVersionRequestHeader(Header):
    """Request 322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Header):
    """Response to 322."""

    changed: bool


class WipeWritePermOfBrokerRequestHeader(Header):
    """Request 205."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header):
    """Response to 205."""

    wipe_topic_count: Int32


class AddWritePermOfBrokerRequestHeader(Header):
    """Request 327."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(Header):
    """Response to 327."""

    add_topic_count: Int32


class PutKVConfigRequestHeader(Header):
    """Request 100."""

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(Header):
    """Request 101."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header):
    """Response to 101."""

    value: str | None = None


class DeleteKVConfigRequestHeader(Header):
    """Request 102."""

    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(Header):
    """Request 219."""

    namespace: str


class DeleteTopicFromNamesrvRequestHeader(Header):
    """Request 216."""

    topic: str
    cluster_name: str | None = None


class GetTopicsByClusterRequestHeader(Header):
    """Request 224."""

    cluster: str
