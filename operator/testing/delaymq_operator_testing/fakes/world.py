"""Simulated cluster with one Broker and virtual time: `run` advances operator, controllers and clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from delaymq_operator.reconcile.broker import reconcile_broker
from delaymq_operator.reconcile.context import Key, Memory, Outcome, ReconcileContext, ReconcileSettings
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

from delaymq_operator_testing.fakes.brokers import FakeBrokers
from delaymq_operator_testing.fakes.kube import FakeCache, FakeKube
from delaymq_operator_testing.fakes.spark import FakeSpark
from delaymq_operator_testing.trees import copied

NAMESPACE = "default"
START_MS = 1_790_000_000_000
TICK_MS = 1_000
MAX_TICKS = 600
NEVER_MS = 1 << 60


class DiedError(BaseException):
    """The operator was killed. A BaseException, so the operator's code does not catch it."""


class Deadly:
    """A port that kills the operator at a call selected by `count`, before or after the call takes effect."""

    def __init__(self, port: object, count: Callable[[str], bool], *, after: bool) -> None:
        self._port = port
        self._count = count
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            dies = self._count(f"{name} {arguments[:3] if len(arguments) > 1 else ''}")
            if dies and not self._after:
                raise DiedError(name)
            answer = await found(*arguments, **options)
            if dies:
                raise DiedError(name)
            return answer

        return call


