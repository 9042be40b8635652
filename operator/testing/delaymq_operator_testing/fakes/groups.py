"""Replicated groups of FakeBrokers: founding, failover, joining, and the address that a master writes.

Members behave like those of `delaymq.replication`, one step a tick: a group is founded when all listed members run, a
lost master is replaced by a member in sync, and a member is in sync a few ticks after it is connected to its master.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from delaymq.api_types.replication import GroupMember, Register, Replication
from delaymq_operator.reconcile.errors import BrokerRefused
from msgspec import structs

from delaymq_operator_testing.fakes.kube import FakeKube
from delaymq_operator_testing.trees import copied

if TYPE_CHECKING:
    from delaymq_operator_testing.fakes.brokers import FakeBroker

TICKS_TO_JOIN = 3
TICKS_TO_TAKE_OVER = 1


@dataclass
class FakeGroup:
    """The register of a group, and what its members know."""

    epoch: int = 0
    master: str = ""
    """Pod; empty before the group is founded."""
    master_uid: str = ""
    in_sync: set[str] = field(default_factory=set)
    behind: dict[str, int] = field(default_factory=dict)
    """Ticks until a member is in sync."""
    vacant: int = 0
    history: list[tuple[int, str]] = field(default_factory=list)
    """Epochs and their masters."""
    uid: str = ""
    """Lease that contains the record."""
    written: dict[str, object] = field(default_factory=dict)
    """The record."""


@dataclass
class FakeGroups:
    """All replicated groups."""

    kube: FakeKube
    namespace: str
    running: dict[str, FakeBroker]
    groups: dict[str, FakeGroup] = field(default_factory=dict)
    """Groups by RocketMQ's broker name."""
    slow: set[str] = field(default_factory=set)
    """Members that do not catch up."""
    mute: set[str] = field(default_factory=set)
    """Members that are disconnected from the others."""
    silent: set[str] = field(default_factory=set)
    """Members that do not respond."""
    registers_unreachable: bool = False
    responds_as: str = ""
    """Name under which masters respond; empty: their own."""
    lingering: set[str] = field(default_factory=set)
    """Members that are connected although their pods do not exist."""
    failed: dict[str, str] = field(default_factory=dict)
    """Members that cannot follow, and why."""
    refuses: str = ""
    """Why masters reject switchovers; empty: they do not."""

    def tick(self) -> None:
        for name in sorted({broker.name for broker in self.running.values() if broker.members}):
            group = self.groups.setdefault(name, FakeGroup())
            self._advance(name, group)
            self._write(name, group)

    def _members(self, name: str) -> dict[str, FakeBroker]:
        found = {pod: broker for pod, broker in self.running.items() if broker.name == name and broker.members}
        return {pod: broker for pod, broker in found.items() if self._is_up(pod)}

    def _is_up(self, pod: str) -> bool:
        body = self.kube.objects.get(("Pod", self.namespace, pod))
        return body is not None and "deletionTimestamp" not in body["metadata"]

    def _advance(self, name: str, group: FakeGroup) -> None:
        members = self._members(name)
        lease = self.kube.objects.get(("Lease", self.namespace, _register(name)))
        if not group.master or lease is None or lease["metadata"]["uid"] != group.uid:
            self._found(group, members, lease)
            return
        master = members.get(group.master)
        if master is None or master.pod_uid != group.master_uid:
            self._take_over(group, members)
        else:
            self._join(group, members, master)

    def _found(self, group: FakeGroup, members: Mapping[str, FakeBroker], lease: object) -> None:
        listed = {each for broker in members.values() for each in broker.members}
        lists = {tuple(broker.members.items()) for broker in members.values()}
        if not isinstance(lease, dict) or len(lists) != 1 or listed - members.keys():
            return
        group.uid = lease["metadata"]["uid"]
        first = group.master if group.master in members else min(members)
        self._lead(group, first, members[first], {first})

    def _take_over(self, group: FakeGroup, members: Mapping[str, FakeBroker]) -> None:
        group.vacant += 1
        candidates = sorted(group.in_sync & members.keys())
        if candidates and group.vacant >= TICKS_TO_TAKE_OVER:
            first = group.master if group.master in candidates else candidates[0]
            self._lead(group, first, members[first], {first})

    def _lead(self, group: FakeGroup, pod: str, broker: FakeBroker, in_sync: set[str]) -> None:
        group.epoch += 1
        group.master, group.master_uid, group.vacant = pod, broker.pod_uid, 0
        group.in_sync = set(in_sync)
        group.behind = {}
        group.history.append((group.epoch, pod))
        self._publish(pod, broker, group.epoch)

    def _publish(self, pod: str, broker: FakeBroker, epoch: int) -> None:
        body = self.kube.objects[("Pod", self.namespace, pod)]
        environment = {each["name"]: each.get("value", "") for each in body["spec"]["containers"][0]["env"]}
        own = environment["DELAYMQ_REPLICA_ENDPOINT"].partition("/")[2].split(",")
        for slice_ in list(self.kube.select("EndpointSlice", self.namespace, {})):
            if slice_["metadata"]["name"] in own:
                slice_["endpoints"] = [{"addresses": [body["status"]["podIP"]]}]
                slice_["metadata"].setdefault("annotations", {})["delaymq.io/epoch"] = str(epoch)
                self.kube.put(slice_)

    def _write(self, name: str, group: FakeGroup) -> None:
        """Write the register, if it has changed."""
        record = {"epoch": group.epoch, "master": group.master, "inSync": sorted(group.in_sync)}
        lease = self.kube.objects.get(("Lease", self.namespace, _register(name)))
        if lease is None or lease["metadata"]["uid"] != group.uid or record == group.written:
            return
        group.written = record
        lease = copied(lease)
        lease["metadata"].setdefault("annotations", {})["delaymq.io/register"] = json.dumps(record)
        self.kube.put(lease)

    def _join(self, group: FakeGroup, members: Mapping[str, FakeBroker], master: FakeBroker) -> None:
        for pod, broker in members.items():
            both = master.members.items() & broker.members.items()
            linked = {pod, group.master} <= dict(both).keys() and pod not in self.mute
            if pod == group.master:
                continue
            if not linked:
                group.in_sync.discard(pod)
            elif pod not in group.in_sync and pod not in self.slow:
                left = group.behind.get(pod, TICKS_TO_JOIN)
                group.behind[pod] = left - 1
                if left <= 0:
                    group.in_sync.add(pod)
        group.in_sync &= members.keys()
        group.behind = {pod: ticks for pod, ticks in group.behind.items() if pod in members}

    def is_ready(self, pod: str) -> bool:
        """Return whether a running broker is ready: as a replica, when it is in sync."""
        broker, group = self.running.get(pod), self._of(pod)
        if broker is None or not broker.members:
            return True
        if group is None:
            return False
        return pod in group.in_sync and (group.master != pod or group.master_uid == broker.pod_uid)

    # Requests of the operator.

    def _of(self, pod: str) -> FakeGroup | None:
        broker = self.running.get(pod)
        return self.groups.get(broker.name) if broker is not None and broker.members else None

    def state(self, pod: str) -> Replication | None:
        group, broker = self._of(pod), self.running.get(pod)
        if group is None or broker is None or pod in self.silent:
            return None
        leads = group.master == pod and group.master_uid == broker.pod_uid
        lease = self.kube.objects.get(("Lease", self.namespace, _register(broker.name)))
        return Replication(
            cluster="demo",
            group=broker.name,
            member=self.responds_as or pod,
            role="Failed" if pod in self.failed else "Master" if leads else "Replica",
            epoch=group.epoch,
            master=group.master,
            register=Register(
                reachable=lease is not None and not self.registers_unreachable,
                problem="" if lease is not None else "it was deleted",
            ),
            mode="SYNC_MASTER",
            acknowledge="Appended",
            failover="Automatic",
            min_in_sync=1,
            in_sync=tuple(sorted(group.in_sync)) if leads else (),
            begin=0,
            end=1000,
            flushed=1000,
            confirmed=1000,
            note=None,
            held=False,
            problem=self.failed.get(pod, ""),
            members=tuple(self._progress(group, name, leads=leads) for name in broker.members),
        )

    def _progress(self, group: FakeGroup, pod: str, *, leads: bool) -> GroupMember:
        linked = pod in self.lingering or (pod in self.running and pod not in self.mute)
        found = GroupMember(name=pod, address=pod, connected=linked, in_sync=False)
        if leads and pod in group.in_sync:
            found = structs.replace(found, in_sync=True, acknowledged=1000, behind_bytes=0, behind_ms=3)
        return found

    def switch_over(self, pod: str, target: str, epoch: int) -> None:
        group = self._of(pod)
        if group is None or group.master != pod or group.epoch != epoch or target not in group.in_sync:
            raise BrokerRefused(pod, "refused", f"{target} is not in sync")
        if self.refuses:
            raise BrokerRefused(pod, "refused", self.refuses)
        in_sync = set(group.in_sync)
        self._lead(group, target, self.running[target], in_sync)

    def promote(self, pod: str, epoch: int) -> None:
        group = self._of(pod)
        if group is None or group.epoch != epoch:
            raise BrokerRefused(pod, "refused", f"the epoch is not {epoch}")
        self._lead(group, pod, self.running[pod], {pod})

    def detach(self, master: str, member: str, epoch: int) -> None:
        group = self._of(master)
        if group is None or group.master != master or group.epoch != epoch:
            raise BrokerRefused(master, "refused", "this member is not the master")
        group.in_sync.discard(member)
        group.behind[member] = 1 << 30


def _register(group: str) -> str:
    broker, _, number = group.rpartition("-")
    return f"{broker}-broker-{number}-register"
