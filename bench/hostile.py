"""Effect of a hostile client on an honest one: `python bench/hostile.py [--seconds 60] [--only NAME …]`.

A broker with access control has one processor to itself. The hostile client, with an ordinary account, and the honest
client (hostile_load/honest.py) share the other processor. The honest client, which works at a fixed rate, has the
higher priority. After each attack, the broker is restarted on the same store. Prints a table and writes it to
bench/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import isolation
from hostile_load.attacks import ATTACKS, HOST, World
from hostile_load.running import run
from proc import memory_mib

RULES = """accounts:
- {accessKey: administrator-key, secretKey: administrator-secret, admin: true}
- {accessKey: honest-key, secretKey: honest-secret, topicPerms: [Honest=PUB|SUB], groupPerms: [honest=SUB]}
- {accessKey: hostile-key, secretKey: hostile-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,
   topicPerms: [Honest=DENY], groupPerms: [honest=DENY]}
"""
QUOTAS = (
    "quotas: {requestsPerSecond: 2000, sendBytesPerSecond: 10000000, pullBytesPerSecond: 10000000, connections: 20,"
    " heldPulls: 1000, createdTopics: 100, createdGroups: 100, eventLoopPercent: 20}"
)
"""Quotas of the hostile client with `--quotas`."""
RESULTS = Path(__file__).parent / "results"
START_LIMIT_S = 120
SETTLE_S = 2.0
NICE = 19


@dataclass(frozen=True)
class Ports:
    """Ports of a broker."""

    broker: int
    namesrv: int
    http: int


class Broker:
    """A DelayMQ broker process pinned to one processor, with the peak of each of its resources."""

    def __init__(self, folder: Path, host: str, processor: int, *, has_quotas: bool = False) -> None:
        self.folder = folder
        self._host = host
        self.rules = folder / "plain_acl.yml"
        if not self.rules.exists():
            limited = RULES.replace("groupPerms: [honest=DENY]}", f"groupPerms: [honest=DENY],\n   {QUOTAS}}}")
            self.rules.write_text(limited if has_quotas else RULES)
        free = [socket.create_server((host, 0)) for _ in range(3)]
        self.ports = Ports(*(each.getsockname()[1] for each in free))
        for each in free:
            each.close()
        config = folder / "broker.conf"
        config.write_text(
            f"aclEnable=true\naclConfigPath={self.rules}\naclAdminNeedsTls=true\nautoCreateTopicEnable=true\n"
            "brokerName=broker-a\n"
        )
        options = [
            "--listen-port",
            self.ports.broker,
            "--namesrv-port",
            self.ports.namesrv,
            "--http-port",
            self.ports.http,
        ]
        arguments = [
            sys.executable,
            "-m",
            "delaymq",
            "standalone",
            "--host",
            host,
            "-c",
            config,
            "--store-path",
            folder / "store",
            *options,
        ]
        with (folder / "log").open("ab") as log:
            command = ["taskset", "-c", str(processor), *map(str, arguments)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.peak = {"VmRSS": 0.0, "RssAnon": 0.0, "descriptors": 0.0}
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def wait_until_ready(self) -> float:
        """Wait until it is ready; return the seconds that it took."""
        began = time.monotonic()
        while time.monotonic() - began < START_LIMIT_S:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://{self._host}:{self.ports.http}/readyz", timeout=1).close()
                self._watcher.start()
                return time.monotonic() - began
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"the broker did not become ready: {(self.folder / 'log').read_text()[-2_000:]}")

    def _watch(self) -> None:
        pid = self._process.pid
        while not self._watching.wait(0.05):
            with contextlib.suppress(OSError, KeyError):
                for name in ("VmRSS", "RssAnon"):
                    self.peak[name] = max(self.peak[name], memory_mib(pid, name))
                self.peak["descriptors"] = max(self.peak["descriptors"], len(os.listdir(f"/proc/{pid}/fd")))

    def stop(self) -> bool:
        """Whether the broker exited on SIGTERM, within the time limit."""
        self._watching.set()
        if self._watcher.is_alive():
            self._watcher.join()
        alive = self._process.poll() is None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return alive


@contextlib.contextmanager
def broker(folder: Path, options: argparse.Namespace) -> Iterator[Broker]:
    """Start a broker, and stop it at the end."""
    one = Broker(folder, options.host, options.broker_processor, has_quotas=options.quotas)
    try:
        one.wait_until_ready()
        yield one
    finally:
        one.stop()


class Honest:
    """The honest client, connected."""

    def __init__(self, ports: Ports, seconds: float, options: argparse.Namespace) -> None:
        program = Path(__file__).parent / "hostile_load" / "honest.py"
        command = ["taskset", "-c", str(options.client_processor), sys.executable, str(program)]
        arguments = [*command, *map(str, (options.host, ports.broker, ports.namesrv, seconds, options.rate))]
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def work(self) -> dict[str, Any]:
        """Let the client work, and return its report."""
        output, _ = self._process.communicate("go\n")
        report: dict[str, Any] = json.loads(output) if output else {"errors": {"the honest client ended": 1}}
        return report


def attack(name: str, world: World, processor: int, seconds: float, connections: int, told: Any) -> None:
    """Start the attack in a separate process with the lowest priority on its processor."""
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # also below `chrt`
    os.nice(NICE)
    told.put(run(world, ATTACKS[name], seconds, connections))


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one attack concurrently with the honest client, followed by a restart; return the measurements."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        with broker(folder, options) as one:
            # Creates the topic and the group of the honest client.
            Honest(one.ports, 2, options).work()
            client = Honest(one.ports, options.seconds, options)
            told = multiprocessing.get_context("fork").Queue()
            world = World(options.host, one.ports.broker, one.ports.namesrv, one.rules)
            arguments = name, world, options.client_processor, options.seconds + SETTLE_S, options.connections, told
            attacker = multiprocessing.get_context("fork").Process(target=attack, args=arguments, daemon=True)
            attacker.start()
            time.sleep(SETTLE_S / 2)
            found: dict[str, Any] = {"attack": name, "peak": one.peak, "honest": client.work()}
            try:
                found["frames"] = told.get(timeout=60)
            except queue.Empty:
                found["frames"] = ("?", "?", "?")
            attacker.kill()
        sizes = [each.stat().st_size for each in (folder / "store" / "config").glob("consumerOffset.json*")]
        found["offset file, MiB"] = max(sizes, default=0) / 2**20
        with broker(folder, options) as again:
            after = Honest(again.ports, 2, options).work()
            kept = after.get("stored", 0) >= found["honest"].get("stored", 0)
            found["after a start"] = {"errors": after["errors"], "kept": kept}
        return found


def row(found: dict[str, Any]) -> str:
    """Return a row of the table."""
    client, peak = found["honest"], found["peak"]
    errors = sum(client["errors"].values())
    frames, accepted, cut_off = found["frames"]
    times = [
        f"{client[kind][share]:.1f}" for kind in ("send", "pull") for share in ("50", "99", "100") if kind in client
    ]
    start = found["after a start"]
    is_well = "yes" if start["kept"] and not start["errors"] else f"NO {start['errors']}"
    cells = [found["attack"], frames, accepted, cut_off, errors, *times]
    cells += [f"{peak['VmRSS']:.0f}", f"{peak['RssAnon']:.0f}", f"{peak['descriptors']:.0f}", is_well]
    return "| " + " | ".join(map(str, cells)) + " |"


COLUMNS = [
    "attack",
    "frames",
    "accepted",
    "disconnected",
    "honest errors",
    "send p50, ms",
    "p99",
    "max",
    "pull p50, ms",
    "p99",
]
COLUMNS += ["max", "VmRSS, MiB", "RssAnon, MiB", "descriptors", "works after a restart"]
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=1_000, help="sends, and pulls, per second of the honest client")
    parser.add_argument(
        "--host", default=HOST, help="address of all programs, added to the loopback interface of the namespace"
    )
    parser.add_argument("--connections", type=int, default=20, help="connections of the hostile client")
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--quotas", action="store_true", help="limit the account of the hostile client")
    parser.add_argument("--broker-processor", type=int, default=0)
    parser.add_argument("--client-processor", type=int, default=1)
    options = parser.parse_args()
    if not options.host.startswith("127."):
        isolation.add_address(options.host)
    print(HEAD, flush=True)
    rows, all_found = [HEAD], []
    for name in options.only:
        found = measure(name, options)
        all_found.append(found)
        rows.append(row(found))
        print(rows[-1], flush=True)
        for text, count in found["honest"]["errors"].items():
            print(f"  {count} × {text}", flush=True)
    RESULTS.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    (RESULTS / f"hostile-{stamp}.md").write_text("\n".join(rows) + "\n")
    (RESULTS / f"hostile-{stamp}.json").write_text(json.dumps(all_found, indent=1))


if __name__ == "__main__":
    main()
