"""Restart strategy: the next pod to restart and the steps before, a pure decision from the observed state.

In a group with replicas, replicas come first, each when the previous one is in sync again. Then the master hands over
to one of them, and its pod restarts as that of a replica.

One pod restarts at a time. NameServers come before brokers; a change to the only NameServer is tested first. Pods
that are already down are replaced first and immediately; a working pod is restarted only while all others work. A pod
that fails with its new revision stops the rollout until a user intervenes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from delaymq.api_types.broker import About, DrainMode

from delaymq_operator.reconcile.broker.model.pods import Pod
from delaymq_operator.reconcile.broker.roll.drains import is_known, next_drain_step
from delaymq_operator.reconcile.context import ReconcileSettings


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A pod and its desired state."""

    pod_name: str
    stateful_set: str
    pod: Pod | None
    revision: str | None
    """Desired revision; None while the StatefulSet's controller has not reported it."""
    inputs: str = ""
    """Inputs in the StatefulSet's template."""
    group: int | None = None
    """Number of the group; None: a NameServer."""
    surplus: bool = False
    """Whether it is to be removed: it is restarted only if it is broken, and nothing waits for it. It may accept
    writes.
    """
    hold: str = ""
    """Why it must not be restarted at present; empty: it may be."""
    untried: bool = False
    """Whether it is the only NameServer, and no trial pod has run with its new template."""
    settling: bool = False
    """Whether it is a NameServer that has just become ready: brokers may not have registered yet."""
    ordinal: int = 0
    """Number of the broker in its group."""
    member: bool = False
    """Whether it is a broker of a group with replicas."""
    leads: bool = False
    """Whether it is the master of such a group."""
    in_sync: bool = True
    """Whether its master counts it."""
    joining: bool = False
    """Whether it was created with other members than the master, and can be in sync only after those have restarted."""
    successor: str = ""
    """Pod of a replica to which a master can hand over; empty: there is none."""
    responds: bool = True
    """Whether it reports the state of its replication."""
    masterless: bool = False
    """Whether its group has no master at present."""
    info: About | None = None
    unreachable_s: float = 0.0
    """Time in s for which its broker has not responded, or not redirected writes, although its pod runs."""

    @property
    def outdated(self) -> bool:
        """Whether the pod must be recreated. A decommissioned broker that remains accepts writes after a
        restart.
        """
        if self.pod is None or self.pod.terminating or self.hold:
            return False
        if self.revision is not None and self.pod.revision != self.revision:
            return True
        return self.info is not None and self.info.decommissioned and not self.surplus

    @property
    def rolled_out(self) -> bool:
        """Whether the pod matches the spec.

        The StatefulSets are OnDelete, for which Kubernetes never advances `currentRevision`: the pod's own revision
        counts. While the controller has not seen a change of the StatefulSet, the inputs tell whether that change
        requires a new pod.
        """
        if self.pod is None or self.pod.terminating or self.outdated:
            return False
        made_from = self.pod.inputs if self.revision is None else self.pod.revision
        return made_from == (self.inputs if self.revision is None else self.revision)

    @property
    def ready(self) -> bool:
        return self.pod is not None and self.pod.ready and self.in_sync and not self.masterless

    @property
    def fails(self) -> bool:
        """Whether a persistent problem prevents it from running."""
        return not self.ready and self.pod is not None and self.pod.problem is not None

    @property
    def is_current(self) -> bool:
        """Whether its pod has the desired revision, as far as known: others would fail like it."""
        return self.pod is not None and self.revision in (None, self.pod.revision)

    @property
    def writable(self) -> bool:
        """Whether clients can send to it."""
        return self.can_be_writable and self.info is not None and self.info.drain.mode == "none"

    @property
    def can_be_writable(self) -> bool:
        """Whether clients could send to it if it were not drained."""
        return self.group is not None and self.ready and self.info is not None and not self.info.decommissioned


