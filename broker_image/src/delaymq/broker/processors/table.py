"""Table of the served request codes, and the rejections of all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from delaymq.broker.groups.consumer_offsets import remedy
from delaymq.broker.processors import (
    access,
    admin,
    clients,
    consumers,
    delay_changes,
    members,
    offsets,
    pull,
    query,
    queue_tables,
    replicas,
    replies,
    retries,
    send,
    statistics,
    transactions,
)
from delaymq.broker.requests.errors import unavailable
from delaymq.broker.requests.results import Result
from delaymq.protocol.codes import PULL_CODES, RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.errors import RequestError

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker, Processor
    from delaymq.broker.requests.session import Session

PROCESSORS: Final[dict[int, Processor]] = {
    RequestCode.SEND_MESSAGE: send.send_message,
    RequestCode.PULL_MESSAGE: pull.pull_message,
    RequestCode.QUERY_MESSAGE: query.query_message,
    RequestCode.RECALL_MESSAGE: delay_changes.recall_message,
    RequestCode.LIST_PENDING_MESSAGES: query.list_pending_messages,
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    RequestCode.UPDATE_AND_CREATE_TOPIC: admin.update_and_create_topic,
    RequestCode.GET_ALL_TOPIC_CONFIG: admin.get_all_topic_config,
    RequestCode.UPDATE_BROKER_CONFIG: admin.update_broker_config,
    RequestCode.GET_BROKER_CONFIG: admin.get_broker_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: admin.get_runtime_info,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
    RequestCode.GET_MAX_OFFSET: offsets.get_max_offset,
    RequestCode.GET_MIN_OFFSET: offsets.get_min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.get_earliest_store_time,
    RequestCode.VIEW_MESSAGE_BY_ID: query.view_message_by_id,
    RequestCode.HEART_BEAT: clients.heartbeat,
    RequestCode.UNREGISTER_CLIENT: clients.unregister_client,
    RequestCode.CONSUMER_SEND_MSG_BACK: retries.send_back,
    RequestCode.END_TRANSACTION: transactions.end_transaction,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.get_consumer_list_by_group,
    RequestCode.LOCK_BATCH_MQ: clients.lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: clients.unlock_queues,
    RequestCode.GET_ALL_CONSUMER_OFFSET: offsets.get_all_consumer_offset,
    RequestCode.GET_ALL_DELAY_OFFSET: offsets.get_all_delay_offset,
    RequestCode.CHECK_CLIENT_CONFIG: clients.check_client_config,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: access.put_account,
    RequestCode.DELETE_ACL_CONFIG: access.delete_account,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: access.get_versions,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: access.set_white_addresses,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.update_and_create_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.get_all_groups,
    RequestCode.GET_TOPIC_STATS_INFO: queue_tables.get_topic_stats,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumers.get_consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: consumers.get_producer_connections,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: admin.delete_group,
    RequestCode.GET_CONSUME_STATS: queue_tables.get_consume_stats,
    RequestCode.DELETE_TOPIC_IN_BROKER: admin.delete_topic,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: members.reset_offset,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: consumers.query_topic_consumers,
    RequestCode.QUERY_CONSUME_TIME_SPAN: queue_tables.query_consume_time_span,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: members.get_consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: members.get_running_info,
    RequestCode.QUERY_CORRECTION_OFFSET: offsets.query_correction_offset,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: members.consume_directly,
    RequestCode.CLONE_GROUP_OFFSET: offsets.clone_group_offset,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: admin.get_system_topics,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: admin.clean_expired_queues,
    RequestCode.SEND_MESSAGE_V2: send.send_message_v2,
    RequestCode.CLEAN_UNUSED_TOPIC: admin.clean_unused_topics,
    RequestCode.VIEW_BROKER_STATS_DATA: statistics.view_statistics,
    RequestCode.GET_BROKER_CONSUME_STATS: queue_tables.get_broker_consume_stats,
    RequestCode.SEND_BATCH_MESSAGE: send.send_batch_message,
    RequestCode.QUERY_CONSUME_QUEUE: query.query_consume_queue,
    RequestCode.SEND_REPLY_MESSAGE: replies.send_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: replies.send_reply,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: transactions.resume_check,
    RequestCode.GET_ALL_PRODUCER_INFO: consumers.get_all_producers,
    RequestCode.DELETE_EXPIRED_COMMITLOG: admin.delete_expired_commit_log,
    RequestCode.GET_TOPIC_CONFIG: admin.get_topic_config,
    RequestCode.LITE_PULL_MESSAGE: pull.pull_message,
    RequestCode.LINK_REPLICA: replicas.link_replica,
    RequestCode.PROVE_REPLICA: replicas.link_replica,
    RequestCode.REPLICATE: replicas.replicate,
}

_WRITING: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    }
)
"""Requests that change the store. A read-only broker serves all others."""


def _only_read(broker: Broker, session: Session, command: Command) -> Result:
    raise RequestError(
        ResponseCode.NO_PERMISSION,
        f"the broker[{broker.config.broker_name}] is read-only (readOnly=true): use another one, or start this one"
        " without readOnly",
    )


PROCESSORS_READ_ONLY: Final[dict[int, Processor]] = PROCESSORS | dict.fromkeys(_WRITING, _only_read)
"""Processors of a broker that opened its store read-only."""

_OF_MASTERS: Final = _WRITING | {
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.RECALL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
}
"""Requests that replicas refuse: they change what a replica receives, or state the ends of queues. A replica may know
less of a queue than a consumer has read, which would go back."""


def _of_a_master(broker: Broker, session: Session, command: Command) -> Result:
    return _refused(command, unavailable(broker.replica_refusal))


_NEEDS_OFFSETS: Final = frozenset(
    {
        *PULL_CODES,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
    }
)
"""Requests that depend on group offsets, or on the position at which a consumer without an offset starts."""


def _without_offsets(broker: Broker, session: Session, command: Command) -> Result:
    return _refused(command, unavailable(remedy(broker.offsets.unreadable)))


def _refused(command: Command, refusal: RequestError) -> Response:
    if command.code == RequestCode.QUERY_CONSUMER_OFFSET and command.language == "JAVA":
        # After any other response, RocketMQ's Java consumers start at one end of the queue. After this one they retry.
        return Response(ResponseCode.SUCCESS, refusal.remark)
    raise refusal


PROCESSORS_OF_ACCESS: Final[dict[int, Processor]] = {RequestCode.GET_KV_CONFIG: access.issue_challenge}
"""Additional processors of a broker with access control."""


def processors_for(*, read_only: bool, without_offsets: bool, guarded: bool, follows: bool) -> Mapping[int, Processor]:
    """Return the processors of a broker. The arguments state its restrictions and whether it has access control."""
    served = PROCESSORS_READ_ONLY if read_only else PROCESSORS
    if guarded:
        served = served | PROCESSORS_OF_ACCESS
    if without_offsets:
        served = served | dict.fromkeys(_NEEDS_OFFSETS, _without_offsets)
    return served | dict.fromkeys(_OF_MASTERS, _of_a_master) if follows else served


NOT_SERVED: Final[dict[int, str]] = {}
"""Alternatives to request codes that RocketMQ's broker serves and this one does not."""


def refusal(code: int) -> Response:
    """Return the response to a request code that is not served."""
    why = NOT_SERVED.get(code)
    remark = f" request type {code} not supported"
    return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"{remark}: {why}" if why else remark)
