"""Runs of a group in namespaces under faults, and their figures."""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.commitlog import BadLogError
from replication.faults import ALL_FAULTS, KILL_ALL, Site
from replication.faulty_group import CLIENT, ETCD, SMALL_DISK, TEST, FaultyGroup, Lead
from replication.history import Cancel, History, Moved, Outcome, Send
from replication.history_judge import Verdict, judge, without
from replication.history_load import HistoryLoad, Mix
from replication.members import LEVEL_TABLE, NAMES, wait_until
from replication.namespaces import Network
from replication.relay import NONE, Disturbance

AFTER_FAULT_S = 1.0
OUTDATED_S = 5.0
"""Longest time after a fault in which a former master learns that another one leads."""
COMPLETE_S, JOIN_S = 60.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Effects of one fault on clients."""

    fault: str
    gap_s: float
    """Longest time without an acknowledged send."""
    late_ms: int
    """Largest lateness of a message that came due."""


@dataclass
class Run:
    """Result of a schedule."""

    verdict: Verdict
    history: History
    epochs: int
    lost: int
    """Acknowledged sends that are not in the log, although no breach: no replica had them."""
    differing: list[str]
    """Segments that differ between members."""
    figures: list[Figures]

    def text(self) -> str:
        parts = [f"{each.fault} ({each.gap_s:.1f} s, {each.late_ms} ms)" for each in self.figures]
        differing = f"; differing segments: {self.differing}" if self.differing else ""
        return f"{', '.join(parts)}; {self.epochs} epochs; lost {self.lost}; {self.verdict.text()}{differing}"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Faults in their order, and what the group and its clients are like."""

    seed: str
    faults: Sequence[str]
    long_s: tuple[float, float]
    """Range of the durations of most faults."""
    mix: Mix = field(default_factory=Mix)
    clock_shifts_ms: Mapping[str, int] = field(default_factory=dict)
    background: Disturbance = NONE
    """What happens to messages between members during all faults."""
    first_master: str = ""
    """Member that is made master before the faults; empty: any."""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def may_lose(self) -> bool:
        """Whether the end of the log may be lost that no replica had when its master was killed."""
        return self.settings.get("brokerRole") == "ASYNC_MASTER"


def run(schedule: Schedule, etcd_program: Path, folder: Path) -> Run:
    """Run a schedule in namespaces of its own, and judge it."""
    with Network(folder, [*NAMES, ETCD, CLIENT, TEST]) as network:
        return network[TEST].call(lambda: _run(schedule, network, etcd_program, folder))


def _run(schedule: Schedule, network: Network, etcd_program: Path, folder: Path) -> Run:
    group = FaultyGroup(
        network,
        etcd_program,
        folder,
        schedule.seed,
        clock_shifts_ms=schedule.clock_shifts_ms,
        settings=schedule.settings,
    )
    with group:
        if schedule.first_master:
            group.switch_over(schedule.first_master)
        load = HistoryLoad(network[CLIENT], list(group.addresses.values()), schedule.seed, schedule.mix)
        has_one_clock = not any(schedule.clock_shifts_ms.values())

        def judge_now() -> Verdict:
            history = without(load.history, lambda each: schedule.may_lose and _may_be_gone(each, group.leads))
            history.moved = [moved for moved in history.moved if not _is_outdated(moved, group.leads)]
            return judge(history, group.store(NAMES[0]), LEVEL_TABLE, has_one_clock=has_one_clock)

        load.start()
        try:
            periods = _disturb(group, load, schedule)
        finally:
            load.stop_producing()
        time.sleep(schedule.mix.delays_ms[1] / 1_000)
        wait_until_complete(load, judge_now, COMPLETE_S)
        load.stop()
        load.join(JOIN_S)
        epochs = group.record().epoch
        group.settle()
        if load.error is not None:
            raise load.error
        verdict, differing = judge_now(), group.differing_segments()
        if verdict.breaches or differing:
            shutil.copytree(group.store(SMALL_DISK), folder / SMALL_DISK, dirs_exist_ok=True)
        lost = judge(load.history, group.store(NAMES[0]), LEVEL_TABLE).lost if schedule.may_lose else []
        return Run(
            verdict, load.history, epochs, len(lost), differing,
            [_figures(fault, period, load.history, verdict) for fault, period in periods],
        )  # fmt: skip


def _may_be_gone(operation: Send | Cancel, leads: Sequence[Lead]) -> bool:
    """Whether only the member that responded had the record of an operation, as far as it is known."""
    return operation.outcome is Outcome.DONE and any(
        operation.member == lead.host
        and operation.answered_s <= lead.until_s
        and operation.place >= max(lead.ends.values())
        for lead in leads
    )


def _is_outdated(moved: Moved, leads: Sequence[Lead]) -> bool:
    """Whether a response may be that of a former master, which did not know yet that another one leads."""
    return any(
        moved.member == lead.host and not lead.is_killed and lead.from_s <= moved.at_s <= lead.until_s + OUTDATED_S
        for lead in leads
    )


def _disturb(group: FaultyGroup, load: HistoryLoad, schedule: Schedule) -> list[tuple[str, tuple[float, float]]]:
    """Perform the faults, and return each with its beginning and the end of its effects, in monotonic seconds."""
    chance = random.Random(schedule.seed)
    wait_until(lambda: any(load.read_until()), "no message arrives before the faults")
    periods = []
    for fault in schedule.faults:
        began_s = time.monotonic()
        for relay in group.relays.values():
            relay.disturbance = schedule.background
        with load.without_offsets() if fault == KILL_ALL else contextlib.nullcontext():
            ALL_FAULTS[fault](Site(group=group, master=group.record().master, chance=chance, long_s=schedule.long_s))
            group.heal()
            group.wait_until_in_sync(f"after: {fault}")
            now_s = time.monotonic()
            wait_until(lambda now_s=now_s: load.accepts_since(now_s), f"no send is acknowledged after: {fault}")
        time.sleep(AFTER_FAULT_S)
        periods.append((fault, (began_s, time.monotonic())))
    return periods


def _figures(fault: str, period: tuple[float, float], history: History, verdict: Verdict) -> Figures:
    to_ms = time.time() * 1_000 - time.monotonic() * 1_000
    from_ms, until_ms = (int(time_s * 1_000 + to_ms) for time_s in period)
    return Figures(fault=fault, gap_s=history.gap_s(*period), late_ms=verdict.late_ms(from_ms, until_ms))


def wait_until_complete(load: HistoryLoad, judge_now: Callable[[], Verdict], limit_s: float) -> None:
    """Wait until a judgement finds nothing missing, or for the limit: the last judgement reports what is missing."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and load.is_alive():
        with contextlib.suppress(BadLogError):  # a record is being written
            if not judge_now().breaches:
                return
        time.sleep(0.5)
