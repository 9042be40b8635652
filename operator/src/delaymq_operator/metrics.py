"""Prometheus metrics: counters of completed work, and gauges computed at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Protocol

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client import Counter as Counted
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from delaymq_operator.adapters.api_requests import Request
from delaymq_operator.adapters.kinds import OWN_KINDS
from delaymq_operator.api.names import COMPONENT_LABEL, INSTANCE_LABEL, MAX_SIZE, group_pod
from delaymq_operator.controller.cache import WatchCache
from delaymq_operator.controller.controller import Result
from delaymq_operator.reconcile.broker.model.pods import is_ready
from delaymq_operator.reconcile.context import Key
from delaymq_operator.reconcile.ports import Manifest

PREFIX: Final = "delaymq_operator"
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
ANALYTICS_RESULTS: Final = ("succeeded", "failed")
OF_BROKER: Final = ("broker_namespace", "broker")
"""Labels of a Broker. Prometheus itself adds the operator's `namespace` and `pod`."""
DURATIONS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)


class State(Protocol):
    """State of the operator."""

    @property
    def active(self) -> bool:
        """Whether this replica is the active one."""

    @property
    def queue_depth(self) -> int:
        """The number of keys waiting for a worker."""

    @property
    def loop_lag_s(self) -> float:
        """The maximum lag of the event loop in the last minute."""

    @property
    def events_dropped(self) -> int:
        """The number of dropped Events."""

    @property
    def served(self) -> Mapping[str, bool]:
        """Whether each watched namespace is served."""


