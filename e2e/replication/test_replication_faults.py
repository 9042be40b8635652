"""Members of a group and their etcd are killed and suspended under load: nothing is lost, repeated or early."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from delaymq.replication import Record
from delaymq.server.registers import RegisterError
from delaymq_operator_testing.api_server import Programs
from delaymq_testing.repetitions import SEED
from harness.brokers import HOST
from harness.commitlog import records
from harness.ports import free_broker_port, free_port
from harness.processes import ServerProcess
from registers.etcd_processes import EtcdCluster
from replication.group_load import DELAYS_MS, TOPIC, GroupLoad
from replication.members import NAMES, member_command, read_record, wait_until

LIMIT_S = 60.0
ROUNDS = 3
pytestmark = pytest.mark.timeout(400)


class GroupProcesses:
    """Members as processes, and their register."""

    def __init__(self, folder: Path, etcd: EtcdCluster, **settings: str) -> None:
        self.folder = folder
        self.addresses = {name: (HOST, free_broker_port()) for name in NAMES}
        self.processes = {
            name: ServerProcess(
                name,
                member_command(name, folder, self.addresses, etcd.urls, free_port(), settings),
                folder / f"{name}.log",
                environment={},
            )
            for name in NAMES
        }

    def store(self, name: str) -> Path:
        return self.folder / name

    def log(self, name: str) -> list[bytes]:
        """Segments of a member's log that contain something."""
        files = sorted((self.store(name) / "commitlog").glob("0*"))
        return [data for file in files if any(data := file.read_bytes())]

    def stop(self) -> None:
        for process in self.processes.values():
            process.stop(timeout_s=30)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()


def current(etcd: EtcdCluster) -> Record:
    """Return the record of the group; etcd may be starting, and members may be writing the first record."""
    found: list[Record] = []

    def is_found() -> bool:
        with contextlib.suppress(RegisterError):
            record = read_record(etcd.urls)
            found.extend([] if record is None else [record])
        return bool(found)

    wait_until(is_found, "etcd contains no record", LIMIT_S)
    return found[0]


def break_something(group: GroupProcesses, etcd: EtcdCluster, chance: random.Random) -> str:
    """Break something for a while."""
    master = current(etcd).master
    replica = chance.choice([name for name in NAMES if name != master])
    fault = chance.choice(("kill the master", "suspend the master", "kill a replica", "suspend a replica", "kill etcd"))
    if fault == "kill etcd":
        etcd.crash(0)
        return fault
    process = group.processes[master if "master" in fault else replica]
    if fault.startswith("kill"):
        process.kill()
        time.sleep(chance.uniform(0.0, 5.0))
        process.start()
    else:
        process.suspend()
        time.sleep(chance.uniform(0.5, 8.0))
        process.signal(signal.SIGCONT)
    return fault


@pytest.mark.parametrize("acknowledge", ["Appended", "Flushed"])
def test_killed_and_suspended_members_lose_repeat_and_hasten_nothing(
    kubernetes_programs: Programs, tmp_path: Path, acknowledge: str
) -> None:
    chance = random.Random(f"{SEED} {acknowledge}")
    with EtcdCluster(kubernetes_programs.etcd, tmp_path) as etcd:
        group = GroupProcesses(tmp_path, etcd, replicaAcknowledge=acknowledge)
        load = GroupLoad([port for _, port in group.addresses.values()], SEED)
        faults = []
        try:
            for process in group.processes.values():
                process.start()
            wait_until(lambda: len(current(etcd).in_sync) == len(NAMES), "not all members are in sync")
            load.start()
            time.sleep(2)
            for _ in range(ROUNDS):
                faults.append(break_something(group, etcd, chance))
                wait_until(lambda: len(current(etcd).in_sync) == len(NAMES), f"not in sync after {faults}")
                time.sleep(chance.uniform(0, 2))
            load.stop()
            load.join(LIMIT_S)
            time.sleep(DELAYS_MS[1] / 1_000 + 1)
            wait_until(lambda: len({tuple(group.log(name)) for name in NAMES}) == 1, "the logs differ")
            group.stop()
        finally:
            group.kill()
        assert load.error is None
        epochs = current(etcd).epoch
    _judge(group, load, f"{faults}, {epochs} epochs")


def _judge(group: GroupProcesses, load: GroupLoad, about: str) -> None:
    """Compare what was acknowledged with the log of a member, which all have."""
    delivered: Counter[str] = Counter()
    early = []
    for record in records(group.store("a")):
        if record.topic == TOPIC:
            delivered[record.unique_key] += 1
            sent = load.acknowledged.get(record.unique_key) or load.uncertain.get(record.unique_key)
            assert sent is not None, f"{record.unique_key} was never sent"
            if record.stored_ms < sent.asked_ms + sent.delay_ms:
                early.append(record.unique_key)
    lost = [key for key in load.acknowledged if not delivered[key]]
    repeated = [key for key, count in delivered.items() if count > 1]
    text = (
        f"{about}: acknowledged {len(load.acknowledged)}, uncertain {len(load.uncertain)}, refused {load.refused}, "
        f"longest time without an acknowledged send {load.longest_gap_s():.1f} s"
    )
    print(text)
    assert not lost, f"{text}: lost {lost[:5]} and {len(lost)} in all"
    assert not repeated, f"{text}: repeated {repeated[:5]}"
    assert not early, f"{text}: early {early[:5]}"
    assert len(load.acknowledged) > 500, text
