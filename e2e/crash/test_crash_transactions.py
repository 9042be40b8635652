"""Kills during transactions: nothing acknowledged is lost, committed messages exist once, rolled back ones never."""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash import crashes
from crash.transaction_judge import TransactionVerdict, judge_transactions
from crash.transaction_load import QUEUES, TOPIC, TRANSACTIONS_PER_SECOND, TransactionLoad
from delaymq.message.record import decode_record
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.transport import connect
from delaymq_testing.repetitions import SEED
from harness.brokers import Cluster, OurCluster
from harness.commitlog import records
from harness.suite import enter_isolated

TRANSACTIONS = 3_200
EARLIEST_KILL_S, LATEST_KILL_S = 1.0, TRANSACTIONS / TRANSACTIONS_PER_SECOND + 2.0
LIMIT_S = 120.0
CONFIG = {
    "messageDelayLevel": "1s 2s",
    "mappedFileSizeCommitLog": str(1 << 20),
    "flushConsumerOffsetInterval": "500",
    "flushDelayOffsetInterval": "1000",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "500",
    "transactionCheckMax": "1000",
}
SEEDS_LONG = range(SEED + 1, SEED + 12)
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    enter_isolated()
    cluster = OurCluster(config=CONFIG)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("seed", [SEED, *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS_LONG)])
def test_kill_among_transactions_keeps_the_outcome_of_each(cluster: Cluster, seed: int, tmp_path: Path) -> None:
    crash = crashes.at_an_instant(cluster, seed, EARLIEST_KILL_S, LATEST_KILL_S)
    _assert_clean(_run(cluster, crash), cluster, tmp_path)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "point",
    [
        "commit-copied:700",  # the copy is in the log, the op mark is not
        "op-marked:900",
        "half-appended:1500",
        "checked:300",
        "copy-appended:200",
        "config-rename:12",
        "segment-roll:2",
    ],
)
def test_kill_at_a_named_point_keeps_the_outcome_of_each(cluster: Cluster, point: str, tmp_path: Path) -> None:
    crash = crashes.at_a_point(cluster, point, LIMIT_S)
    _assert_clean(_run(cluster, crash), cluster, tmp_path)


def test_judge_detects_lost_duplicated_and_wrongly_visible_messages(cluster: Cluster) -> None:
    cluster.start()
    load = TransactionLoad(cluster.listen_port, 40)
    read = _settle(cluster, load)
    assert judge_transactions(cluster.store_path, load.told, read).is_clean
    load.told.acknowledged.add("K999999")
    first = next(iter(read))
    verdict = judge_transactions(cluster.store_path, load.told, Counter({**read, first: 2}))
    assert (verdict.lost, verdict.read_otherwise) == (("K999999",), (first,))


def _run(cluster: Cluster, crash: crashes.Crash) -> TransactionVerdict:
    cluster.start()
    load = TransactionLoad(cluster.listen_port, TRANSACTIONS)
    read = _settle(cluster, load, crash)
    assert len(load.told.acknowledged) > TRANSACTIONS // 2
    assert load.told.asked > TRANSACTIONS // 10
    verdict = judge_transactions(cluster.store_path, load.told, read)
    print(f"{verdict.text()}; {load.told.asked} questions, {len(load.told.failed)} sends without an answer")
    return verdict


def _settle(cluster: Cluster, load: TransactionLoad, crash: crashes.Crash = lambda: None) -> Counter[str]:
    """Run the load with a crash until every transaction has ended; stop the broker, return what a new group read."""
    load.start()
    crash()
    assert load.filled.wait(LIMIT_S), "not every half message was sent in time"
    crashes.wait_until(
        lambda: load.error is not None or _is_settled(cluster.store_path), "not every transaction ended", LIMIT_S
    )
    load.stop()
    load.join(LIMIT_S)
    if load.error is not None:
        raise load.error
    read = asyncio.run(_read_all(cluster.listen_port))
    cluster.stop()
    return read


def _is_settled(store_path: Path) -> bool:
    halves, marked, waiting, delivered = set(), set(), 0, 0
    for record in records(store_path, with_bodies=True):
        if record.topic == "RMQ_SYS_TRANS_HALF_TOPIC":
            halves.add(record.queue_offset)
        elif record.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC":
            marked.add(int(record.body))
        waiting += record.is_scheduled or record.is_timed
        delivered += record.topic == TOPIC and (record.is_copy or "TIMER_OUT_MS" in record.properties)
    time.sleep(0.2)
    return halves <= marked and waiting <= delivered


async def _read_all(port: int) -> Counter[str]:
    """Return what a new group reads."""
    connection = await connect("127.0.0.1", port)
    read: Counter[str] = Counter()
    for queue_id in range(QUEUES):
        offset = 0
        while True:
            fields = {
                "consumerGroup": "fresh", "topic": TOPIC, "queueId": str(queue_id), "queueOffset": str(offset),
                "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                "subscription": "*", "subVersion": "0", "expressionType": "TAG",
            }  # fmt: skip
            answer = await connection.request(request_command(RequestCode.PULL_MESSAGE, fields), 10_000)
            if answer.code != 0:
                break
            position = 0
            while position < len(answer.body):
                record = decode_record(answer.body, position)
                read[record.properties["UNIQ_KEY"]] += 1
                position += record.size
            offset = int(answer.fields["nextBeginOffset"])
    connection.close()
    return read


def _assert_clean(verdict: TransactionVerdict, cluster: Cluster, evidence_path: Path) -> None:
    if not verdict.is_clean:
        shutil.copytree(cluster.store_path, evidence_path / "store")
        shutil.copy(cluster.broker.log_path, evidence_path)
    assert verdict.is_clean, f"{verdict.text()}\nstore and log: {evidence_path}"