@dataclass(frozen=True)
class Nothing:
    """All pods have their desired state."""


@dataclass(frozen=True)
class Wait:
    """Wait for this unit."""

    unit: Unit


@dataclass(frozen=True)
class Stop:
    """This unit fails with its new revision."""

    unit: Unit


@dataclass(frozen=True)
class Drain:
    """Drain this unit first."""

    unit: Unit
    mode: DrainMode


@dataclass(frozen=True)
class HelpOut:
    """`unit` waits until another group accepts writes again: a remaining one or, if none can, `helpers`, which are
    to be removed.
    """

    unit: Unit
    helpers: tuple[Unit, ...]


@dataclass(frozen=True)
class TryOut:
    """Test with an additional pod whether a restart would succeed."""

    unit: Unit


@dataclass(frozen=True)
class HandOver:
    """Let this master hand over to its successor."""

    unit: Unit


@dataclass(frozen=True)
class Restart:
    """Delete this pod; its StatefulSet creates it again."""

    unit: Unit


Action: TypeAlias = Nothing | Wait | Stop | Drain | HelpOut | TryOut | HandOver | Restart


def next_restart(units: Sequence[Unit], settings: ReconcileSettings) -> Action:
    """Return the next action; `units` are the NameServers by ordinal, then the brokers by group and ordinal."""
    for unit in units:
        if unit.outdated and unit.pod is not None and unit.pod.problem is not None:
            return Restart(unit)
    staying = [unit for unit in units if not unit.surplus]
    for unit in staying:
        if unit.fails and unit.is_current:
            return Stop(unit)
    for unit in units:
        if unit.outdated and not unit.ready and not unit.masterless:
            return HandOver(unit) if unit.leads and unit.successor else Restart(unit)
    for unit in staying:
        if unit.fails:
            return Stop(unit)
    for unit in staying:
        waits = not unit.ready and not (unit.joining and unit.responds)
        if waits or unit.hold or unit.revision is None:
            return Wait(unit)
    outdated = [unit for unit in staying if unit.outdated]
    if not outdated:
        return Nothing()
    chosen = min(outdated, key=_turn)
    settling = [unit for unit in staying if unit.settling]
    if chosen.group is None and settling:
        return Wait(settling[0])
    return _before_restart(chosen, units, settings)


def is_rolling(action: Action, units: Sequence[Unit]) -> bool:
    """Return whether a remaining group is being restarted, or will be as soon as others are ready."""
    if isinstance(action, (Drain, HelpOut, HandOver, Restart)):
        return True
    return isinstance(action, (TryOut, Wait)) and any(
        unit.outdated and not unit.surplus and unit.group is not None for unit in units
    )


def _turn(unit: Unit) -> tuple[bool, bool, int, bool, int]:
    """Return the order: NameServers first, then units that are already draining; in a group, replicas first."""
    draining = unit.info is not None and unit.info.drain.mode != "none"
    return unit.group is not None, not draining, unit.group or 0, unit.leads, unit.ordinal


def _before_restart(unit: Unit, units: Sequence[Unit], settings: ReconcileSettings) -> Action:
    if unit.untried:
        return TryOut(unit)
    if unit.member and not unit.leads:
        return Restart(unit)
    if unit.successor:
        return HandOver(unit)
    others = [other for other in units if other is not unit and other.can_be_writable]
    if unit.group is None or not others:
        return Restart(unit)
    if not any(other.writable for other in others):
        return HelpOut(unit, tuple(others) if all(other.surplus for other in others) else ())
    # A broker that cannot be drained gets limited time, since a restart may resolve its problem.
    if unit.unreachable_s >= settings.withdraw_max_s:
        return Restart(unit)
    if unit.info is None:
        return Wait(unit)
    other_known = any(other.info is not None and is_known(other.info) for other in others)
    step = next_drain_step(unit.info, settings, other_known=other_known)
    return Restart(unit) if step == "done" else Drain(unit, step)
