"""Choice of the next pod to restart."""

from dataclasses import replace
from typing import Any

import pytest
from delaymq.api_types.broker import About, DrainMode
from delaymq.api_types.broker import Drain as DrainState
from delaymq_operator.reconcile.broker.model.pods import Pod
from delaymq_operator.reconcile.broker.roll.strategy import (
    Action,
    Drain,
    HelpOut,
    Nothing,
    Restart,
    Stop,
    Unit,
    Wait,
    next_restart,
)
from delaymq_operator.reconcile.context import ReconcileSettings

SETTINGS = ReconcileSettings(default_image="i", quiet_s=3, withdraw_max_s=45, refuse_s=2)
NOW_MS = 1_000_000
OLD, NEW = "r-old", "r-new"


def pod(name: str, revision: str = NEW, **is_so: Any) -> Pod:
    known: dict[str, Any] = {
        "ready": True,
        "running": True,
        "terminating": False,
        "ip": "10.0.0.1",
        "node": "n",
    } | is_so
    return Pod(name=name, uid=f"uid-{name}", revision=revision, **known)


def info(
    mode: DrainMode = "none", since_ms: int = 0, last_send_ms: int | None = None, decommissioned: bool = False
) -> About:
    return About(
        as_of_ms=NOW_MS,
        version="1",
        broker_name="b",
        cluster_name="c",
        store_id="s",
        boot_id="boot",
        started_at_ms=0,
        ready=True,
        drain=DrainState(mode=mode, since_ms=since_ms, last_send_ms=last_send_ms),
        decommissioned=decommissioned,
    )


def group(
    index: int, revision: str = NEW, *, of: About | None = None, unit: dict[str, Any] | None = None, **is_so: Any
) -> Unit:
    name = f"broker-{index}-0"
    return Unit(
        pod_name=name,
        stateful_set=f"broker-{index}",
        pod=pod(name, revision, **is_so),
        revision=NEW,
        group=index,
        info=of if of is not None else info(),
        **(unit or {}),
    )


def server(ordinal: int, revision: str = NEW, **is_so: Any) -> Unit:
    name = f"namesrv-{ordinal}"
    return Unit(pod_name=name, stateful_set="namesrv", pod=pod(name, revision, **is_so), revision=NEW)


def decide(*units: Unit) -> Action:
    return next_restart(units, SETTINGS)


def test_nothing_is_done_when_all_pods_are_up_to_date() -> None:
    assert decide(server(0), group(0), group(1)) == Nothing()


def test_name_servers_are_restarted_first_and_sequentially() -> None:
    units = [server(0, OLD), server(1, OLD), group(0, OLD), group(1, OLD)]
    assert decide(*units) == Restart(units[0])
    units[0] = server(0, ready=False)
    assert decide(*units) == Wait(units[0])
    units[0] = server(0)
    assert decide(*units) == Restart(units[1])


def test_writes_are_withdrawn_before_restart_if_another_broker_accepts_them() -> None:
    units = [group(0, OLD), group(1, OLD)]
    assert decide(*units) == Drain(units[0], "withdraw")


@pytest.mark.parametrize(
    ("drain", "expected"),
    [
        (info("withdraw", NOW_MS - 1_000), "withdraw"),
        (info("withdraw", NOW_MS - 10_000, NOW_MS - 500), "withdraw"),
        (info("withdraw", NOW_MS - 10_000, NOW_MS - 3_000), "refuse"),
        (info("withdraw", NOW_MS - 3_000, NOW_MS - 60_000), "refuse"),
        (info("withdraw", NOW_MS - 45_000, NOW_MS), "refuse"),
        (info("refuse", NOW_MS - 1_000), "refuse"),
    ],
    ids=["just begun", "still sends", "quiet", "quiet since before", "too long", "just refused"],
)
def test_sends_are_refused_when_they_cease_or_after_timeout(drain: About, expected: DrainMode) -> None:
    units = [group(0, OLD, of=drain), group(1, OLD)]
    assert decide(*units) == Drain(units[0], expected)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (group(1, of=info(since_ms=NOW_MS - 29_000)), "withdraw"),
        (group(1, of=info(since_ms=NOW_MS - 30_000)), "refuse"),
        (group(1, of=info(since_ms=NOW_MS - 30_000), unit={"surplus": True}), "refuse"),
    ],
    ids=["back a moment ago", "known", "known though it is to be removed"],
)
def test_quiet_broker_accepts_sends_until_clients_can_know_another(other: Unit, expected: DrainMode) -> None:
    units = [group(0, OLD, of=info("withdraw", NOW_MS - 10_000)), other]
    assert decide(*units) == Drain(units[0], expected)


