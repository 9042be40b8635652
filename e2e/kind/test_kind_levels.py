"""Delay levels: changed while messages are pending, shared by Brokers, kept while in use."""

import time
from collections.abc import Callable

import pytest
from kind import objects
from kind.space import Space
from kind.waiting import NotYetError, stays, wait_until

pytestmark = pytest.mark.timeout(240)

BROKER = "broker.delaymq.io"
LEVELS = "delaylevelconfig.delaymq.io"
POD = "demo-broker-0-0"


def test_changed_levels_reach_brokers_without_restart_and_pending_messages_keep_due_times(
    spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    space.apply(objects.levels("short", "1s", "10s", "5s"))
    space.patch(BROKER, "demo", {"spec": {"delayLevelConfigRef": {"name": "short"}}})
    space.wait_condition(LEVELS, "short", "Ready", reason="Applied")
    name_servers = space.name_servers()
    before = space.pod_uids()
    # Level 2 is 10s now; it becomes 2s while these are pending.
    pending = space.client.produce(topic="orders", name_servers=name_servers, run="old", count=200, rate=400, levels=2)
    pending.result()
    changed = time.monotonic()
    space.apply(objects.levels("short", "1s", "2s", "5s"))

    def in_force() -> bool:
        delays = space.level_delays_ms(POD)
        if delays == [1000, 2000, 5000]:
            return True
        raise NotYetError(str(delays))

    wait_until("the running broker has the new levels", in_force, timeout_s=30)
    reached_s = time.monotonic() - changed
    after = space.client.produce(topic="orders", name_servers=name_servers, run="new", count=50, rate=400, levels=2)
    after.result()
    sends = pending.sends() + after.sends()
    verdict = space.judge_when_done("orders", sends)
    verdict.assert_clean()
    logged = {record.key: record for record in space.logged(POD, "orders")}
    old = [record.due_ms - record.stored_ms for key, record in logged.items() if key.startswith("old-")]
    new = [record.due_ms - record.stored_ms for key, record in logged.items() if key.startswith("new-")]
    assert len(old) == 200
    assert len(new) == 50
    # Due times are computed from the arrival, shortly before the record is stored.
    assert all(9_000 <= delay_ms <= 10_000 for delay_ms in old), (min(old), max(old))
    assert all(1_000 <= delay_ms <= 2_000 for delay_ms in new), (min(new), max(new))
    assert space.pod_uids() == before
    note(reached_after_s=reached_s, restarts=0, **verdict.figures())


def test_levels_in_use_are_kept_until_their_last_broker_is_deleted(
    spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("shared", client=False)
    # Paused Brokers use the levels too, and need no pods.
    space.apply(objects.levels("ours", "1s", "5s"))
    space.apply(*(objects.broker(name, paused=True, delayLevelConfigRef={"name": "ours"}) for name in ("one", "two")))
    wait_until(
        "both Brokers are named",
        lambda: space.get(LEVELS, "ours")["status"].get("usedBy") == ["one", "two"],
        timeout_s=30,
    )
    state = space.wait_condition(LEVELS, "ours", "InUse", status="True")
    space.kubectl("delete", LEVELS, "ours", "--wait=false")
    stays("levels in use are kept", lambda: space.find(LEVELS, "ours"), for_s=4, every_s=0.5)
    space.kubectl("delete", BROKER, "one", "--wait=true")
    stays("levels used by the other Broker are kept", lambda: space.find(LEVELS, "ours"), for_s=3, every_s=0.5)
    began = time.monotonic()
    space.kubectl("delete", BROKER, "two", "--wait=true")
    wait_until("the levels are deleted", lambda: space.find(LEVELS, "ours") is None, timeout_s=30)
    note(sentence=state["message"], gone_after_s=time.monotonic() - began)


def test_broker_waits_for_missing_levels_and_starts_when_they_appear(spaces: Callable[..., Space]) -> None:
    space = spaces("nolevels", client=False)
    space.apply_broker(delayLevelConfigRef={"name": "later"})
    state = space.wait_condition(BROKER, "demo", "Degraded", reason="DelayLevelConfigMissing")
    assert "later" in state["message"], state["message"]
    space.apply(objects.levels("later", "3s", "7s"))
    space.wait_broker_ready()
    assert space.level_delays_ms(POD) == [3000, 7000]
