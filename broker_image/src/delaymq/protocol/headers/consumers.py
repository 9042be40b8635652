"""Headers of consumer groups: offsets, members, resets."""

from msgspec import field

from delaymq.protocol.headers.base import Header
from delaymq.protocol.integers import Int32, Int64


class QueryConsumerOffsetRequestHeader(Header):
    """Request 14."""

    consumer_group: str
    topic: str
    queue_id: Int32


class QueryConsumerOffsetResponseHeader(Header):
    """Response to 14."""

    offset: Int64


class UpdateConsumerOffsetRequestHeader(Header):
    """Request 15."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class GetMaxOffsetRequestHeader(Header):
    """Request 30."""

    topic: str
    queue_id: Int32


class GetMaxOffsetResponseHeader(Header):
    """Response to 30."""

    offset: Int64


class GetMinOffsetRequestHeader(Header):
    """Request 31."""

    topic: str
    queue_id: Int32


class GetMinOffsetResponseHeader(Header):
    """Response to 31."""

    offset: Int64


class SearchOffsetRequestHeader(Header):
    """Request 29."""

    topic: str
    queue_id: Int32
    timestamp: Int64


class SearchOffsetResponseHeader(Header):
    """Response to 29."""

    offset: Int64


class GetEarliestMsgStoretimeRequestHeader(Header):
    """Request 32."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponseHeader(Header):
    """Response to 32."""

    timestamp: Int64


class UnregisterClientRequestHeader(Header):
    """Request 35."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(Header):
    """Request 38."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(Header):
    """Request 40."""

    consumer_group: str


class ResetOffsetRequestHeader(Header):
    """Request 220, 222."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool


class GetConsumerStatusRequestHeader(Header):
    """Request 221, 223."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequestHeader(Header):
    """Request 307."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class QueryConsumeTimeSpanRequestHeader(Header):
    """Request 303."""

    topic: str
    group: str


class QueryCorrectionOffsetHeader(Header):
    """Request 308."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffsetRequestHeader(Header):
    """Request 314."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


class QueryTopicConsumeByWhoRequestHeader(Header):
    """Request 300."""

    topic: str
