"""One pass over a Broker: what was found, what is wanted, and what there is to say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from delaymq.api_types.broker import About

from delaymq_operator.api.broker import Broker
from delaymq_operator.api.broker_status import BrokerStatus, ResumedStatus
from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.names import INPUTS_ANNOTATION
from delaymq_operator.manifests import Context, DelayTable
from delaymq_operator.reconcile.broker.model.analysis import Analysis
from delaymq_operator.reconcile.broker.model.memory import BrokerMemory
from delaymq_operator.reconcile.broker.model.pods import Pod
from delaymq_operator.reconcile.context import Key, ReconcileContext
from delaymq_operator.reconcile.ports import Endpoint, EventType, Manifest

_OBSERVATIONS_PER_LEASE = 3


@dataclass(frozen=True)
class Note:
    """A reason of a condition, and a sentence."""

    reason: Reason
    message: str


@dataclass(frozen=True, kw_only=True)
class LatePod:
    """A pod that should be ready and is not."""

    name: str
    since_ms: int
    what: str
    """A sentence without its full stop."""
    warning: str
    """What the newest Warning Event says; empty: there is none."""
    cannot_be_made: bool
    """Whether the API server refuses it: a quota, an admission rule."""
    has_problem: bool
    """Whether its own status explains why it does not run."""


@dataclass
class ObservedSet:
    """A StatefulSet and what is to become of it."""

    live: Manifest | None = None
    """As it is, after what this pass applied."""
    outdated_operator: bool = False
    """This operator would make its pods differently, and nobody asked for a restart."""

    @property
    def settled(self) -> bool:
        """Whether its controller has seen all changes, so that its revision says what pods should be made from."""
        if self.live is None or self.live["metadata"].get("deletionTimestamp"):
            return False
        status = self.live.get("status") or {}
        return bool(
            status.get("observedGeneration", -1) >= self.live["metadata"].get("generation", 0)
            and status.get("updateRevision")
        )

    @property
    def inputs(self) -> str:
        """Hash of what a user can change in the pods that it makes; empty: it is not there."""
        template = ((self.live or {}).get("spec") or {}).get("template") or {}
        found: str = ((template.get("metadata") or {}).get("annotations") or {}).get(INPUTS_ANNOTATION, "")
        return found

    @property
    def revision(self) -> str:
        """What pods should be made from; only when settled."""
        found: str = ((self.live or {}).get("status") or {}).get("updateRevision", "")
        return found


@dataclass
class Group:
    """One broker group, as it was found."""

    index: int
    name: str
    """RocketMQ's broker name."""
    surplus: bool
    """Its index is beyond spec.size."""
    service: Manifest | None
    external: Manifest | None
    claim: Manifest | None
    pod: Pod | None
    set: ObservedSet
    endpoint: Endpoint | None = None
    info: About | None = None
    unreachable: str | None = None
    """Why it did not answer, though its pod runs."""
    address: str | None = None
    """What clients shall be told; None: not known yet."""
    resumed: ResumedStatus | None = None
    """How its scheduler came up; None: not known in this pass."""
    is_remade: bool = False
    """Its StatefulSet is not made in this pass: its claim has to go first."""
    hold: str = ""
    """Why its pod may not be restarted in this pass; empty: it may."""

    @property
    def made(self) -> bool:
        """Whether it exists, at least in part."""
        return self.set.live is not None

    @property
    def ready(self) -> bool:
        """Whether its pod is."""
        return self.pod is not None and self.pod.ready

    @property
    def writable(self) -> bool:
        """Whether clients can send to it."""
        info = self.info
        return self.ready and info is not None and info.drain.mode == "none" and not info.decommissioned


