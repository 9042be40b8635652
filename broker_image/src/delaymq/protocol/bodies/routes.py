"""Bodies of NameServers about brokers and topics."""

import json

from delaymq.protocol.bodies.base import Body, written
from delaymq.protocol.integers import Int32, Int64

MASTER_ID = 0
"""The broker id of a group's master in `broker_addrs`."""


class BrokerData(Body):
    """One broker group: broker id → address."""

    broker_name: str
    cluster: str = written(str)
    broker_addrs: dict[Int64, str] = written(dict)


class RouteQueues(Body):
    """A topic's queues on one broker group."""

    broker_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_sys_flag: Int32 = written(int)


class TopicRoute(Body):
    """Response body of 105. `order_topic_conf` has the form `broker-a:4;broker-b:4`."""

    broker_datas: list[BrokerData] = written(list)
    queue_datas: list[RouteQueues] = written(list)
    filter_server_table: dict[str, list[str]] = written(dict)
    order_topic_conf: str | None = None

    def encode(self) -> bytes:
        """Return standard JSON in ASCII, which clients from 4.9.4 request; older clients can read it, too."""
        data = super().encode()
        return data if data.isascii() else json.dumps(json.loads(data), separators=(",", ":")).encode()


class ClusterInfo(Body):
    """Response body of 106."""

    broker_addr_table: dict[str, BrokerData] = written(dict)
    cluster_addr_table: dict[str, list[str]] = written(dict)


class TopicList(Body):
    """Response body of 206, 224, 304, 305 and 311 to 313. `broker_addr` is set by 304 only."""

    topic_list: list[str] = written(list)
    broker_addr: str | None = None
