"""A store of the last program without timed messages is opened by this one, and by that one until the first of them.

The earlier program comes from the history of the repository.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash import crashes, kill_points
from delaymq.message.properties import format_properties
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.transport import connect
from harness.brokers import OurCluster
from harness.commitlog import BadLogError, delayed_messages
from harness.suite import enter_isolated

EARLIER_COMMIT = "337691b1"
REPOSITORY_PATH = Path(__file__).resolve().parents[2]
LEVEL_TABLE = "1s 6s 8s 10s"
CONFIG = {
    "messageDelayLevel": LEVEL_TABLE,
    "mappedFileSizeCommitLog": str(64 << 10),
    "snapshotIntervalBytes": str(96 << 10),
}
MESSAGES = 1_200
TOPIC = "Upgraded"
LIMIT_S = 60.0
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="session")
def earlier_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the sources of the earlier program."""
    git = ["git", "-C", str(REPOSITORY_PATH)]
    known = subprocess.run([*git, "cat-file", "-e", f"{EARLIER_COMMIT}^{{commit}}"], capture_output=True, check=False)
    if known.returncode:
        pytest.skip(f"the history does not contain {EARLIER_COMMIT}, the earlier program: use a clone that is complete")
    path = tmp_path_factory.mktemp("earlier")
    archive = subprocess.run([*git, "archive", EARLIER_COMMIT, "broker_image/src"], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(path)], input=archive.stdout, check=True)
    return path / "broker_image" / "src"


@pytest.fixture
def earlier(earlier_path: Path, tmp_path: Path) -> Iterator[OurCluster]:
    enter_isolated()
    environment = {"PYTHONPATH": str(earlier_path)}
    cluster = OurCluster(config=CONFIG, store_path=tmp_path / "store", environment=environment)
    yield cluster
    cluster.close()


@pytest.fixture
def current(tmp_path: Path) -> Iterator[OurCluster]:
    launcher = (sys.executable, str(Path(kill_points.__file__).resolve()), "none")
    cluster = OurCluster(config=CONFIG, store_path=tmp_path / "store", launcher=launcher)
    yield cluster
    cluster.close()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dies_in_first_start", [False, True])
@pytest.mark.parametrize("is_clean", [True, False])
def test_upgraded_broker_starts_from_the_snapshot_and_delivers_each_message_once(
    earlier: OurCluster, current: OurCluster, is_clean: bool, dies_in_first_start: bool
) -> None:
    earlier.start()
    asyncio.run(_send(earlier.listen_port, MESSAGES, {}))
    crashes.wait_until(lambda: _delivered(earlier) > 0, "the earlier program delivered nothing", LIMIT_S)
    snapshot = earlier.store_path / "delaymq" / "snapshot.json"
    crashes.wait_until(snapshot.exists, "the earlier program wrote no snapshot", LIMIT_S)
    earlier.end(clean=is_clean)
    before = _delivered(earlier)
    assert before < MESSAGES * 3 // 4 + 1, "most of the messages are to be pending"
    if dies_in_first_start:
        _die_while_opening(current)
    current.start()
    log = current.broker.log_since(0)
    assert "without a snapshot" not in log
    if is_clean and not dies_in_first_start:
        assert "after a clean stop, with a snapshot: 0 records (0 bytes) replayed, 0 corrections" in log
    else:
        replayed = int(log.rpartition("with a snapshot: ")[2].partition(" records")[0])
        assert replayed < MESSAGES
    crashes.wait_until(lambda: _delivered(current) >= MESSAGES, "not every message was delivered", LIMIT_S)
    time.sleep(1.0)  # duplicates would follow
    current.stop()
    messages = [each for found in delayed_messages(current.store_path, LEVEL_TABLE).values() for each in found]
    assert len(messages) == MESSAGES
    assert {len(each.copies) for each in messages} == {1}
    assert all(copy.stored_ms >= each.due_ms for each in messages for copy in each.copies)


def test_earlier_program_opens_the_store_until_the_first_timed_message(
    earlier: OurCluster, current: OurCluster
) -> None:
    for cluster in (earlier, current, earlier, current):
        cluster.start()
        asyncio.run(_send(cluster.listen_port, 10, {}))
        cluster.stop()
    current.start()
    asyncio.run(_send(current.listen_port, 1, {"TIMER_DELAY_MS": "3600000"}))
    current.stop()
    seen_bytes = earlier.broker.log_size_bytes()
    earlier.broker.start()
    crashes.wait_until(lambda: not earlier.broker.is_running, "the earlier program runs on the store", LIMIT_S)
    reason = "has format version 2, which programs of version 2 and later read; this program knows 1: use the version"
    log = earlier.broker.log_since(seen_bytes)
    assert reason in log
    assert "Traceback" not in log


def _die_while_opening(cluster: OurCluster) -> None:
    cluster.broker.command[2] = "recovered:1"
    with pytest.raises(Exception, match="before it was ready"):
        cluster.start()
    assert f"{kill_points.MESSAGE}recovered:1" in cluster.broker.log_since(0)
    cluster.broker.kill()
    cluster.broker.command[2] = "none"


async def _send(port: int, count: int, schedule: dict[str, str]) -> None:
    """Send messages with a schedule, or with the delay levels in turn."""
    connection = await connect("127.0.0.1", port)
    for number in range(count):
        delays = schedule or {"DELAY": str(number % len(LEVEL_TABLE.split()) + 1)}
        properties = {"UNIQ_KEY": f"{time.time_ns():x}-{number}", **delays}
        fields = {"a": "P", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0", "h": "0"}
        fields |= {"g": str(int(time.time() * 1000)), "i": format_properties(properties)}
        command = request_command(RequestCode.SEND_MESSAGE_V2, fields, b"x" * 100)
        answer = await connection.request(command, 10_000)
        assert answer.code == 0, answer.remark
    connection.close()


def _delivered(cluster: OurCluster) -> int:
    """Return the number of delivered messages; 0 if the log was read while the broker continued it in a new segment."""
    try:
        messages = delayed_messages(cluster.store_path, LEVEL_TABLE).values()
    except BadLogError:
        return 0
    return sum(len(each.copies) for found in messages for each in found)
