"""A run: producers send delayed messages, the broker is killed and restarted meanwhile, and all messages are counted.

``python -m crash.kill_run --against ours|real --seed N`` executes one run (in an isolated network).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crash.judge import Verdict, judge, read_attempts
from crash.load import LoadError, LoadProgram
from harness.brokers import Cluster, OurCluster, RealCluster

TOPIC = "CrashTopic"
LEVEL_TABLE = "1s 2s 3s 4s 5s 6s 7s 8s"
"""Short, and different enough that at any time some levels deliver while others fill."""
LEVELS = "1,2,3,4,5,6,7,8"
LONGEST_DELAY_S = 8.0
CONFIG = {"messageDelayLevel": LEVEL_TABLE, "mappedFileSizeCommitLog": str(4 << 20), "flushDiskType": "ASYNC_FLUSH"}
"""Small segments, so that several are filled in a run; delayOffset.json is saved at RocketMQ's own interval of 10 s."""
SEND_TIMEOUT_MS = 2000
SEND_LIMIT_S = 150.0
"""The slowest way for a client to recover after a restart is its heartbeat every 30 s."""
SETTLE_LIMIT_S = 90.0
SETTLED_AFTER_S = 2.0
EARLIEST_KILL_S = 1.0
KILLS_AFTER_LAST_SEND_S = 5.0
LONGEST_OUTAGE_S = 1.5

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Parameters of a run; everything random is derived from the seed."""

    seed: int
    messages: int = 20_000
    kills: int = 1
    threads: int = 16
    rate: int = 5_000

    def kill_instants_s(self) -> list[float]:
        """Seconds after the start of sending, ascending."""
        chance = random.Random(self.seed)
        latest_s = self.messages / self.rate + KILLS_AFTER_LAST_SEND_S
        return sorted(chance.uniform(EARLIEST_KILL_S, latest_s) for _ in range(self.kills))

    def outages_s(self) -> list[float]:
        """Return the duration of the outage after each kill."""
        chance = random.Random(~self.seed)
        return [chance.uniform(0, LONGEST_OUTAGE_S) for _ in range(self.kills)]


def new_cluster(against: str) -> Cluster:
    """Return the tested broker (``ours`` or ``real``), not started."""
    return OurCluster(config=CONFIG) if against == "ours" else RealCluster(config=CONFIG)


def run(cluster: Cluster, load: LoadProgram, plan: Plan, say: Say = print) -> Verdict:
    """Start ``cluster``, execute the plan, stop it and judge its store. The caller closes the cluster."""

    def crash(started: float) -> None:
        for instant_s, outage_s in zip(plan.kill_instants_s(), plan.outages_s(), strict=True):
            time.sleep(max(0.0, started + instant_s - time.monotonic()))
            cluster.kill()
            say(f"killed {instant_s:.2f} s after the first send, restart in {outage_s:.2f} s")
            time.sleep(outage_s)
            cluster.start()

    return run_with(cluster, load, plan, crash, say)


def run_with(
    cluster: Cluster, load: LoadProgram, plan: Plan, crash: Callable[[float], None], say: Say = print
) -> Verdict:
    """As ``run``, but ``crash(started)`` performs the kills; when it returns, the broker must be ready."""
    with tempfile.TemporaryDirectory(prefix="delaymq-crash-") as folder:
        attempts_path = Path(folder) / "attempts"
        read_path = Path(folder) / "read"
        cluster.start()
        address = cluster.namesrv_address
        try:
            # The first send creates the topic, so that the kill occurs during sends and not during the route lookup.
            first = load.call("first-send", namesrv=address, topic=TOPIC, timeout_ms=SEND_TIMEOUT_MS)
            if first["last_failure"]:
                say(f"the topic took {len(first['keys'])} sends; the last failure: {first['last_failure']}")
            started = time.monotonic()
            sending = load.start(
                "send", namesrv=address, topic=TOPIC, timeout_ms=SEND_TIMEOUT_MS, threads=plan.threads, size=100,
                rate=plan.rate, count=plan.messages, levels=LEVELS, acks=attempts_path, at_most_seconds=SEND_LIMIT_S,
            )  # fmt: skip
            crash(started)
            sent = sending.result(SEND_LIMIT_S + 20)
            say(f"sent: {sent['acknowledged']} acknowledged, {sent['failed']} failed in {sent['elapsed_s']:.1f} s")
            if sent["acknowledged"] < plan.messages:
                raise LoadError(f"only {sent['acknowledged']} of {plan.messages} were acknowledged: {sent['errors']}")
            _settle(load, address, at_least=plan.messages, all_due_at=time.monotonic() + LONGEST_DELAY_S)
            load.call("drain", namesrv=address, topic=TOPIC, group="crash_reader", out=read_path)
        finally:
            # Stops the producers as well, if an error occurred before they were done.
            load.call("forget", namesrv=address)
        cluster.stop()
        read_keys = Counter(line.split(" ")[0] for line in read_path.read_text().splitlines())
        # The messages that created the topic belong to no attempt. A message whose send failed may still be stored.
        read_keys -= Counter(first["keys"])
        return judge(
            store_path=cluster.store_path, level_table=LEVEL_TABLE, topic=TOPIC,
            attempts=read_attempts(attempts_path), read_keys=read_keys,
        )  # fmt: skip


def _settle(load: LoadProgram, address: str, *, at_least: int, all_due_at: float) -> None:
    """Wait until everything is due and the topic has stopped growing, or until the limit, for the verdict to decide."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    held, unchanged_since = -1, time.monotonic()
    while time.monotonic() < deadline:
        try:
            now_held = int(load.call("held", namesrv=address, topic=TOPIC)["messages"])
        except LoadError:
            now_held = -1  # the client is still connected to the broker that was killed
        if now_held != held:
            held, unchanged_since = now_held, time.monotonic()
        quiet_s = time.monotonic() - unchanged_since
        if time.monotonic() > all_due_at and held > at_least and quiet_s > SETTLED_AFTER_S:
            return
        time.sleep(0.2)


def main(arguments: list[str]) -> int:
    """Exit with 0 without violations, and with 1 after printing them."""
    parser = argparse.ArgumentParser(prog="python -m crash.kill_run", description=__doc__)
    parser.add_argument("--against", choices=("ours", "real"), default="ours")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=1)
    options = parser.parse_args(arguments)
    plan = Plan(seed=options.seed, messages=options.messages, kills=options.kills)
    with tempfile.TemporaryDirectory(prefix="delaymq-load-") as folder, LoadProgram(Path(folder)) as load:
        cluster = new_cluster(options.against)
        try:
            verdict = run(cluster, load, plan)
        finally:
            cluster.close()
    print(f"seed {plan.seed}, {options.against}: {verdict.text()}")
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
