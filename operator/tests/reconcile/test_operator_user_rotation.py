"""Changes of a User's secret key: no request of a client is rejected, also if the operator dies between two steps."""

from __future__ import annotations

import random
from typing import Any

import pytest
from delaymq.access.plain_acl import parse
from delaymq_operator_testing.fakes.world import NAMESPACE
from delaymq_operator_testing.worlds.users import CONTROL, UsersWorld
from delaymq_testing.repetitions import DEATHS_SHARE, SEED, one_in

NAME = "orders-service"
LAGS_MS = {"demo-broker-0-0": 3_000, "demo-broker-1-0": 7_000}
OVERLAP_S = 14


def settled_world(metadata: str = "Open", **rotation: Any) -> UsersWorld:
    """A Broker whose kubelets and clients are late, and a User in force."""
    world = UsersWorld()
    world.create(accessControl=CONTROL | {"metadata": metadata}, size=2)
    world.user(NAME, rotation={"overlap": f"{OVERLAP_S}s"} | rotation)
    world.run(lambda: world.settled and world.ready(NAME) == ("True", "Active"), ticks=200)
    world.brokers.rules.lags_ms, world.client_lag_ms = dict(LAGS_MS), 10_000
    return world


def keys(world: UsersWorld) -> tuple[str, ...]:
    """Return the valid secret keys in the Secret with the rules."""
    rules = world.secret("demo-users")
    account = parse(rules["plain_acl.yml"], 0).account(NAME) if rules is not None else None
    return () if account is None else account.entry.secret_keys


def rotated(world: UsersWorld, before: str | None) -> bool:
    """Return whether clients and all brokers have another key only."""
    now = world.key_of(NAME)
    if now in (before, None) or keys(world) != (now,):
        return False
    rules = world.brokers.rules
    return all(not rules.accepts(pod, NAME, before or "") for pod in world.brokers.running)


def test_key_changes_on_request_in_three_steps() -> None:
    world = settled_world()
    old = world.key_of(NAME)
    world.user(NAME, rotation={"overlap": f"{OVERLAP_S}s", "request": "2026-11-29"})
    world.idle(6)
    # One of two kubelets is late: clients do not have the key yet.
    new, former = keys(world)
    assert (former, world.key_of(NAME)) == (old, old)
    assert world.ready(NAME) == ("False", "Distributing")
    assert "demo-broker-1-0 (its kubelet has not" in world.message(NAME)
    assert "demo-broker-0-0" not in world.message(NAME)
    world.run(lambda: world.key_of(NAME) == new, ticks=60)
    issued_ms = world.now_ms
    assert keys(world) == (new, old)
    world.run(lambda: keys(world) == (new,), ticks=200)
    assert OVERLAP_S <= (world.now_ms - issued_ms) / 1000 <= OVERLAP_S + 3
    world.run(lambda: rotated(world, old), ticks=100)
    assert world.refused == []
    reasons = [message for _, reason, message in world.kube.events if reason == "SecretKeyChanged"]
    assert len(reasons) == 4  # with that of the first key
    # The same value requests nothing again, also after a restart.
    world.restart_operator()
    world.idle(30)
    assert keys(world) == (new,)


def test_status_states_when_the_former_key_ends() -> None:
    world = settled_world()
    before = world.user_status(NAME)["rotatedAt"]
    world.user(NAME, rotation={"overlap": f"{OVERLAP_S}s", "request": 1})
    world.idle(4)
    assert world.user_status(NAME)["rotatedAt"] == before
    world.run(lambda: "formerKeyUntil" in world.user_status(NAME), ticks=100)
    assert world.user_status(NAME)["rotatedAt"] > before
    assert f"valid until {world.user_status(NAME)['formerKeyUntil']}" in world.message(NAME)
    world.run(lambda: "formerKeyUntil" not in world.user_status(NAME), ticks=200)


def test_key_changes_regularly_and_the_user_stays_ready() -> None:
    world = settled_world(every="40s")
    seen = {world.key_of(NAME)}
    for _ in range(150):
        world.step()
        seen.add(world.key_of(NAME))
        assert world.ready(NAME)[0] == "True"
    assert len(seen) >= 3
    assert world.refused == []


