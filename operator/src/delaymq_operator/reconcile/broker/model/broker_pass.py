"""State of one reconcile pass over a Broker: observed and desired state, and what to report."""

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
from delaymq_operator.reconcile.broker.model.members import Member
from delaymq_operator.reconcile.broker.model.memory import BrokerMemory
from delaymq_operator.reconcile.broker.model.pods import Pod
from delaymq_operator.reconcile.context import Key, ReconcileContext
from delaymq_operator.reconcile.ports import Endpoint, EventType, Manifest

_OBSERVATIONS_PER_LEASE = 3


@dataclass(frozen=True)
class Note:
    """A condition reason and a sentence."""

    reason: Reason
    message: str


@dataclass(frozen=True, kw_only=True)
class LatePod:
    """A pod that should be ready but is not."""

    name: str
    since_ms: int
    what: str
    """A sentence without the full stop."""
    warning: str
    """Message of the newest Warning Event; empty: there is none."""
    cannot_be_made: bool
    """Whether the API server rejects it: a quota, an admission rule."""
    has_problem: bool
    """Whether its own status explains why it is not running."""


@dataclass
class ObservedSet:
    """A StatefulSet and its desired change."""

    live: Manifest | None = None
    """Current object, after this pass applied its changes."""
    outdated_operator: bool = False
    """Whether this operator version uses a different pod template and no restart was requested."""

    @property
    def settled(self) -> bool:
        """Whether its controller has processed all changes, so that its revision is the desired one."""
        if self.live is None or self.live["metadata"].get("deletionTimestamp"):
            return False
        status = self.live.get("status") or {}
        return bool(
            status.get("observedGeneration", -1) >= self.live["metadata"].get("generation", 0)
            and status.get("updateRevision")
        )

    @property
    def inputs(self) -> str:
        """The hash of the user's settings in its pods; empty: it does not exist."""
        template = ((self.live or {}).get("spec") or {}).get("template") or {}
        found: str = ((template.get("metadata") or {}).get("annotations") or {}).get(INPUTS_ANNOTATION, "")
        return found

    @property
    def revision(self) -> str:
        """The desired revision of pods; only if settled."""
        found: str = ((self.live or {}).get("status") or {}).get("updateRevision", "")
        return found


@dataclass
class Group:
    """A broker group as observed."""

    index: int
    name: str
    """Broker name in RocketMQ."""
    surplus: bool
    """Whether its index is beyond spec.size."""
    service: Manifest | None
    external: Manifest | None
    claim: Manifest | None
    pod: Pod | None
    set: ObservedSet
    endpoint: Endpoint | None = None
    info: About | None = None
    unreachable: str | None = None
    """Why it did not respond although its pod runs."""
    address: str | None = None
    """Address to advertise to clients; None: not known yet."""
    resumed: ResumedStatus | None = None
    """State with which its scheduler resumed; None: unknown in this pass."""
    is_remade: bool = False
    """Whether its StatefulSet is not created in this pass because its claim has to be deleted first."""
    hold: str = ""
    """Why its pods must not be restarted in this pass; empty: they may be."""
    members: list[Member] = field(default_factory=list)
    """Its brokers by ordinal, at least one. `pod`, `endpoint` and `info` are those of the master."""
    size: int = 0
    """Number of brokers that it has or gets; 0: it has no replicas, and never had."""
    master: Member | None = None
    """None without replicas, and while there is no master."""
    masterless: bool = False
    """Whether its brokers are members, and none of them is the master."""
    follows_master: bool = False
    """Whether clients reach the master only, so that there may be other pods."""

    @property
    def replicated(self) -> bool:
        """Whether its brokers are members of a replicated group, or become such."""
        return self.size > 0

    @property
    def claims(self) -> list[Manifest]:
        """Existing claims of its brokers."""
        return [member.claim for member in self.members if member.claim is not None]

    @property
    def pods(self) -> list[Pod]:
        """Existing pods of its brokers."""
        return [member.pod for member in self.members if member.pod is not None]

    @property
    def made(self) -> bool:
        """Whether it exists, at least in part."""
        return self.set.live is not None

    @property
    def ready(self) -> bool:
        """Whether its pod is ready; with replicas, that of the master."""
        return self.pod is not None and self.pod.ready and not self.masterless

    @property
    def writable(self) -> bool:
        """Whether clients can send to it."""
        info = self.info
        return self.ready and info is not None and info.drain.mode == "none" and not info.decommissioned


