"""What every reconcile gets (ReconcileContext), what it is about (Key) and what it says (Outcome)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from delaymq_operator.api.names import DEFAULT_CLUSTER_DOMAIN
from delaymq_operator.reconcile.ports import BrokerAdmin, Cache, Kube

T = TypeVar("T")


class Key(NamedTuple):
    """One resource of ours: `Key("Broker", "default", "demo")`."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True)
class Outcome:
    """How a reconcile ended. A transient failure is an exception instead, which the controller tries again."""

    requeue_after_s: float | None = None
    """When to look again though nothing is seen to change; None: only when something changes."""
    enqueue: tuple[Key, ...] = ()
    """Other resources that must look now."""


@dataclass(frozen=True)
class Waiting:
    """Why a resource that is being deleted cannot be let go yet."""

    message: str
    requeue_after_s: float


@dataclass(frozen=True, kw_only=True)
class ReconcileSettings:
    """Numbers and names that the reconcilers go by."""

    default_image: str
    """The image of brokers that name none; kept by them until something else makes their pods anew."""
    analytics_image: str = "delaymq/spark:0.1.0"
    """The image of analytics that name none."""
    analytics_role: str = "delaymq-analytics"
    """What Spark drivers are bound to."""
    analytics_role_kind: str = "ClusterRole"
    operator_namespace: str = ""
    """Where the operator runs: network policies let it in. Empty: it runs outside the cluster."""
    operator_labels: tuple[tuple[str, str], ...] = (("app.kubernetes.io/name", "delaymq-operator"),)
    """Labels of the operator's pods, for network policies."""
    name_server_addresses: tuple[str, ...] = ()
    """NameServers outside of their namespace that Brokers may name: hosts or host:port, with *, or networks."""
    cluster_domain: str = DEFAULT_CLUSTER_DOMAIN
    """What follows the namespace in a DNS name: `svc`, or `svc.cluster.local`."""
    status_interval_s: float = 60.0
    """How often figures in a status are renewed when nothing else changes."""
    poll_interval_s: float = 10.0
    """How often brokers are asked how they are, when all is settled."""
    progress_interval_s: float = 1.0
    """The same, while something is going on."""
    progress_deadline_s: float = 600.0
    """How long a pod may take to become ready, or what is waited for to appear, before that counts as a failure: the
    default of a Deployment's progressDeadlineSeconds."""
    quiet_s: float = 3.0
    """A broker without writes has had none for this long."""
    withdraw_max_s: float = 45.0
    """How long writes may move away; clients read routes anew every 30 s."""
    refuse_s: float = 2.0
    """How long sends are refused before a broker is stopped."""
    drain_lease_s: float = 60.0
    """After this long without a word from the operator a drained broker takes writes again."""
    event_interval_s: float = 600.0
    """The same Event is not said again within this time."""


class Memory:
    """What reconcilers remember between passes, by key and type. Nothing in it may be needed: it is lost at a restart.

    `memory.of(key, BrokerMemory)` is made by `BrokerMemory()` at first.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Key, type], object] = {}

    def of(self, key: Key, kind: type[T]) -> T:
        """What is remembered of `key` as a `kind`."""
        found = self._kept.get((key, kind))
        if not isinstance(found, kind):
            found = self._kept[key, kind] = kind()
        return found

    def forget_absent(self, is_there: Callable[[Key], bool]) -> None:
        """Drops what is remembered of all that is gone: Topics remember something of a Broker that never was, too."""
        for key in {key for key, _ in self._kept}:
            if not is_there(key):
                self.forget(key)

    def forget(self, key: Key) -> None:
        """Drops all that is remembered of `key`."""
        for entry in [entry for entry in self._kept if entry[0] == key]:
            del self._kept[entry]


@dataclass(frozen=True, kw_only=True)
class ReconcileContext:
    """Everything outside a reconcile."""

    kube: Kube
    cache: Cache
    admin: BrokerAdmin
    settings: ReconcileSettings
    clock: Callable[[], int]
    """The wall clock, in ms since the epoch."""
    memory: Memory = field(default_factory=Memory)
    count_analytics: Callable[[str], None] = lambda result: None
    """Told of each run of analytics that ended: `succeeded` or `failed`; metrics."""
