"""Kinds of faults of a group in namespaces. Each kind breaks something and repairs it after a while."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.processes import ServerProcess
from replication.faulty_group import CLIENT, ETCD, SMALL_DISK, FaultyGroup
from replication.members import NAMES, wait_until
from replication.relay import Disturbance
from replication.slow_disk import slow_disk

SHORT_S = (0.0, 3.0)
SLOW_BYTES_PER_S = 16 << 10


@dataclass(frozen=True, kw_only=True)
class Site:
    """A fault of a group: its members, and the random choices."""

    group: FaultyGroup
    master: str
    chance: random.Random
    long_s: tuple[float, float]
    """Duration of faults after which members should react meanwhile."""

    @property
    def replica(self) -> str:
        """One of the replicas, at random."""
        return self.chance.choice([name for name in NAMES if name != self.master])

    def wait_shortly(self) -> None:
        time.sleep(self.chance.uniform(*SHORT_S))

    def wait(self) -> None:
        time.sleep(self.chance.uniform(*self.long_s))


def _kill(site: Site, name: str) -> None:
    site.group.kill(name)
    site.wait_shortly()
    site.group.processes[name].start()


def _suspend_master(site: Site) -> None:
    with site.group.alone(site.master):
        _suspend(site, site.group.processes[site.master])


def _suspend(site: Site, process: ServerProcess) -> None:
    process.suspend()
    site.wait()
    process.signal(signal.SIGCONT)


def _kill_all(site: Site) -> None:
    for name in NAMES:
        site.group.kill(name)
    for process in site.group.processes.values():
        process.start()


def _lossy(site: Site) -> None:
    group, share = site.group, site.chance.uniform(0.1, 0.3)
    node = group.node(site.master)
    node.drop_from([*group.others(site.master), group.node(CLIENT)], share)
    site.wait()


def _one_way(site: Site, name: str, *, is_outgoing: bool) -> None:
    node, others = site.group.node(name), site.group.others(name)
    if is_outgoing:
        node.drop_to(others)
    else:
        node.drop_from(others)
    site.wait()


def _isolated_master(site: Site) -> None:
    """The clients still reach the former master."""
    group = site.group
    with group.alone(site.master):
        group.node(site.master).drop_from([*group.others(site.master), group.node(ETCD)])
        site.wait()


def _narrow(site: Site) -> None:
    site.group.node(site.master).limit_bandwidth(site.chance.choice((500_000, 1_000_000, 4_000_000)))
    site.wait()


def _disturb(site: Site, disturbance: Disturbance) -> None:
    for relay in site.group.relays.values():
        relay.disturbance = disturbance
    site.wait()


def _kill_without_register(site: Site) -> None:
    etcd = site.group.etcd.processes[0]
    etcd.suspend()
    site.group.kill(site.master)
    site.wait_shortly()
    site.group.processes[site.master].start()
    etcd.signal(signal.SIGCONT)


def _partitioned_register(site: Site) -> None:
    node = site.group.node(ETCD)
    is_outgoing = site.chance.random() < 0.5
    cut_off = [site.group.node(name) for name in site.chance.choice(([site.master], list(NAMES)))]
    if is_outgoing:
        node.drop_to(cut_off)
    else:
        node.drop_from(cut_off)
    site.wait()


def _full_disk(site: Site) -> None:
    site.group.fill_disk()
    site.wait()
    site.group.empty_disk()


def _full_disk_of_master(site: Site) -> None:
    """The member with the small disk is made master first. It hands over when its disk is full."""
    group = site.group
    group.switch_over(SMALL_DISK)
    group.fill_disk()
    wait_until(lambda: group.record().master != SMALL_DISK, "a master with a full disk does not hand over")
    site.wait()
    group.empty_disk()


def _kill_ahead(site: Site) -> None:
    """The master stores what its replicas do not receive any more, and returns when another one has taken over."""
    group, epoch = site.group, site.group.record().epoch
    with group.alone(site.master, is_killed=True):
        group.node(site.master).drop_to(group.others(site.master))
        time.sleep(site.chance.uniform(0.2, 1.2))
        group.processes[site.master].kill()
    wait_until(lambda: group.record().epoch > epoch, "no member takes over")
    group.processes[site.master].start()


def _slow_disk_of_replica(site: Site) -> None:
    """The replica acknowledges only what is on its disk, which takes longer than its master waits."""
    group = site.group
    name = next(each for each in NAMES if each not in (site.master, SMALL_DISK))
    with slow_disk(group.processes[name].pid, group.store(name), SLOW_BYTES_PER_S):
        wait_until(lambda: name not in group.record().in_sync, "a replica with a slow disk stays in sync")
        site.wait()


KILL_ALL = "kill all members"
FAULTS: dict[str, Callable[[Site], None]] = {
    "kill the master": lambda site: _kill(site, site.master),
    "suspend the master": _suspend_master,
    "kill a replica": lambda site: _kill(site, site.replica),
    "suspend a replica": lambda site: _suspend(site, site.group.processes[site.replica]),
    KILL_ALL: _kill_all,
    "lose packets of the master": _lossy,
    "the master does not reach replicas": lambda site: _one_way(site, site.master, is_outgoing=True),
    "replicas do not reach the master": lambda site: _one_way(site, site.master, is_outgoing=False),
    "a replica does not reach the others": lambda site: _one_way(site, site.replica, is_outgoing=True),
    "isolate the master, except from clients": _isolated_master,
    "limit the master's bandwidth": _narrow,
    "delay links": lambda site: _disturb(site, Disturbance(delay_s=site.chance.uniform(0.02, 0.3))),
    "repeat, reorder and lose messages": lambda site: _disturb(
        site, Disturbance(jitter_s=0.1, reordered=0.2, repeated=0.2, lost=0.05)
    ),
    "suspend etcd": lambda site: _suspend(site, site.group.etcd.processes[0]),
    "kill etcd": lambda site: site.group.etcd.crash(0),
    "kill the master without etcd": _kill_without_register,
    "partition etcd": _partitioned_register,
    "fill the disk of a member": _full_disk,
    "fill the disk of the master": _full_disk_of_master,
}
KILL_AHEAD = "kill the master while it is ahead"
FAULTS_WITHOUT_WAITING = {
    **{name: fault for name, fault in FAULTS.items() if "reach" not in name and "etcd" not in name},
    KILL_AHEAD: _kill_ahead,
}
"""Faults of a group whose sends do not wait for replicas. They state what may be lost."""
SLOW_DISK = "slow the disk of a replica"
"""For members that acknowledge only what is on their disks."""
ALL_FAULTS = {**FAULTS, **FAULTS_WITHOUT_WAITING, SLOW_DISK: _slow_disk_of_replica}