@dataclass
class BrokerPass:
    """A reconcile pass. Steps read and complete it in their order."""

    key: Key
    ctx: ReconcileContext
    body: Manifest
    broker: Broker
    memory: BrokerMemory
    now_ms: int
    defaults: int | None = None
    """Version of the defaults; None: not known yet."""
    spec_problem: Note | None = None
    """Problem of an invalid spec: nothing is changed."""
    manifest_context: Context | None = None
    """None until the spec is validated; steps that make changes require it."""
    delay: DelayTable = field(default_factory=DelayTable)
    """Desired delay levels of the brokers."""
    groups: list[Group] = field(default_factory=list)
    name_servers: ObservedSet = field(default_factory=ObservedSet)
    name_server_pods: list[Pod] = field(default_factory=list)
    late_pods: dict[str, LatePod] = field(default_factory=dict)
    """Late pods by name, except those that have just started."""
    event_lookups: int = 0
    """Number of requests for Events in this pass."""
    is_first: bool = False
    """Whether this is the operator's first pass over this Broker."""
    problems: list[Note] = field(default_factory=list)
    """Problems reported by Degraded, the most important first."""
    progress: list[Note] = field(default_factory=list)
    """Progress reported by Progressing."""
    of_brokers: Broker | None = None
    of_name_servers: Broker | None = None
    """The Broker with the present TLS mode of its pods; None: that of the spec."""
    tls_step: str = ""
    """Why pods do not have the mode of spec.tls yet; empty: they get it."""
    rolling: bool = False
    """Whether a remaining group is being restarted, or will be soon."""
    not_in_force: list[Note] = field(default_factory=list)
    """Parts of the spec that could not be applied, so that Ready is not True."""
    scale_in_blocked: list[str] = field(default_factory=list)
    analytics: Analysis = field(default_factory=lambda: Analysis(status=None))
    status: BrokerStatus = field(default_factory=BrokerStatus)
    """Status written at the end."""
    requeue_delays_s: list[float] = field(default_factory=list)
    """Requested requeue times; the shortest is used."""

    @property
    def may_change(self) -> bool:
        """Whether steps that make changes run in this pass."""
        return self.spec_problem is None and not self.broker.spec.paused

    @property
    def desired_groups(self) -> list[Group]:
        """The groups that remain."""
        return [group for group in self.groups if not group.surplus]

    @property
    def changing(self) -> Context:
        """The context of steps that make changes, which run only if there is one."""
        if self.manifest_context is None:
            raise RuntimeError("a step that changes the cluster ran although the spec is invalid")
        return self.manifest_context

    @property
    def namespace(self) -> str:
        """The Broker's namespace."""
        return self.broker.namespace

    @property
    def own_name_servers(self) -> bool:
        """Whether the operator runs NameServers for the Broker."""
        return not self.broker.spec.name_servers.addresses

    def problem(self, reason: Reason, message: str) -> None:
        """Report a problem that a user should know."""
        self.problems.append(Note(reason, message))

    def bad_spec(self, reason: Reason, message: str) -> None:
        """Report an invalid spec; nothing is changed in this pass."""
        self.problem(reason, message)
        self.spec_problem = self.problems[-1]

    def not_applied(self, reason: Reason, message: str) -> None:
        """Report that a part of the spec could not be applied."""
        self.problem(reason, message)
        self.not_in_force.append(self.problems[-1])

    def progressing(self, reason: Reason, message: str, *, again_s: float | None = None) -> None:
        """Report progress and requeue soon."""
        self.progress.append(Note(reason, message))
        settings = self.ctx.settings
        again_s = settings.progress_interval_s if again_s is None else again_s
        # A drain in progress must not end because its lease was not renewed in time.
        self.requeue_delays_s.append(min(again_s, settings.drain_lease_s / _OBSERVATIONS_PER_LEASE))

    def requeue(self, after_s: float) -> None:
        """Requeue after at most this time."""
        self.requeue_delays_s.append(after_s)

    async def event(self, type_: EventType, reason: str, message: str) -> None:
        """Emit an Event about the Broker, unless the same was emitted recently."""
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

    def lost_volume(self, claim: Manifest) -> str:
        """Return why the volume of a claim cannot be used again; empty: it can, or this is unknown."""
        found = self.memory.lost_volumes.get(claim["metadata"]["uid"])
        return found.why if found is not None else ""

    def cached(self, kind: str, name: str) -> Manifest | None:
        """Return an object of the Broker's namespace from the cache."""
        return self.ctx.cache.get(kind, self.namespace, name)

    def group_of(self, choose: Callable[[Group], bool]) -> Group | None:
        """Return the first matching group."""
        return next((group for group in self.groups if choose(group)), None)
