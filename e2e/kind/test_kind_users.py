"""Accounts from Users: created, changed and deleted without a restart; a secret key changes under a steady load."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from kind import objects
from kind.accounts import IN_FORCE_S, USER, account_of, has_new_key, user
from kind.space import Space
from kind.waiting import NotYetError, stays, wait_until

pytestmark = pytest.mark.timeout(420)

TOPIC, NAME = "topic.delaymq.io", "shop"
PODS = f"app.kubernetes.io/instance={NAME}"
OVERLAP_S = 30


def test_secret_key_changes_under_load_without_a_failed_send(
    spaces: Callable[..., Space], note: Callable[..., None]
) -> None:
    space = spaces("users")
    space.apply(
        objects.broker(NAME, accessControl={"users": True}),
        objects.topic("orders", broker=NAME, queues=4),
        user("orders-service", NAME, topics={"orders": "PUB|SUB"}, groups={"billing": "SUB"}),
    )
    space.wait_broker_ready(NAME)
    space.wait_condition(USER, "orders-service", "Ready", reason="Active")
    # The operator created the topic with its own account.
    space.wait_condition(TOPIC, "orders", "Ready", reason="InEveryGroup")
    before = space.pod_uids(PODS)
    space.wait_client()
    former = account_of(space, "orders-service")
    assert "No accessKey is configured" in _refusal(space)

    new_account_s = _add_and_change(space)
    # The key changes under load: a client with the former key, and one that starts when the Secret has the new key.
    load: dict[str, Any] = {
        "topic": "orders",
        "name_servers": space.name_servers(NAME),
        "rate": 50,
        "levels": objects.LEVEL_OF["1s"],
    }
    first = space.client.produce(run="former", count=100_000, at_most_s=240, retries=0, **load, **former)
    consumer = space.client.consume(
        topic="orders", group="billing", name_servers=load["name_servers"], at_most_s=240, **former
    )
    began = time.monotonic()
    rotation = {"overlap": f"{OVERLAP_S}s", "request": "2026-11-29"}
    space.patch(USER, "orders-service", {"spec": {"rotation": rotation}})
    wait_until(
        "the Secret has a new key",
        lambda: has_new_key(space, "orders-service", former),
        timeout_s=IN_FORCE_S,
        every_s=0.5,
    )
    new_key_s = time.monotonic() - began
    current = account_of(space, "orders-service")
    second = space.client.produce(run="current", count=100_000, at_most_s=240, retries=0, **load, **current)
    time.sleep(OVERLAP_S / 2)
    ended = [first.stop(), second.stop()]
    consumer.stop()
    assert [each["failed"] for each in ended] == [0, 0]
    assert all(each["acknowledged"] > 100 for each in ended)

    # After the overlap, the former key is invalid.
    wait_until(
        "the former key is invalid",
        lambda: _is_rejected(space, former),
        timeout_s=OVERLAP_S + IN_FORCE_S,
        every_s=2,
    )
    former_key_s = time.monotonic() - began
    assert _send(space, "afterwards", current) == {"acknowledged": 5, "failed": 0}

    _delete(space, "audit-service")
    stays("no pod restarts", lambda: space.pod_uids(PODS) == before, for_s=2)
    sends = sum(each["acknowledged"] for each in ended)
    note(
        new_account_s=new_account_s,
        new_key_s=new_key_s,
        former_key_invalid_s=former_key_s,
        sends=sends,
        failed=0,
        restarts=0,
    )


def _add_and_change(space: Space) -> float:
    """A User is served as soon as it is ready, with exactly its permissions. Return the time until then."""
    began = time.monotonic()
    space.apply(user("audit-service", NAME, topics={"orders": "DENY"}))
    space.wait_condition(USER, "audit-service", "Ready", reason="Active", timeout_s=IN_FORCE_S)
    new_account_s = time.monotonic() - began
    audit = account_of(space, "audit-service")
    assert "No default permission for topic:orders" in _send_failure(space, audit)
    space.apply(user("audit-service", NAME, topics={"orders": "PUB"}))
    _wait_observed(space, "audit-service")
    assert _send(space, "permitted", audit) == {"acknowledged": 5, "failed": 0}
    return new_account_s


def _delete(space: Space, user: str) -> None:
    """Delete a User, and wait until its account is invalid and its Secret is deleted."""
    account = account_of(space, user)
    space.kubectl("delete", USER, user, "--wait=true")
    wait_until("the account is deleted", lambda: _is_unknown(space, account), timeout_s=IN_FORCE_S, every_s=2)
    wait_until("the Secret is deleted", lambda: space.find("secret", f"{user}-credentials") is None, timeout_s=30)


def _wait_observed(space: Space, name: str) -> None:
    def ask() -> bool:
        found = space.get(USER, name)
        ready = space.condition(USER, name, "Ready")
        if found["status"]["observedGeneration"] != found["metadata"]["generation"] or ready["status"] != "True":
            raise NotYetError(ready["message"])
        return True

    wait_until(f"{name} is in force", ask, timeout_s=IN_FORCE_S, every_s=0.5)


def _send(space: Space, run: str, account: dict[str, Any], *, count: int = 5) -> Any:
    producer = space.client.produce(
        topic="orders",
        name_servers=space.name_servers(NAME),
        run=run,
        count=count,
        rate=50,
        levels=objects.LEVEL_OF["1s"],
        **account,
    )
    return producer.result()


def _send_failure(space: Space, account: dict[str, Any]) -> str:
    """The reason for which the sends of an account fail."""
    before = space.client.failed_sends()
    assert _send(space, "denied", account, count=1) == {"acknowledged": 0, "failed": 1}
    [reason] = space.client.failed_sends() - before
    return str(reason)


def _refusal(space: Space, **options: Any) -> str:
    """The remark to a rejected client; AssertionError if it is served."""
    with pytest.raises(AssertionError, match="ask stats failed") as refused:
        space.client.ask("stats", "orders", name_servers=space.name_servers(NAME), **options)
    return str(refused.value)


def _is_rejected(space: Space, account: dict[str, Any]) -> bool:
    return _has_refusal(space, account, "secret key does not match")


def _is_unknown(space: Space, account: dict[str, Any]) -> bool:
    return _has_refusal(space, account, "No acl config")


def _has_refusal(space: Space, account: dict[str, Any], text: str) -> bool:
    try:
        space.client.ask("stats", "orders", name_servers=space.name_servers(NAME), **account)
    except AssertionError as error:
        return text in str(error)
    raise NotYetError("the account is served")
