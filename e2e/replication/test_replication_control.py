"""A control: the same clients and the same judge with RocketMQ's broker, whose slave is promoted by hand."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from delaymq_testing.repetitions import SEED
from harness import java
from replication.faulty_group import CLIENT, TEST
from replication.history import Kind
from replication.history_judge import Verdict, judge
from replication.history_load import HistoryLoad, Mix
from replication.members import LEVEL_TABLE, wait_until
from replication.namespaces import Network
from replication.rocketmq_pair import MASTER, NAMESRV, SLAVE, RocketMqPair
from replication.schedules import wait_until_complete

BEFORE_S, AFTER_S = 15.0, 6.0
"""Durations of the load before and after the promotion; slaves fetch the positions of delays every 10 s."""
COMPLETE_S, JOIN_S = 20.0, 60.0
pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.usefixtures("namespaces")]


def test_promoted_slave_of_rocketmq_repeats_delayed_messages(tmp_path: Path) -> None:
    java.prepare()

    def scenario(network: Network) -> Verdict:
        with RocketMqPair(network, tmp_path, LEVEL_TABLE) as pair:
            mix = Mix(kinds=(Kind.PLAIN, Kind.LEVEL), cancels=False, transactions=False)
            load = HistoryLoad(network[CLIENT], pair.addresses, str(SEED), mix)
            load.start()
            wait_until(lambda: any(load.read_until()), "no message arrives")
            time.sleep(BEFORE_S)
            pair.promote()
            time.sleep(AFTER_S)
            load.stop_producing()
            time.sleep(AFTER_S)
            wait_until_complete(load, lambda: judge(load.history, pair.store(SLAVE), LEVEL_TABLE), COMPLETE_S)
            load.stop()
            load.join(JOIN_S)
            pair.processes[SLAVE].kill()
            if load.error is not None:
                raise load.error
            return judge(load.history, pair.store(SLAVE), LEVEL_TABLE)

    with Network(tmp_path, [MASTER, SLAVE, NAMESRV, CLIENT, TEST]) as network:
        verdict = network[TEST].call(lambda: scenario(network))
    print(f"RocketMQ 4.9.7: {verdict.text()}")
    assert verdict.breaches["duplicated"]