@dataclass
class BrokerPass:
    """One pass. Steps read and complete it in their order."""

    key: Key
    ctx: ReconcileContext
    body: Manifest
    broker: Broker
    memory: BrokerMemory
    now_ms: int
    defaults: int | None = None
    """Which ones count for what the spec does not say; None: not known yet."""
    spec_problem: Note | None = None
    """The spec cannot be put in force: nothing is changed."""
    manifest_context: Context | None = None
    """None until the spec is known to be good; steps that change something need it."""
    delay: DelayTable = field(default_factory=DelayTable)
    """The levels that brokers shall have."""
    groups: list[Group] = field(default_factory=list)
    name_servers: ObservedSet = field(default_factory=ObservedSet)
    name_server_pods: list[Pod] = field(default_factory=list)
    late_pods: dict[str, LatePod] = field(default_factory=dict)
    """By name; not those that began to start a moment ago."""
    event_lookups: int = 0
    """Requests for Events in this pass."""
    is_first: bool = False
    """Whether this is the operator's first pass over this Broker."""
    problems: list[Note] = field(default_factory=list)
    """What Degraded says, the most important first."""
    progress: list[Note] = field(default_factory=list)
    """What Progressing says."""
    rolling: bool = False
    """A group that stays is being restarted, or will be soon."""
    not_in_force: list[Note] = field(default_factory=list)
    """Parts of the spec that could not be applied: Ready is not True for it."""
    scale_in_blocked: list[str] = field(default_factory=list)
    analytics: Analysis = field(default_factory=lambda: Analysis(status=None))
    status: BrokerStatus = field(default_factory=BrokerStatus)
    """What is told at the end."""
    requeue_delays_s: list[float] = field(default_factory=list)
    """Times at which somebody wants to look again; the shortest counts."""

    @property
    def may_change(self) -> bool:
        """Whether steps that change something run in this pass."""
        return self.spec_problem is None and not self.broker.spec.paused

    @property
    def desired_groups(self) -> list[Group]:
        """Those that shall stay."""
        return [group for group in self.groups if not group.surplus]

    @property
    def changing(self) -> Context:
        """The context of steps that change something; they run only when there is one."""
        if self.manifest_context is None:
            raise RuntimeError("a step that changes the cluster ran although the spec is invalid")
        return self.manifest_context

    @property
    def namespace(self) -> str:
        """The Broker's."""
        return self.broker.namespace

    @property
    def own_name_servers(self) -> bool:
        """Whether the Broker has NameServers of its own."""
        return not self.broker.spec.name_servers.addresses

    def problem(self, reason: Reason, message: str) -> None:
        """Something is wrong that a person should know."""
        self.problems.append(Note(reason, message))

    def bad_spec(self, reason: Reason, message: str) -> None:
        """The spec cannot be put in force; nothing is changed in this pass."""
        self.problem(reason, message)
        self.spec_problem = self.problems[-1]

    def not_applied(self, reason: Reason, message: str) -> None:
        """A part of the spec could not be applied."""
        self.problem(reason, message)
        self.not_in_force.append(self.problems[-1])

    def progressing(self, reason: Reason, message: str, *, again_s: float | None = None) -> None:
        """Something goes on; it is looked at again soon."""
        self.progress.append(Note(reason, message))
        settings = self.ctx.settings
        again_s = settings.progress_interval_s if again_s is None else again_s
        # A drain that may be going on must not end for want of a renewal.
        self.requeue_delays_s.append(min(again_s, settings.drain_lease_s / _OBSERVATIONS_PER_LEASE))

    def requeue(self, after_s: float) -> None:
        """Look again, at the latest then."""
        self.requeue_delays_s.append(after_s)

    async def event(self, type_: EventType, reason: str, message: str) -> None:
        """An Event about the Broker, unless the same was said lately."""
        last_ms = self.memory.events_ms.get((reason, message))
        if last_ms is not None and self.now_ms - last_ms < self.ctx.settings.event_interval_s * 1000:
            return
        self.memory.events_ms = {
            said: at_ms
            for said, at_ms in self.memory.events_ms.items()
            if self.now_ms - at_ms < self.ctx.settings.event_interval_s * 1000
        }
        self.memory.events_ms[reason, message] = self.now_ms
        await self.ctx.kube.event(self.body, type=type_, reason=reason, message=message)

    def cached(self, kind: str, name: str) -> Manifest | None:
        """An object of the Broker's namespace, as the watches saw it."""
        return self.ctx.cache.get(kind, self.namespace, name)

    def group_of(self, choose: Callable[[Group], bool]) -> Group | None:
        """The first group that is meant."""
        return next((group for group in self.groups if choose(group)), None)
