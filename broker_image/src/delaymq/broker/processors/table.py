"""The one table of what the broker serves, and the refusals of what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from delaymq.broker.processors import admin, clients, consumers, offsets, pull, query, send
from delaymq.broker.results import Result
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Response

if TYPE_CHECKING:
    # Processors return one or two of Result's classes each, which mypy does not take for a Callable's argument order.
    Processor = Callable[[Any, Any, Any], Result]

PROCESSORS: Final[dict[int, Processor]] = {
    10: send.send_message,
    11: pull.pull_message,
    12: query.query_message,
    14: offsets.query_consumer_offset,
    15: offsets.update_consumer_offset,
    17: admin.update_and_create_topic,
    21: admin.get_all_topic_config,
    25: admin.update_broker_config,
    26: admin.get_broker_config,
    28: admin.get_runtime_info,
    29: offsets.search_offset,
    30: offsets.get_max_offset,
    31: offsets.get_min_offset,
    32: offsets.get_earliest_store_time,
    33: query.view_message_by_id,
    34: clients.heartbeat,
    35: clients.unregister_client,
    36: send.send_back,
    38: clients.get_consumer_list_by_group,
    41: clients.lock_queues,
    42: clients.unlock_queues,
    43: offsets.get_all_consumer_offset,
    45: offsets.get_all_delay_offset,
    46: clients.check_client_config,
    200: admin.update_and_create_group,
    201: admin.get_all_groups,
    202: admin.get_topic_stats,
    203: consumers.get_consumer_connections,
    204: consumers.get_producer_connections,
    207: admin.delete_group,
    208: consumers.get_consume_stats,
    215: admin.delete_topic,
    222: consumers.reset_offset,
    300: consumers.query_topic_consumers,
    303: consumers.query_consume_time_span,
    305: admin.get_system_topics,
    306: admin.clean_expired_queues,
    310: send.send_message_v2,
    316: admin.clean_unused_topics,
    317: consumers.get_broker_consume_stats,
    320: send.send_batch_message,
    321: query.query_consume_queue,
    328: consumers.get_all_producers,
    329: admin.delete_expired_commit_log,
}

# Answers to these carry two fields more, also when they are refusals.
SEND_CODES: Final = frozenset({10, 310, 320})

# What a client should know about codes that RocketMQ's broker serves and this one does not.
NOT_SERVED: Final[dict[int, str]] = {
    37: "transactions come with a later version: send without TRAN_MSG",
    50: "access control comes with a later version: keep the ports private",
    51: "access control comes with a later version: keep the ports private",
    52: "access control comes with a later version: keep the ports private",
    53: "access control comes with a later version: keep the ports private",
    223: "asking clients for their state comes with a later version: see consumerProgress",
    307: "asking clients for their state comes with a later version: see consumerConnection",
    308: "offset correction by other groups comes with a later version: set offsets with code 15",
    309: "having a client consume a message directly comes with a later version",
    314: "cloning a group's offsets comes with a later version: set them with code 15",
    315: "statistics by name come with a later version: see brokerStatus and /metrics",
    323: "transactions come with a later version: there are no half messages to resume",
    324: "request and reply come with a later version: send to a topic of your own",
    325: "request and reply come with a later version: send to a topic of your own",
}


def refusal(code: int) -> Response:
    """The answer to a request code that is not served."""
    why = NOT_SERVED.get(code)
    remark = f" request type {code} not supported"
    return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"{remark}: {why}" if why else remark)
