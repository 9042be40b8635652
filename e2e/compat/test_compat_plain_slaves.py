"""RocketMQ's own broker as a slave of DelayMQ's, over RocketMQ's HA protocol."""

import json
from collections.abc import Callable
from random import randbytes

from harness import ports
from harness.brokers import HOST, OurCluster, RealSlave
from harness.clients import Workbench
from harness.commitlog import segments
from harness.waiting import until

SEGMENT_BYTES = 256 << 10
LEVELS = "1s 2s 1s 1s 3s 4s 10s 1h"
SLAVE = {"haSendHeartbeatInterval": "500"}
"""RocketMQ's slave reports its offset for the first time after this interval."""
LEVEL_1H = 8

NewWorkbench = Callable[..., Workbench]


def test_real_slave_copies_log_and_tables(new_workbench: NewWorkbench, isolated_network: None) -> None:
    keys = {
        "haPlainSlaves": "true",
        "haPlainSlaveAddresses": HOST,
        "haListenPort": str(ports.free_port()),
        "messageDelayLevel": LEVELS,
        "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    }
    with OurCluster(config=keys) as ours:
        clients = new_workbench(ours)
        topic, group = clients.topic(queues=2), clients.group()
        for number in range(8):
            clients.producer.send(topic, f"{number}{randbytes(30_000).hex()}")
        clients.producer.send(topic, "delayed", delayLevel=LEVEL_1H)
        consumer = clients.push(topic, group=group)
        consumer.inbox.wait_for(lambda got: len(got) == 8, timeout_s=30)
        consumer.stop()
        with RealSlave(ours, config=SLAVE) as slave:
            until(lambda: segments(slave.store_path) == segments(ours.store_path), "the same segments")
            clients.producer.send(topic, "later")
            until(lambda: segments(slave.store_path) == segments(ours.store_path), "the same segments again")
            assert len(segments(ours.store_path)) >= 2

            def has_tables() -> bool:
                tables = {path.name: path.read_text() for path in (slave.store_path / "config").glob("*.json")}
                return (
                    f'"{topic}@{group}"' in tables.get("consumerOffset.json", "")
                    and f'"{topic}"' in tables.get("topics.json", "")
                    and f'"{group}"' in tables.get("subscriptionGroup.json", "")
                    and json.loads(tables["delayOffset.json"]) == {"offsetTable": {"8": 0}}
                )

            until(has_tables, "topics, groups and offsets of the master")