@dataclass
class FakeWorld:
    """A Broker `demo`, its cluster, and an operator that can be killed."""

    settings: ReconcileSettings = field(default_factory=lambda: ReconcileSettings(default_image="delaymq/broker:1"))
    now_ms: int = START_MS
    failures: list[Exception] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """Calls of ports by the operator, with their first arguments."""
    dies_at: int | None = None
    dies_after: bool = False
    deaths: int = 0
    lag_ticks: int = 0
    """Number of ticks by which the cache lags behind."""
    others: list[Callable[[], None]] = field(default_factory=list)
    """Further parts of the cluster, called in each tick."""
    watch: Callable[[], None] = lambda: None
    """Assertion of an invariant, called in each tick."""

    def __post_init__(self) -> None:
        self.kube = FakeKube(lambda: self.now_ms)
        self.brokers = FakeBrokers(self.kube, lambda: self.now_ms)
        self.kube.is_ready = self.brokers.groups.is_ready
        self.cache = FakeCache(self.kube)
        self.memory = Memory()
        self.analysed: list[str] = []
        self.spark = FakeSpark(self.kube)
        """Inactive until its `tick` is added to `others`."""
        self.key = Key("Broker", NAMESPACE, "demo")
        self._ticks = 0
        self._look_at_ms = 0

    # Actions of a user.

    def create(self, **spec: Any) -> None:
        self.kube.put(
            {
                "kind": "Broker",
                "metadata": {"name": "demo", "namespace": NAMESPACE, "uid": f"uid-demo-{self.now_ms}"},
                "spec": spec,
            }
        )

    def change(self, **spec: Any) -> None:
        body = copied(self.broker)
        body["spec"] |= spec
        body["spec"] = {key: value for key, value in body["spec"].items() if value is not None}
        self.kube.put(body)

    def annotate(self, **annotations: str) -> None:
        body = copied(self.broker)
        body["metadata"].setdefault("annotations", {}).update(
            {f"delaymq.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
        )
        self.kube.put(body)

    def levels(
        self, name: str, *levels: str, overflow: str = "Clamp", annotations: Any = None, status: Any = None
    ) -> None:
        """Create or change a DelayLevelConfig, which nothing reconciles in this world."""
        body = {"kind": "DelayLevelConfig", "metadata": {"name": name, "namespace": NAMESPACE}}
        known = copied(self.kube.objects.get(("DelayLevelConfig", NAMESPACE, name), body))
        known["metadata"]["annotations"] = annotations or {}
        spec = {"levels": list(levels), "overflow": overflow}
        self.kube.put(known | {"spec": spec} | ({} if status is None else {"status": status}))

    # Observed state.

    @property
    def broker(self) -> Manifest:
        return self.kube.objects["Broker", NAMESPACE, "demo"]

    @property
    def status(self) -> dict[str, Any]:
        return self.broker.get("status") or {}

    def condition(self, kind: str) -> dict[str, Any]:
        found = (item for item in self.status.get("conditions", []) if item["type"] == kind)
        return next(found, {})

    def reason(self, kind: str) -> str:
        return str(self.condition(kind).get("reason", ""))

    def get(self, kind: str, name: str) -> Manifest | None:
        return self.kube.objects.get((kind, NAMESPACE, name))

    def existing(self, kind: str, name: str) -> Manifest:
        """Return an object that must exist."""
        return self.kube.objects[kind, NAMESPACE, name]

    def names(self, kind: str) -> list[str]:
        return [body["metadata"]["name"] for body in self.kube.select(kind, NAMESPACE, {})]

    def pod_uids(self) -> dict[str, str]:
        return {body["metadata"]["name"]: body["metadata"]["uid"] for body in self.kube.select("Pod", NAMESPACE, {})}

    @property
    def settled(self) -> bool:
        return (
            self.status.get("observedGeneration") == self.broker["metadata"]["generation"]
            and self.reason("Progressing") == "Settled"
            and self.reason("Ready") == "AllGroupsReady"
        )

    # Time.

    def world(self) -> ReconcileContext:
        def count(label: str) -> bool:
            self.calls.append(label)
            return len(self.calls) == self.dies_at

        return ReconcileContext(
            kube=Deadly(self.kube, count, after=self.dies_after),
            cache=self.cache,
            admin=Deadly(self.brokers, count, after=self.dies_after),
            settings=self.settings,
            clock=lambda: self.now_ms,
            memory=self.memory,
            count_analytics=self.analysed.append,
        )

    def restart_operator(self) -> None:
        """Replace the operator's process: its memory is lost, its cache is filled again."""
        self._look_at_ms = 0
        self.memory = Memory()
        self.cache = FakeCache(self.kube)
        self.cache.sync()

    def reconcile(self) -> Outcome | None:
        """Reconcile the Broker once; return None if this failed."""
        try:
            return asyncio.run(reconcile_broker(self.key, self.world()))
        except KubeError as error:
            self.failures.append(error)
        except DiedError:
            self.deaths += 1
            self.restart_operator()
        return None

    def tick(self) -> None:
        """Advance time and everything except the operator by one second."""
        self.now_ms += TICK_MS
        self.kube.tick()
        self.brokers.tick()
        for other in self.others:
            other()
        self._ticks += 1
        if self._ticks % (self.lag_ticks + 1) == 0 and self.cache.sync():
            self._look_at_ms = self.now_ms
        self.watch()

    def step(self) -> None:
        """Advance by one second, and reconcile if the cache has changed or the requeue delay has elapsed."""
        self.tick()
        if self.now_ms < self._look_at_ms:
            return
        outcome = self.reconcile()
        if outcome is None:
            self._look_at_ms = self.now_ms
        elif outcome.requeue_after_s is None:
            self._look_at_ms = NEVER_MS
        else:
            self._look_at_ms = self.now_ms + int(outcome.requeue_after_s * 1000)

    def run(self, until: Callable[[], bool] | None = None, *, ticks: int = MAX_TICKS) -> None:
        """Step until the condition is met or, by default, the Broker is settled in two successive steps."""
        done = until if until is not None else lambda: self.settled
        calm = 0
        for _ in range(ticks):
            self.step()
            calm = calm + 1 if done() else 0
            if calm >= (2 if until is None else 1):
                return
        raise AssertionError(f"it never came to this: {self.status.get('conditions')}, failures {self.failures[-3:]}")

    def idle(self, ticks: int) -> None:
        """Step for `ticks` seconds."""
        for _ in range(ticks):
            self.step()
