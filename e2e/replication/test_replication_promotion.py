"""Promotions at random instants among many pending messages: the new master has exactly those of the former one."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from delaymq_operator_testing.api_server import Programs
from delaymq_testing.repetitions import SEED
from harness.commitlog import BadLogError
from replication.faulty_group import CLIENT, ETCD, TEST, FaultyGroup
from replication.history import History
from replication.history_judge import judge
from replication.members import LEVEL_TABLE, NAMES, wait_until
from replication.namespaces import Network
from replication.pending_load import epoch_start, fill, pending_in_log, pending_pages

SOON_MS = 4_000
"""Messages that are due earlier may be delivered while the list is read."""
PAGES = 20
DISK_BYTES = 1 << 30
CONFIG = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 100_000),
    "snapshotIntervalBytes": str(8 << 20),
    "maxHashSlotNum": "100000",
    "maxIndexNum": "1000000",
}
pytestmark = pytest.mark.usefixtures("namespaces")


@dataclass
class Promotions:
    """Promotions of one run, and what they found."""

    group: FaultyGroup
    chance: random.Random
    took_s: list[float] = field(default_factory=list)
    compared: list[int] = field(default_factory=list)
    """Numbers of messages that were pending and not due soon."""

    def promote(self) -> None:
        """Let another member become master, by a kill or by an order, and compare what is pending."""
        group, before = self.group, self.group.record()
        is_kill = not self.took_s or self.chance.random() < 0.5
        began_s = time.monotonic()
        if is_kill:
            group.kill(before.master)
        else:
            target = self.chance.choice([name for name in NAMES if name != before.master])
            order = {"target": target, "epoch": before.epoch}
            group.post(before.master, "/api/v1/replication/switchover", order)
        wait_until(lambda: group.record().epoch > before.epoch, "no member takes over")
        after = group.record()
        wait_until(lambda: group.is_master(after.master), "the new master does not act")
        self.took_s.append(time.monotonic() - began_s)
        begin = epoch_start(group.store(after.master), after.epoch)
        wait_until(
            lambda: group.get(after.master, "/api/v1/replication")["confirmed"] >= begin,
            "the new master confirms nothing",
        )
        self._compare(after.master, pending_in_log(group.store(before.master), begin))
        if is_kill:
            group.processes[before.master].start()
        group.wait_until_in_sync("after a promotion")

    def _compare(self, master: str, former: dict[str, int]) -> None:
        """Compare the number of all messages that are not due soon, and the identities of some pages of them."""
        get = partial(self.group.get, master)
        from_ms = int(time.time() * 1_000) + SOON_MS
        path = f"/api/v1/delay/pending/messages?fromMs={from_ms}&limit=1"
        expected = sorted((due_ms, key) for key, due_ms in former.items() if due_ms >= from_ms)
        assert get(path)["total"] == len(expected)
        self.compared.append(len(expected))
        if not expected:
            return
        some_ms = self.chance.choice(expected)[0]
        listed = [row for page in pending_pages(get, some_ms, PAGES) for row in page]
        expected = [each for each in expected if each[0] >= some_ms][: len(listed)]
        # The order of messages with the same due time is that of their identities.
        last_ms = listed[-1][1]
        assert {(key, due_ms) for key, due_ms in listed if due_ms < last_ms} == {
            (key, due_ms) for due_ms, key in expected if due_ms < last_ms
        }


@pytest.mark.parametrize(
    ("count", "promotions", "seconds"),
    [
        pytest.param(5_000, 2, (3, 8), marks=pytest.mark.timeout(300)),
        pytest.param(100_000, 20, (45, 300), marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
)
def test_promotions_keep_exactly_what_is_pending(
    kubernetes_programs: Programs, tmp_path: Path, count: int, promotions: int, seconds: tuple[int, int]
) -> None:
    def scenario(network: Network) -> str:
        chance = random.Random(SEED)
        program = kubernetes_programs.etcd
        with FaultyGroup(network, program, tmp_path, f"{SEED}", settings=CONFIG, disk_bytes=DISK_BYTES) as group:
            history, start_s = History(), time.time()
            first_ms, last_ms = (int((start_s + each) * 1_000) for each in seconds)
            address = group.addresses[group.record().master]
            history.sends = network[CLIENT].call(lambda: fill(address, count, first_ms, last_ms, f"{SEED}"))
            filled_s = time.time() - start_s
            done = Promotions(group, chance)
            periods = []
            for number in range(promotions):
                left_s = (start_s + seconds[1] - time.time()) / (promotions - number)
                time.sleep(max(0.0, chance.uniform(0, 2 * left_s) - 8))
                began_ms = time.time() * 1_000
                done.promote()
                periods.append((int(began_ms), int(time.time() * 1_000)))
            time.sleep(max(0.0, start_s + seconds[1] - time.time()))
            wait_until(lambda: _is_pending_later(group, last_ms + 1), "messages remain pending")
            group.settle()
            assert not group.differing_segments()
            verdict = judge(history, group.store(NAMES[0]), LEVEL_TABLE, until_ms=last_ms + 1)
            late_ms = max(verdict.late_ms(*period) for period in periods)
            text = (
                f"{len(periods)} promotions ({len(group.leads)} kills) in {min(done.took_s):.1f} to"
                f" {max(done.took_s):.1f} s, filled in {filled_s:.0f} s, not due soon: {done.compared},"
                f" late up to {late_ms} ms; {verdict.text()}"
            )
            print(text)
            assert not verdict.breaches, text
            assert done.compared[0] > count // 4, text
            return text

    with Network(tmp_path, [*NAMES, ETCD, CLIENT, TEST]) as network:
        network[TEST].call(lambda: scenario(network))


def _is_pending_later(group: FaultyGroup, from_ms: int) -> bool:
    """Return whether all messages that are due before a time have been delivered."""
    try:
        return all(due_ms >= from_ms for due_ms in pending_in_log(group.store(NAMES[0]), 1 << 62).values())
    except BadLogError:  # a record is being written
        return False
