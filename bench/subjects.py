"""The measured brokers, with the same settings."""

from __future__ import annotations

import string
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import proc
from crash.load import LoadError, LoadProgram
from delaymq import kernels
from harness.brokers import SMALL_HEAP, Cluster, OurCluster, RealCluster, RealCluster5, RealNameServer
from harness.commitlog import requested_times
from harness.errors import HarnessError
from harness.pairs import OurPair, Pair, RealPair, RealPair5
from nats.server import SYNC_INTERVAL_MS, NatsCluster
from tls import ServerKeys

Kind = Literal["ours", "real", "nats"]
RealVersion = Literal["4.9", "5.3"]
Times = Sequence[tuple[float, float]]
"""Requested due time and store time of delivered messages, in ms since 1970."""

SETTINGS: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": str(300_000 * 20),
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "flushDiskType": "ASYNC_FLUSH",
    "flushIntervalCommitLog": str(SYNC_INTERVAL_MS),
    "brokerFastFailureEnable": "true",
}
"""RocketMQ's own defaults, not the harness's small files; both brokers get the same."""
REAL_JVM_OPTIONS = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=4g")
"""RocketMQ's start script requests a pre-touched heap of 8 GiB; a quarter of it suffices here, and is not pre-touched.
"""
TIMER_SETTINGS: Mapping[str, str] = {"timerMaxDelaySec": str(3 * 86_400), "mappedFileSizeTimerLog": str(100 << 20)}
"""RocketMQ 5's own defaults, not the harness's."""
SEND_TIMEOUT_MS = 3000
FIRST_SEND_TIMEOUT_MS = 1000
POLL_S = 0.1
ASK_TIMEOUT_S = 60.0


WITHOUT_KERNELS = ("env", f"{kernels.VARIABLE}=off")
"""Start of a command that runs without compiled kernels."""
_ASK = """
import delaymq.server.main
from delaymq import interpreter
interpreter.main([])
try:
    from delaymq.kernels import ABOUT
except ImportError:
    ABOUT = "none"  # a commit without them
print(ABOUT)
print(*delaymq.__path__)
"""