class OperatorMetrics:
    """Counters of the process."""

    def __init__(self) -> None:
        # Creation times of series would make up half of all lines, and are not used.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._runs = Counted(f"{PREFIX}_reconcile", "Finished reconciliations.", ["kind"], registry=self.registry)
        self._errors = Counted(
            f"{PREFIX}_reconcile_errors",
            "Failed reconciliations: conflict (retried soon), transient (a broker, the API server), error (a bug).",
            ["kind", "result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}_reconcile_duration_seconds",
            "Duration of a reconciliation.",
            ["kind"],
            buckets=DURATIONS_S,
            registry=self.registry,
        )
        self._requests = Counted(
            f"{PREFIX}_kube_requests",
            "Requests to the API server, except kopf's watches and finalizers; status 0: no response.",
            ["verb", "kind", "status"],
            registry=self.registry,
        )
        self._analytics = Counted(
            f"{PREFIX}_analytics_runs", "Finished analytics runs.", ["result"], registry=self.registry
        )
        for kind in OWN_KINDS:
            self._runs.labels(kind)
        for result in ANALYTICS_RESULTS:
            self._analytics.labels(result)

    def ran(self, key: Key, result: Result, seconds: float) -> None:
        """Count a finished reconciliation."""
        self._runs.labels(key.kind).inc()
        self._seconds.labels(key.kind).observe(seconds)
        if result is not Result.DONE:
            self._errors.labels(key.kind, result.value).inc()

    def requested(self, request: Request, status: int) -> None:
        """Count a finished request to the API server."""
        self._requests.labels(request.verb, request.kind, str(status)).inc()

    def analysed(self, result: str) -> None:
        """Count a finished analytics run."""
        self._analytics.labels(result).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class StateCollector:
    """Gauges of the state and of the resources in the cache."""

    def __init__(self, state: State, cache: WatchCache) -> None:
        self._state = state
        self._cache = cache

    def describe(self) -> Iterable[Metric]:
        """Return no metrics in advance."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Compute the gauges at each scrape."""
        yield _gauges("info", "Version of the operator.", ["version"], {(_version(),): 1})
        yield _gauge("leader", "1 if this replica is the active one.", int(self._state.active))
        yield _gauge("queue_depth", "Resources waiting to be reconciled.", self._state.queue_depth)
        lag = "Maximum lag of the event loop in the last minute."
        yield _gauge("event_loop_lag_seconds", lag, self._state.loop_lag_s)
        dropped = CounterMetricFamily(f"{PREFIX}_events_dropped", "Events dropped because there were too many.")
        dropped.add_metric([], self._state.events_dropped)
        yield dropped
        about = "1 if this watched namespace is served, 0 if it cannot be listed; *: all namespaces."
        served: dict[tuple[str, ...], float] = {(name,): int(is_so) for name, is_so in self._state.served.items()}
        yield _gauges("namespace_served", about, ["watched_namespace"], served)
        counts = self._cache.counts()
        yield _gauges("resources", "Resources by kind.", ["kind"], {(kind,): counts[kind] for kind in OWN_KINDS})
        about = "Resources by condition and status."
        yield _gauges("resource_conditions", about, ["kind", "type", "status"], self._conditions())
        brokers = [found for found in self._cache.all("Broker") if "deletionTimestamp" not in found["metadata"]]
        about = "Condition of a Broker, with its status and reason; always 1."
        yield _gauges("broker_condition", about, [*OF_BROKER, "type", "status", "reason"], _broker_conditions(brokers))
        about = "1 if the pod of a broker group is ready, else 0; for each group of spec.size."
        yield _gauges("group_ready", about, [*OF_BROKER, "broker_pod"], _groups_ready(brokers))
        about = "Number of ready NameServers that the operator runs for a Broker."
        yield _gauges("name_servers_ready", about, OF_BROKER, self._name_servers_ready(brokers))

    def _conditions(self) -> Mapping[tuple[str, ...], float]:
        counted: Counter[tuple[str, ...]] = Counter()
        for kind in OWN_KINDS:
            for found in self._cache.all(kind):
                for condition in (found.get("status") or {}).get("conditions") or []:
                    counted[kind, str(condition.get("type")), str(condition.get("status"))] += 1
        return counted

    def _name_servers_ready(self, brokers: Iterable[Manifest]) -> Mapping[tuple[str, ...], float]:
        own = (found for found in brokers if not ((found.get("spec") or {}).get("nameServers") or {}).get("addresses"))
        counted: dict[tuple[str, ...], float] = {_namespace_and_name(found): 0 for found in own}
        for pod in self._cache.all("Pod"):
            labels = pod["metadata"].get("labels") or {}
            of = (str(pod["metadata"].get("namespace")), str(labels.get(INSTANCE_LABEL)))
            if of in counted and labels.get(COMPONENT_LABEL) == "namesrv" and is_ready(pod):
                counted[of] += 1
        return counted


def _broker_conditions(brokers: Iterable[Manifest]) -> Mapping[tuple[str, ...], float]:
    return {
        (*_namespace_and_name(found), *(str(condition.get(key)) for key in ("type", "status", "reason"))): 1
        for found in brokers
        for condition in (found.get("status") or {}).get("conditions") or []
    }


def _groups_ready(brokers: Iterable[Manifest]) -> Mapping[tuple[str, ...], float]:
    """Return the readiness of each group; a group missing from the status is not ready, since its pod was never
    created.
    """
    ready: dict[tuple[str, ...], float] = {}
    for found in brokers:
        namespace, name = _namespace_and_name(found)
        groups = (found.get("status") or {}).get("groups") or []
        known = {group.get("group") for group in groups if group.get("ready")}
        size = (found.get("spec") or {}).get("size", 1)
        for group in range(min(size, MAX_SIZE) if isinstance(size, int) else 1):
            ready[namespace, name, group_pod(name, group)] = int(group in known)
    return ready


def _namespace_and_name(found: Manifest) -> tuple[str, str]:
    return str(found["metadata"].get("namespace")), str(found["metadata"]["name"])


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", about, value=value)


def _gauges(name: str, about: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", about, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _version() -> str:
    try:
        return version("delaymq-operator")
    except PackageNotFoundError:
        return "unknown"