def test_request_during_the_overlap_waits_for_its_end() -> None:
    world = settled_world()
    old = world.key_of(NAME)
    world.user(NAME, rotation={"overlap": f"{OVERLAP_S}s", "request": 1})
    world.run(lambda: world.key_of(NAME) != old, ticks=100)
    second = world.key_of(NAME)
    world.user(NAME, rotation={"overlap": f"{OVERLAP_S}s", "request": 2})
    world.idle(OVERLAP_S - 4)
    assert keys(world) == (second, old)
    world.run(lambda: world.key_of(NAME) not in (old, second), ticks=300)
    world.run(lambda: rotated(world, second), ticks=300)
    assert world.refused == []


def test_shorter_overlap_ends_the_former_key_at_once() -> None:
    world = settled_world()
    old = world.key_of(NAME)
    world.user(NAME, rotation={"overlap": "24h", "request": 1})
    world.run(lambda: world.key_of(NAME) != old, ticks=100)
    world.idle(5)
    world.user(NAME, rotation={"overlap": "0s", "request": 1})
    world.idle(2)
    assert keys(world) == (world.key_of(NAME),)


def test_deleted_secret_is_created_with_a_new_key_and_running_clients_continue() -> None:
    world = settled_world()
    old = world.key_of(NAME)
    world.kube.remove("Secret", NAMESPACE, f"{NAME}-credentials")
    world.idle(5)
    assert world.key_of(NAME) is None
    assert keys(world)[1:] == (old,)
    world.run(lambda: world.key_of(NAME) is not None, ticks=100)
    assert world.key_of(NAME) == keys(world)[0] != old
    world.run(lambda: rotated(world, old), ticks=300)
    assert world.refused == []


def test_unreachable_and_stopped_brokers_delay_the_key() -> None:
    world = settled_world()
    old = world.key_of(NAME)
    world.brokers.mute.add("demo-broker-1-0")
    world.user(NAME, rotation={"overlap": f"{OVERLAP_S}s", "request": 1})
    world.idle(20)
    assert world.key_of(NAME) == old
    assert "demo-broker-1-0 (it does not respond: no response within 5 s)" in world.message(NAME)
    world.brokers.mute.clear()
    world.run(lambda: rotated(world, old), ticks=400)
    assert world.refused == []


def test_first_key_waits_for_running_brokers_only() -> None:
    world = UsersWorld()
    world.user(NAME)
    world.create(accessControl=CONTROL, size=2)
    world.run(lambda: world.key_of(NAME) is not None, ticks=3)  # before there is any pod
    world.run(lambda: world.ready(NAME) == ("True", "Active"), ticks=100)
    world.brokers.mute.add("demo-broker-1-0")
    world.brokers.rules.lags_ms = {"demo-broker-0-0": 9_000}
    world.user("billing-service")
    world.idle(6)
    assert world.key_of("billing-service") is None
    world.run(lambda: world.key_of("billing-service") is not None, ticks=20)
    assert world.ready("billing-service") == ("False", "Distributing")


def test_group_with_replicas_needs_the_confirmation_of_every_member() -> None:
    world = UsersWorld()
    world.create(accessControl=CONTROL, size=1, replicasPerGroup=2)
    world.user(NAME, rotation={"overlap": "12s"})
    world.run(lambda: world.settled and world.ready(NAME) == ("True", "Active"), ticks=400)
    world.brokers.rules.lags_ms, world.client_lag_ms = {"demo-broker-0-1": 12_000}, 8_000
    old = world.key_of(NAME)
    world.user(NAME, rotation={"overlap": "12s", "request": 1})
    world.idle(8)
    assert world.key_of(NAME) == old
    assert "demo-broker-0-1" in world.message(NAME)
    world.run(lambda: rotated(world, old), ticks=400)
    assert world.refused == []