def interpreter_of(command: Sequence[str]) -> tuple[str, str]:
    """Return name and build of the interpreter that a command runs, with its kernels, and the path of its `delaymq`.

    HarnessError if it cannot run DelayMQ.
    """
    python = command[-1]
    try:
        run = subprocess.run(
            [*command, "-c", _ASK],
            capture_output=True, text=True, check=False, timeout=ASK_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as e:
        raise HarnessError(f"{python} cannot run delaymq: {e}") from e
    if run.returncode != 0:
        reason = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        raise HarnessError(f"{python} cannot run delaymq: {reason}")
    *builds, about, source = run.stdout.strip().splitlines()
    return f"{' '.join(builds)}, kernels: {about}", source


@dataclass(frozen=True)
class Contender:
    """A column of the table: RocketMQ's broker, NATS, or DelayMQ on one interpreter."""

    label: str
    kind: Kind
    python: str = ""
    """DelayMQ only: path of the interpreter."""
    interpreter: str = ""
    """DelayMQ only: the interpreter's name and build."""
    source: str = ""
    """DelayMQ only: path of the interpreter's package `delaymq`."""
    version: str = ""
    """Other brokers only: name and version."""
    is_real_5: bool = False
    """RocketMQ only: whether all rows have version 5.3, instead of those of timed messages only."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Scenarios that the broker does not have, with the reason."""
    is_plain: bool = False
    """DelayMQ only: whether it runs without compiled kernels, even if they are installed."""

    @property
    def command(self) -> tuple[str, ...]:
        """Command that runs the interpreter."""
        return (*WITHOUT_KERNELS, self.python) if self.is_plain else (self.python,)


MISSING_IN_4: Mapping[str, str] = {"quotas": "RocketMQ has no quotas for accounts"}
MISSING_IN_5: Mapping[str, str] = {
    **MISSING_IN_4,
    "access": "RocketMQ 5.3 has another access control, with other rules",
    "client": "the row compares clients of 4.9 on DelayMQ's broker, without a broker of RocketMQ",
}
_REAL: Mapping[RealVersion, Contender] = {
    "4.9": Contender(
        "real",
        "real",
        version="RocketMQ 4.9.7; in rows of timed messages, RocketMQ 5.3.3",
        missing=MISSING_IN_4,
    ),
    "5.3": Contender("real 5.3.3", "real", version="RocketMQ 5.3.3", is_real_5=True, missing=MISSING_IN_5),
}


def real_contender(version: RealVersion, python: str) -> Contender:
    """Return RocketMQ's broker; `python` runs DelayMQ's broker in the rows that compare clients."""
    return replace(_REAL[version], python=python)


def ours(pythons: Sequence[str], *, also_plain: bool = False) -> list[Contender]:
    """Return DelayMQ on each interpreter, and, if requested, on each without compiled kernels.

    HarnessError as `interpreter_of`.
    """
    kinds = [(path, is_plain) for path in pythons for is_plain in ((False, True) if also_plain else (False,))]
    labels = ["ours"] if len(kinds) == 1 else [f"ours {letter}" for letter in string.ascii_uppercase]
    found = [
        Contender(label, "ours", path, is_plain=is_plain)
        for label, (path, is_plain) in zip(labels, kinds, strict=False)
    ]
    described = [(each, *interpreter_of(each.command)) for each in found]
    return [replace(each, interpreter=build, source=source) for each, build, source in described]


def contenders(
    pythons: Sequence[str], against: str, real: RealVersion = "4.9", *, also_plain: bool = False
) -> list[Contender]:
    """Return DelayMQ as `ours` does, then RocketMQ's broker; or one kind only. HarnessError as `interpreter_of`."""
    taking_part = (*ours(pythons, also_plain=also_plain), real_contender(real, pythons[0]))
    return [each for each in taking_part if against in ("both", each.kind)]


class Subject:
    """A broker with a new store, and its load program; a context manager.

    With `is_pair`, it has a replica. With `timers`, the real broker is always that of RocketMQ 5.3, because 4.9 has no
    timed messages. `rules` is the text of a plain_acl.yml, which enables access control; not with RocketMQ 5.3.
    """

    def __init__(
        self,
        contender: Contender,
        load: LoadProgram,
        *,
        tls: ServerKeys | None = None,
        timers: bool = False,
        is_pair: bool = False,
        rules: str | None = None,
        **settings: str,
    ) -> None:
        self.kind = contender.kind
        self.load = load
        config = {**SETTINGS, **settings}
        self.cluster: Cluster
        if self.kind == "nats":
            self.cluster = NatsCluster()
        elif self.kind == "ours":
            self.cluster = _ours(config, contender.command, tls=tls, is_pair=is_pair, rules=rules)
        elif timers or contender.is_real_5:
            self.cluster = _real_5({**TIMER_SETTINGS, **config}, tls=tls, is_pair=is_pair)
        else:
            self.cluster = _real(config, tls=tls, is_pair=is_pair, rules=rules)

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.load.call("forget", namesrv=self.cluster.namesrv_address)
        finally:
            self.cluster.close()

    @property
    def pair(self) -> Pair:
        """The cluster, which has a replica."""
        assert isinstance(self.cluster, Pair)
        return self.cluster

    @property
    def pid(self) -> int:
        return self.cluster.broker.pid

    def start(self) -> None:
        """Start the broker, and wait until clients find it."""
        self.cluster.start()
        if isinstance(self.cluster, RealCluster5):
            # It registers with the NameServer only after its start.
            self.call("first-send", topic="First")

    def start_to_first_send_s(self, topic: str, *, limit_s: float = 120.0) -> float:
        """Start the broker while a producer tries to send; return the seconds from its start to the acknowledgement."""
        first = self.load.start(
            "first-send", namesrv=self.cluster.namesrv_address, topic=topic,
            timeout_ms=FIRST_SEND_TIMEOUT_MS, at_most_seconds=limit_s,
        )  # fmt: skip
        self.cluster.start()
        acknowledged_ms = float(first.result(limit_s + 10)["acknowledged_ms"])
        return (acknowledged_ms - proc.started_ms(self.pid)) / 1000

    def call(self, command: str, *, timeout_s: float = 300.0, **options: object) -> dict[str, Any]:
        """Run a command of the load program against this broker."""
        return self.load.call(command, timeout_s=timeout_s, namesrv=self.cluster.namesrv_address, **options)

    def send(self, topic: str, **options: Any) -> dict[str, Any]:
        """Send; HarnessError as `check_sent`."""
        result = self.call("send", topic=topic, **{"timeout_ms": SEND_TIMEOUT_MS, **options})
        self.check_sent(result)
        return result

    def check_sent(self, result: Mapping[str, Any]) -> None:
        """Raise HarnessError if more than 1 % of the sends failed, since the figures would be meaningless."""
        if result["failed"] * 100 > result["acknowledged"]:
            raise HarnessError(
                f"{self.kind}: {result['failed']} sends failed, {result['acknowledged']} succeeded: {result['errors']}"
            )

    def wait_until_held(self, topic: str, count: int, *, limit_s: float) -> int:
        """Wait until the topic's queues hold ``count`` messages; return the number of polls that found fewer."""
        deadline = time.monotonic() + limit_s
        last: object = "no response"
        fewer = 0
        while time.monotonic() < deadline:
            try:
                held = int(self.call("held", topic=topic)["messages"])
                if held >= count:
                    return fewer
                last = held
                fewer += 1
            except LoadError as e:
                last = e  # no route yet, or a connection from before the restart
            time.sleep(POLL_S)
        raise HarnessError(f"{self.kind}: {topic} did not hold {count} messages within {limit_s:g} s; last: {last}")

    def delivered_times(self, *topics: str) -> Mapping[str, Times]:
        """Return the times of all delivered timed messages of these topics, and stop the broker."""
        if self.kind != "nats":
            self.cluster.stop()
            found = requested_times(self.cluster.store_path)
            return {topic: found.get(topic, []) for topic in topics}
        paths = {topic: self.cluster.base_path / f"{topic}.times" for topic in topics}
        for topic, path in paths.items():
            self.call("delivered", topic=topic, out=path)
        self.cluster.stop()
        return {topic: recorded_times(path) for topic, path in paths.items()}


def recorded_times(path: Path) -> list[tuple[float, float]]:
    """Read the file that the load program for NATS wrote: a due time and a store time in each line. HarnessError."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            due_ms, stored_ms = map(float, line.split())
        except ValueError as e:
            raise HarnessError(f"line {number} of {path} is not a due time and a store time: {line!r}") from e
        found.append((due_ms, stored_ms))
    return found


def _ours(
    config: Mapping[str, str], command: Sequence[str], *, tls: ServerKeys | None, is_pair: bool, rules: str | None
) -> Cluster:
    launcher = (*command, "-m", "delaymq")
    if is_pair:
        return OurPair(config=config, launcher=launcher)
    return OurCluster(config=config if tls is None else {**config, **tls.settings()}, launcher=launcher, rules=rules)


def _real(config: Mapping[str, str], *, tls: ServerKeys | None, is_pair: bool, rules: str | None) -> Cluster:
    if is_pair:
        return RealPair(config=config, jvm_options=REAL_JVM_OPTIONS)
    if rules is not None:
        return RealCluster(config=config, jvm_options=REAL_JVM_OPTIONS, rules=rules)
    return _with_tls(RealCluster, config, tls)


def _real_5(config: Mapping[str, str], *, tls: ServerKeys | None, is_pair: bool) -> Cluster:
    if is_pair:
        return RealPair5(config=config, jvm_options=REAL_JVM_OPTIONS)
    return _with_tls(RealCluster5, config, tls)


def _with_tls(of: type[RealCluster], config: Mapping[str, str], tls: ServerKeys | None) -> RealCluster:
    options = () if tls is None else tls.jvm_options()
    cluster = of(config=config, jvm_options=(*REAL_JVM_OPTIONS, *options))
    cluster.namesrv = RealNameServer(
        cluster.base_path, cluster.namesrv_port, jvm_options=(*SMALL_HEAP, *options), profile=cluster.profile
    )
    return cluster