def test_broker_is_restarted_shortly_after_sends_are_refused() -> None:
    units = [group(0, OLD, of=info("refuse", NOW_MS - 2_000)), group(1, OLD)]
    assert decide(*units) == Restart(units[0])


def test_broker_with_withdrawn_writes_is_next() -> None:
    units = [group(0, OLD), group(1, OLD, of=info("withdraw", NOW_MS - 1_000))]
    assert decide(*units) == Drain(units[1], "withdraw")


@pytest.mark.parametrize(
    "other",
    [None, group(1, of=info(decommissioned=True), unit={"surplus": True})],
    ids=["alone", "the other is terminating"],
)
def test_broker_is_restarted_immediately_if_no_other_accepts_writes(other: Unit | None) -> None:
    units = [group(0, OLD, of=info("none")), *([other] if other is not None else [])]
    assert decide(*units) == Restart(units[0])


def test_writes_move_to_surplus_group_if_no_other_accepts_them() -> None:
    helper = group(1, unit={"surplus": True})
    units = [group(0, OLD), helper]
    assert decide(*units) == Drain(units[0], "withdraw")
    withdrawn = group(1, of=info("withdraw"), unit={"surplus": True})
    assert decide(units[0], withdrawn) == HelpOut(units[0], (withdrawn,))
    assert decide(units[0], withdrawn, group(2)) == Drain(units[0], "withdraw")


def test_broker_waits_until_remaining_group_accepts_writes_again() -> None:
    units = [group(0, OLD), group(1, of=info("refuse")), group(2, unit={"surplus": True}, of=info("refuse"))]
    assert decide(*units) == HelpOut(units[0], ())


def test_working_pod_is_kept_while_another_is_not_ready() -> None:
    for waiting in (group(1, ready=False), group(1, terminating=True, ready=False)):
        units = [group(0, OLD), waiting]
        assert decide(*units) == Wait(waiting)
    missing = replace(group(1), pod=None)
    assert decide(group(0, OLD), missing) == Wait(missing)


def test_outdated_unready_pod_is_restarted_first() -> None:
    units = [group(0, OLD), group(1, OLD, ready=False)]
    assert decide(*units) == Restart(units[1])


def test_outdated_failing_pod_is_replaced_although_another_fails() -> None:
    units = [group(0, ready=False, problem="ImagePullBackOff"), group(1, OLD, ready=False, problem="CrashLoopBackOff")]
    assert decide(*units) == Restart(units[1])


def test_pod_failing_on_new_revision_stops_rollout() -> None:
    units = [group(0, ready=False, problem="ImagePullBackOff"), group(1, OLD), group(2, OLD, ready=False)]
    assert decide(*units) == Stop(units[0])


def test_nothing_is_restarted_while_a_target_revision_is_unknown() -> None:
    units = [group(0, OLD), replace(group(1), revision=None)]
    assert decide(*units) == Wait(units[1])


def test_rollout_waits_for_held_pod() -> None:
    units = [group(0, OLD, unit={"hold": "wait"}), group(1, OLD)]
    assert decide(*units) == Wait(units[0])


def test_surplus_group_is_restarted_only_if_down() -> None:
    leaving = group(2, OLD, unit={"surplus": True})
    assert decide(group(0), group(1), leaving) == Nothing()
    down = group(2, OLD, unit={"surplus": True}, ready=False)
    assert decide(group(0), group(1), down) == Restart(down)
    failing = group(2, unit={"surplus": True}, ready=False, problem="CrashLoopBackOff")
    units = [group(0, OLD), group(1), failing]
    assert decide(*units) == Drain(units[0], "withdraw")


def test_unreachable_broker_is_restarted_after_timeout() -> None:
    silent = replace(group(0, OLD), info=None, unreachable_s=44)
    assert decide(silent, group(1)) == Wait(silent)
    longer = replace(silent, unreachable_s=45)
    assert decide(longer, group(1)) == Restart(longer)


def test_decommissioned_broker_that_is_to_stay_is_restarted() -> None:
    units = [group(0), group(1, of=info("refuse", NOW_MS - 60_000, decommissioned=True))]
    assert decide(*units) == Restart(units[1])


def test_broken_pod_is_replaced_although_another_waits_for_its_node() -> None:
    lost = group(1, OLD, ready=False, terminating=True, problem="its node does not answer")
    units = [group(0, OLD, ready=False), lost, group(2, OLD)]
    assert decide(*units) == Restart(units[0])
    units[0] = group(0)
    assert decide(*units) == Stop(lost)
