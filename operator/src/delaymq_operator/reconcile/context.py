"""Common types of reconciliations: input (ReconcileContext), subject (Key) and result (Outcome)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from delaymq_operator.api.names import DEFAULT_CLUSTER_DOMAIN
from delaymq_operator.reconcile.ports import BrokerAdmin, Cache, Kube

T = TypeVar("T")


class Key(NamedTuple):
    """A DelayMQ resource: `Key("Broker", "default", "demo")`."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True)
class Outcome:
    """Result of a reconciliation. Transient failures are exceptions instead, which the controller retries."""

    requeue_after_s: float | None = None
    """Requeue time without a change; None: requeue only after changes."""
    enqueue: tuple[Key, ...] = ()
    """Other resources to reconcile."""


@dataclass(frozen=True)
class Waiting:
    """Why the finalizer of a resource that is being deleted cannot be removed yet."""

    message: str
    requeue_after_s: float


@dataclass(frozen=True, kw_only=True)
class ReconcileSettings:
    """Settings of the reconcilers."""

    default_image: str
    """Default image of brokers; kept until their pods are recreated for another reason."""
    analytics_image: str = "delaymq/spark:0.1.0"
    """Default image of analytics."""
    analytics_role: str = "delaymq-analytics"
    """Role to which Spark drivers are bound."""
    analytics_role_kind: str = "ClusterRole"
    operator_namespace: str = ""
    """Namespace of the operator, which network policies admit. Empty: it runs outside the cluster."""
    operator_labels: tuple[tuple[str, str], ...] = (("app.kubernetes.io/name", "delaymq-operator"),)
    """Labels of the operator's pods, for network policies."""
    name_server_addresses: tuple[str, ...] = ()
    """NameServers outside their namespace that Brokers may use: hosts or host:port, with *, or networks."""
    cluster_domain: str = DEFAULT_CLUSTER_DOMAIN
    """Suffix after the namespace in a DNS name: `svc`, or `svc.cluster.local`."""
    status_interval_s: float = 60.0
    """Interval between updates of figures in a status without other changes."""
    poll_interval_s: float = 10.0
    """Interval between queries of settled brokers."""
    progress_interval_s: float = 1.0
    """Interval between queries while a change is in progress."""
    progress_deadline_s: float = 600.0
    """Time after which a pod that is not ready, or a missing object, counts as failed: the default of a Deployment's
    progressDeadlineSeconds.
    """
    quiet_s: float = 3.0
    """Time without sends after which a broker counts as drained."""
    withdraw_max_s: float = 45.0
    """Time for clients to redirect writes; they refresh routes every 30 s."""
    refuse_s: float = 2.0
    """Time for which sends are rejected before a broker is stopped."""
    drain_lease_s: float = 60.0
    """Time without contact from the operator after which a drained broker accepts writes again."""
    event_interval_s: float = 600.0
    """Time within which the same Event is not repeated."""


class Memory:
    """Memory of reconcilers between passes, by key and type. Nothing in it may be essential: it is lost at a
    restart.

    The first `memory.of(key, BrokerMemory)` creates a `BrokerMemory()`.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Key, type], object] = {}

    def of(self, key: Key, kind: type[T]) -> T:
        """Return the memory of `key` of type `kind`."""
        found = self._kept.get((key, kind))
        if not isinstance(found, kind):
            found = self._kept[key, kind] = kind()
        return found

    def forget_absent(self, is_there: Callable[[Key], bool]) -> None:
        """Forget all absent resources, including Brokers that never existed but have Topics."""
        for key in {key for key, _ in self._kept}:
            if not is_there(key):
                self.forget(key)

    def forget(self, key: Key) -> None:
        """Forget everything about `key`."""
        for entry in [entry for entry in self._kept if entry[0] == key]:
            del self._kept[entry]


@dataclass(frozen=True, kw_only=True)
class ReconcileContext:
    """Environment of a reconciliation."""

    kube: Kube
    cache: Cache
    admin: BrokerAdmin
    settings: ReconcileSettings
    clock: Callable[[], int]
    """Wall clock, in ms since the epoch."""
    memory: Memory = field(default_factory=Memory)
    count_analytics: Callable[[str], None] = lambda result: None
    """Called for each finished analytics run, for metrics: `succeeded` or `failed`."""