def history(dies_at: int | None, *, after: bool) -> tuple[UsersWorld, int]:
    """Run a change of the key; return the world and the number of calls. The operator dies at one of them."""
    world = settled_world()
    world.calls.clear()
    world.dies_at, world.dies_after = dies_at, after
    old = world.key_of(NAME)
    world.user(NAME, rotation={"overlap": f"{OVERLAP_S}s", "request": 1})
    seen = {old}

    def done() -> bool:
        seen.add(world.key_of(NAME))
        return rotated(world, old) and world.ready(NAME) == ("True", "Active")

    world.run(done, ticks=500)
    assert world.refused == []
    assert len(seen) == 2, "a second key was created"
    return world, len(world.calls)


def writes(world: UsersWorld) -> list[int]:
    """Return the numbers of the calls that change something, and of their neighbours."""
    found = [number for number, call in enumerate(world.calls, 1) if call.startswith(("apply", "patch", "create"))]
    return sorted({number + distance for number in found for distance in (-1, 0, 1)} - {0})


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
def test_operator_may_die_at_every_change(after: bool) -> None:
    world, _ = history(None, after=False)
    numbers = writes(world)
    assert len(numbers) >= 12
    for number in one_in(DEATHS_SHARE, numbers):
        died, _ = history(number, after=after)
        assert died.deaths == 1, number


@pytest.mark.parametrize("seed", range(SEED * 1_000, SEED * 1_000 + 3))
def test_no_request_is_rejected_in_random_histories(seed: int) -> None:
    """Restarts of the operator and of brokers, late caches, lost Secrets, and changes of the User, at random times."""
    chance = random.Random(seed)
    world = settled_world()
    world.client_lag_ms = chance.randrange(0, OVERLAP_S * 1000 - 3_000)
    world.brokers.rules.lags_ms = {pod: chance.randrange(0, 12_000) for pod in LAGS_MS}
    world.lag_ticks = chance.randrange(3)
    request = 0
    for _ in range(250):
        world.step()
        dice = chance.random()
        if dice < 0.02:
            world.restart_operator()
        elif dice < 0.06:
            request += 1
            permission = chance.choice(["PUB", "SUB", "DENY"])
            world.user(
                NAME,
                rotation={"overlap": f"{OVERLAP_S}s", "request": request},
                topics=[{"name": "orders", "permission": permission}],
            )
        elif dice < 0.08 and world.key_of(NAME) is not None and len(keys(world)) == 1:
            world.kube.remove("Secret", NAMESPACE, f"{NAME}-credentials")
        elif dice < 0.11:
            world.calls.clear()
            world.dies_at, world.dies_after = chance.randrange(1, 30), chance.random() < 0.5
        assert world.refused == []
    world.dies_at = None
    world.run(lambda: world.ready(NAME) == ("True", "Active") and len(keys(world)) == 1, ticks=1_000)


def test_name_servers_that_restrict_queries_confirm_the_key() -> None:
    world = settled_world(metadata="Own")
    world.brokers.rules.lags_ms = {"demo-namesrv-0": 12_000}
    old = world.key_of(NAME)
    world.user(NAME, rotation={"overlap": f"{OVERLAP_S}s", "request": 1})
    world.idle(6)
    assert world.key_of(NAME) == old
    assert world.message(NAME).startswith("Clients receive a new secret key when all brokers and NameServers have it.")
    assert "demo-namesrv-0 (its kubelet has not delivered the rules yet)" in world.message(NAME)
    world.run(lambda: rotated(world, old), ticks=400)
    assert world.refused == []
    world.run(lambda: world.message(NAME) == "All brokers and NameServers have the account.", ticks=100)
    assert not world.brokers.rules.accepts("demo-namesrv-0", NAME, old or "")


def test_name_servers_confirm_the_key_until_they_no_longer_restrict_queries() -> None:
    world = settled_world(metadata="Own")
    old = world.key_of(NAME)
    # The only NameServer does not deliver rules, and its pod is not replaced while the Broker is changing.
    world.brokers.rules.lags_ms = {"demo-namesrv-0": 60_000}
    uid = world.pod_uids()["demo-namesrv-0"]
    world.change(accessControl=CONTROL | {"metadata": "Open"})
    world.user(NAME, rotation={"overlap": f"{OVERLAP_S}s", "request": 1})
    while world.pod_uids().get("demo-namesrv-0") == uid:
        assert world.key_of(NAME) == old
        world.step()
    world.run(lambda: rotated(world, old), ticks=400)
    assert world.refused == []
