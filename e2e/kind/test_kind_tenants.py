"""Two tenants of a Broker with `metadata: Own`: neither brokers, NameServers nor HTTP reveal one to the other."""

import base64
import io
import tarfile
import time
from collections.abc import Callable
from typing import Any

import pytest
from kind import objects
from kind.accounts import IN_FORCE_S, USER, account_of, has_new_key, user
from kind.clients import CLIENT_POD
from kind.lab import REPOSITORY_PATH
from kind.space import Space
from kind.waiting import wait_until

pytestmark = pytest.mark.timeout(420)

BROKER, TOPIC, NAME = "broker.delaymq.io", "topic.delaymq.io", "market"
ALPHA, BRAVO, ADMIN = "alpha-account", "bravo-account", "admin-account"
TESTING_PATH = REPOSITORY_PATH / "broker_image" / "testing"
PLAIN_SIGN_IN = {"httpPlainSignIn": "true"}
"""Without TLS, accounts may otherwise sign in to HTTP from the broker's own machine only."""
RATE = 50
ROLL_TIMEOUT_S = 240.0


def test_two_tenants_see_nothing_of_each_other(spaces: Callable[..., Space], note: Callable[..., None]) -> None:
    space = spaces("tenants")
    metrics = {"allowMetricsFrom": [{"podSelector": {"matchLabels": {"app": CLIENT_POD}}}]}
    space.apply(
        objects.broker(NAME, size=2, accessControl={"users": True}, networkPolicy=metrics, config=PLAIN_SIGN_IN),
        objects.topic("load", broker=NAME, queues=4, order=True),
        _tenant("alpha", load="PUB|SUB"),
        _tenant("bravo"),
        user(ADMIN, NAME, admin=True),
    )
    space.wait_broker_ready(NAME)
    for name in (ALPHA, BRAVO, ADMIN):
        space.wait_condition(USER, name, "Ready", reason="Active")
    space.wait_condition(TOPIC, "load", "Ready", reason="InEveryGroup")
    space.wait_client()
    alpha, bravo = account_of(space, ALPHA), account_of(space, BRAVO)
    name_servers = space.name_servers(NAME)
    assert space.client.ask("route", "load", name_servers=name_servers)["writable"]

    # The setting takes effect, and a key changes, while a tenant sends.
    load: dict[str, Any] = {
        "topic": "load",
        "name_servers": name_servers,
        "rate": RATE,
        "levels": "1",
        "at_most_s": 400,
    }
    first = space.client.produce(run="first", **load, **alpha)
    began = time.monotonic()
    space.patch(BROKER, NAME, {"spec": {"accessControl": {"metadata": "Own"}}})
    space.wait_broker_ready(NAME, timeout_s=ROLL_TIMEOUT_S)
    own_s = time.monotonic() - began
    began = time.monotonic()
    space.patch(USER, ALPHA, {"spec": {"rotation": {"overlap": "1h", "request": 1}}})
    wait_until("the Secret has a new key", lambda: has_new_key(space, ALPHA, alpha), timeout_s=IN_FORCE_S, every_s=0.5)
    new_key_s = time.monotonic() - began
    # Brokers and NameServers have the new key.
    newest = account_of(space, ALPHA)
    assert space.client.ask("stats", "load", name_servers=name_servers, **newest)
    second = space.client.produce(run="second", count=5 * RATE, **load, **newest)
    assert second.result() == {"acknowledged": 5 * RATE, "failed": 0}
    assert first.stop()["failed"] == 0, first.lines("failed")[:5]
    verdict = space.judge_when_done("load", first.sends() + second.sends(), NAME, groups=2)
    verdict.assert_clean()

    # The operator reads and changes order settings with its account.
    space.apply(objects.topic("later", broker=NAME, order=True))
    space.wait_condition(TOPIC, "later", "Ready", reason="InEveryGroup")
    assert "No accessKey is configured" in _refusal(space)
    assert "No default permission for topic:load" in _refusal(space, **bravo)
    requests = _compare(space, {"alpha": newest, "bravo": bravo, "admin": account_of(space, ADMIN)})
    note(own_s=own_s, new_key_s=new_key_s, **requests, **verdict.figures())


def _tenant(word: str, **topics: str) -> dict[str, Any]:
    """Return a tenant's User, with the permissions that the comparison requires."""
    names = ("Shared", *(f"{word}{name}" for name in ("Orders", "Inherit", "New", "Missing")))
    permissions = dict.fromkeys(names, "PUB|SUB") | topics
    return user(f"{word}-account", NAME, topics=permissions, groups={f"{word}Readers": "SUB"})


def _refusal(space: Space, **options: Any) -> str:
    """Return the reason for which a client gets no route."""
    with pytest.raises(AssertionError, match="ask route failed") as refused:
        space.client.ask("route", "load", name_servers=space.name_servers(NAME), **options)
    return str(refused.value)


def _compare(space: Space, accounts: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Compare what a tenant learns of the other with what it learns of nobody; return the numbers of requests."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(TESTING_PATH.glob("delaymq_testing/**/*.py")):
            archive.add(path, path.relative_to(TESTING_PATH))
    program = (
        "import base64,io,sys,tarfile;"
        "tarfile.open(fileobj=io.BytesIO(base64.b64decode(sys.stdin.read()))).extractall('/tmp/testing')"
    )
    text = base64.b64encode(packed.getvalue()).decode()
    space.kubectl("exec", "-i", space.client.name, "--", "python3.11", "-c", program, input=text)
    words: dict[str, Any] = {name: f"{each['access_key']}:{each['secret_key']}" for name, each in accounts.items()}
    comparing = space.client.start("tenants", name_servers=space.name_servers(NAME), testing="/tmp/testing", **words)
    result = comparing.result()
    assert result["found"] == {"broker": {}, "namesrv": {}, "http": {}}
    assert result["requests"]["broker"] > 2_000
    assert result["requests"]["namesrv"] > 100
    assert result["requests"]["http"] > 50
    return {f"requests_{name}": count for name, count in result["requests"].items()}
