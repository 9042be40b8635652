"""Headers for administration of a broker: topics, groups, statistics, connections, access control."""

from typing import Final

from delaymq.protocol.headers.base import Header
from delaymq.protocol.integers import Int32, Int64

REQUIRED_OF_NEW: Final = "new"
KEEP_FORMER: Final = "keep"
"""The account's secret key before the request stays valid, in addition to the new one."""
DROP_FORMER: Final = "drop"
"""Only the secret key in the request is valid from now on."""
NO_ROLE: Final = "none"


class CreateAccessConfigRequestHeader(Header):
    """Request 50."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None
    require_second_signature: str | None = None
    """DelayMQ only: true, false, or REQUIRED_OF_NEW, which sets true for a new account and keeps that of others."""
    quotas: str | None = None
    """DelayMQ only: `KEY=VALUE`, separated by commas, with the keys of rule files. The value `default` removes one."""
    former_secret_key: str | None = None
    """DelayMQ only: KEEP_FORMER or DROP_FORMER. A secret key is never sent in this field."""
    role: str | None = None
    """DelayMQ only: the account's role on HTTP, or NO_ROLE."""
    certificate_only: bool | None = None
    """DelayMQ only: whether only a client certificate admits the account."""


class CreateTopicRequestHeader(Header):
    """Request 17."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int32 | None = None


class DeleteAccessConfigRequestHeader(Header):
    """Request 51."""

    access_key: str


class DeleteSubscriptionGroupRequestHeader(Header):
    """Request 207."""

    group_name: str
    remove_offset: bool | None = None


class DeleteTopicRequestHeader(Header):
    """Request 215."""

    topic: str


class GetBrokerAclConfigRequestHeader(Header):
    """Request 52."""

    accounts: bool | None = None
    """DelayMQ only: whether the response contains the accounts."""


class GetBrokerAclConfigResponseHeader(Header):
    """Response to 52."""

    version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
    all_acl_file_version: str | None = None


class GetBrokerConfigResponseHeader(Header):
    """Response to 26."""

    version: str


class GetConsumeStatsInBrokerHeader(Header):
    """Request 317."""

    is_order: bool


class GetConsumeStatsRequestHeader(Header):
    """Request 208."""

    consumer_group: str
    topic: str | None = None


class GetConsumerConnectionListRequestHeader(Header):
    """Request 203."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(Header):
    """Request 204."""

    producer_group: str


class GetTopicConfigRequestHeader(Header):
    """Request 351."""

    topic: str


class GetTopicStatsInfoRequestHeader(Header):
    """Request 202."""

    topic: str


class QueryConsumeQueueRequestHeader(Header):
    """Request 321."""

    topic: str | None = None
    queue_id: Int32 | None = None
    index: Int64 | None = None
    count: Int32 | None = None
    consumer_group: str | None = None


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header):
    """Request 53. RocketMQ's tools omit the path if none is given."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class ViewBrokerStatsDataRequestHeader(Header):
    """Request 315."""

    stats_name: str
    stats_key: str
