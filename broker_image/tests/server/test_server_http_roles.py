"""Every HTTP route as anonymous, as two tenants, and with each role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from delaymq.server.api.routes import ROUTES
from delaymq.server.http.sign_in.needs import Needs
from delaymq_testing.accounts.http_accounts import SECRETS, TOKEN, GuardedBroker, bearer
from delaymq_testing.cli_running import called

ALL = frozenset({"tenant-a", "tenant-b", "reader-1", "operator", "manager", "admin-1", "token"})
ADMINISTER = frozenset({"manager", "admin-1", "token"})
OPERATE = ADMINISTER | {"operator"}
READ = OPERATE | {"reader-1"}
OF_A = frozenset({"tenant-a"})

ALLOWED: dict[tuple[str, str], frozenset[str]] = {
    ("GET", "/api/v1/openapi.json"): ALL,
    ("GET", "/api/v1/session"): ALL,
    ("DELETE", "/api/v1/session"): ALL,
    ("GET", "/api/v1/cluster"): ALL,
    ("GET", "/api/v1/totals"): READ,
    ("GET", "/api/v1/broker"): READ,
    ("GET", "/api/v1/config"): READ,
    ("GET", "/api/v1/log-level"): READ,
    ("PUT", "/api/v1/log-level"): OPERATE,
    ("GET", "/api/v1/accounts"): ADMINISTER,
    ("GET", "/api/v1/audit"): ADMINISTER,
    ("GET", "/api/v1/plain-slaves"): READ,
    ("GET", "/api/v1/drain"): READ,
    ("POST", "/api/v1/drain"): OPERATE,
    ("GET", "/api/v1/replication"): READ,
    ("POST", "/api/v1/replication/switchover"): ADMINISTER,
    ("POST", "/api/v1/replication/promote"): ADMINISTER,
    ("POST", "/api/v1/replication/prepare-detach"): ADMINISTER,
    ("POST", "/api/v1/replication/detach"): ADMINISTER,
    ("GET", "/api/v1/remaining"): READ,
    ("POST", "/api/v1/decommission"): ADMINISTER,
    ("GET", "/api/v1/topics"): ALL,
    ("GET", "/api/v1/topics/{topic}"): READ | OF_A,
    ("POST", "/api/v1/topics/{topic}/messages"): ADMINISTER | OF_A,
    ("GET", "/api/v1/groups"): ALL,
    ("GET", "/api/v1/groups/{group}"): READ | OF_A,
    ("GET", "/api/v1/messages"): ADMINISTER | OF_A,
    ("GET", "/api/v1/messages/{id}"): ADMINISTER | OF_A,
    ("POST", "/api/v1/deadletters/{group}/resend"): OPERATE | OF_A,
    ("POST", "/api/v1/offsets/forget"): ADMINISTER,
    ("GET", "/api/v1/delay"): READ,
    ("GET", "/api/v1/delay/pending"): READ | OF_A,
    ("GET", "/api/v1/delay/pending/messages"): READ | OF_A,
    ("GET", "/api/v1/delay/forecast"): READ | OF_A,
    ("POST", "/api/v1/delay/changes"): OPERATE | OF_A,
    ("GET", "/api/v1/delay/settings"): READ,
    ("GET", "/api/v1/delay/settings/topics/{topic}"): READ | OF_A,
    ("PUT", "/api/v1/delay/settings/topics/{topic}"): ADMINISTER,
    ("GET", "/api/v1/delay/settings/accounts/{account}"): READ,
    ("PUT", "/api/v1/delay/settings/accounts/{account}"): ADMINISTER,
    ("POST", "/api/v1/delay/pause"): OPERATE,
    ("POST", "/api/v1/delay/resume"): OPERATE,
    ("GET", "/api/v1/store"): ADMINISTER,
    ("GET", "/api/v1/store/positions"): ADMINISTER,
    ("GET", "/api/v1/store/files"): ADMINISTER,
    ("GET", "/api/v1/store/segments/{name}"): ADMINISTER,
    ("GET", "/api/v1/store/segments/{name}/starts"): ADMINISTER,
    ("POST", "/api/v1/store/pins"): ADMINISTER,
    ("DELETE", "/api/v1/store/pins/{holder}"): ADMINISTER,
}
"""Callers that a route on TopicA or GroupA does not refuse, by the route."""
OPEN = {("GET", "/livez"), ("GET", "/readyz"), ("GET", "/metrics"), ("POST", "/api/v1/session")}
QUERIES = {
    "/api/v1/messages": "?topic=TopicA",
    "/api/v1/messages/{id}": "?topic=TopicA",
    "/api/v1/delay/pending": "?topic=TopicA",
    "/api/v1/delay/pending/messages": "?topic=TopicA",
    "/api/v1/delay/forecast": "?topic=TopicA",
    "/api/v1/store/segments/{name}/starts": "?every=1048576",
}
BODIES: dict[str, Any] = {
    "/api/v1/topics/{topic}/messages": {"body": "x"},
    "/api/v1/delay/changes": {"action": "cancel", "topic": "TopicA", "key": "absent"},
    "/api/v1/drain": {"mode": "none"},
    "/api/v1/log-level": {"level": "info"},
    "/api/v1/delay/resume": {"overdue": "deliver"},
    "/api/v1/deadletters/{group}/resend": {"messages": []},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    made = GuardedBroker(tmp_path_factory.mktemp("roles"))
    with made.running():
        for topic in ("TopicA", "TopicB", "OnlySent"):
            sent: dict[str, Any] = {"body": f"body of {topic}", "keys": ["shared"], "delayMs": 3_600_000}
            sent["properties"] = {"customer": "4711"}
            for body in (sent, {"body": f"now {topic}", "keys": ["shared"]}):
                assert made.ask("POST", f"/api/v1/topics/{topic}/messages", body, **bearer(TOKEN)).status == 200
        administrator = {"DELAYMQ_ACCESS_KEY": "admin-1", "DELAYMQ_SECRET_KEY": SECRETS["admin-1"]}
        created = called("group", "create", "GroupA", environment=made.environment | administrator)
        assert created.code == 0, created.err
        yield made


@pytest.fixture(scope="module")
def callers(broker: GuardedBroker) -> dict[str, dict[str, str]]:
    return {**{name: broker.as_account(name) for name in SECRETS}, "token": bearer(TOKEN)}


def test_every_route_declares_what_it_needs() -> None:
    declared = {(route.method, route.path) for route in ROUTES}
    assert declared == {*ALLOWED, *OPEN}
    assert all(isinstance(route.needs, Needs) for route in ROUTES)
    assert {(route.method, route.path) for route in ROUTES if route.needs.is_open} == OPEN


@pytest.mark.parametrize(("method", "template"), [key for key in ALLOWED if key[1] != "/api/v1/decommission"])
def test_route_is_refused_without_its_needs(
    broker: GuardedBroker, callers: dict[str, dict[str, str]], method: str, template: str
) -> None:
    values = {"topic": "TopicA", "group": "GroupA", "id": "absent", "account": "tenant-a", "name": "0", "holder": "h"}
    path = template.format(**values) + QUERIES.get(template, "")
    body = BODIES.get(template, {}) if method in ("POST", "PUT") else None
    assert broker.ask(method, path, body).code == "sign_in_needed"
    assert broker.ask(method, path, body, **bearer("wrong")).code == "unauthorized"
    assert broker.ask(method, path, body, **bearer("dmqs_wrong")).code == "session_ended"
    allowed = set()
    for name, headers in callers.items():
        if (method, template) == ("DELETE", "/api/v1/session"):
            headers = broker.as_account(name) if name in SECRETS else headers
        reply = broker.ask(method, path, body, **headers)
        assert reply.status < 500 or reply.code == "store_failed", reply.body
        if reply.status not in (401, 403):
            allowed.add(name)
        else:
            assert reply.code in ("role_needed", "permission_needed")
            assert name in reply.json["error"]["message"]
    assert allowed == ALLOWED[method, template]


def test_lists_contain_what_the_caller_may_know(broker: GuardedBroker, callers: dict[str, dict[str, str]]) -> None:
    def topics(name: str) -> set[str]:
        rows = broker.ask("GET", "/api/v1/topics", **callers[name]).json
        assert rows["total"] == len(rows["topics"])
        return {each["topic"] for each in rows["topics"]} & {"TopicA", "TopicB", "OnlySent"}

    assert topics("tenant-a") == {"TopicA", "OnlySent"}
    assert topics("tenant-b") == {"TopicB"}
    assert topics("reader-1") == topics("admin-1") == {"TopicA", "TopicB", "OnlySent"}

    def pending(name: str, by: str) -> tuple[set[str | None], int]:
        found = broker.ask("GET", f"/api/v1/delay/pending?by={by}", **callers[name]).json
        return {each.get("topic") for each in found["rows"]}, found["total"]

    assert pending("tenant-a", "topic") == ({"TopicA", "OnlySent"}, 2)
    assert pending("tenant-b", "topic") == ({"TopicB"}, 1)
    assert [pending(name, "level")[1] for name in ("tenant-a", "tenant-b", "reader-1")] == [2, 1, 3]
    assert [pending(name, "due")[1] for name in ("tenant-a", "tenant-b", "operator")] == [2, 1, 3]
    forecasts = {name: broker.ask("GET", "/api/v1/delay/forecast", **callers[name]).json for name in SECRETS}
    assert {name: each["pending"] for name, each in forecasts.items()} == dict.fromkeys(SECRETS, 3) | {
        "tenant-a": 2,
        "tenant-b": 1,
    }
    assert {each["topic"] for each in forecasts["tenant-b"]["topics"]} == {"TopicB"}

    def listed(name: str) -> set[str]:
        found = broker.ask("GET", "/api/v1/delay/pending/messages", **callers[name]).json
        assert found["total"] == len(found["messages"])
        if name.startswith("tenant"):
            assert not any(each.startswith("__DMQ") for row in found["messages"] for each in row["properties"])
        return {each["topic"] for each in found["messages"]}

    # The permission to send shows no messages.
    assert listed("tenant-a") == {"TopicA"}
    assert listed("reader-1") == listed("manager") == {"TopicA", "TopicB", "OnlySent"}


def test_role_read_shows_pending_messages_without_what_their_producers_wrote(
    broker: GuardedBroker, callers: dict[str, dict[str, str]]
) -> None:
    properties = {
        name: [set(row["properties"]) for row in broker.ask("GET", path, **callers[name]).json["messages"]]
        for name in ("reader-1", "operator", "tenant-a", "manager")
        for path in ("/api/v1/delay/pending/messages?topic=TopicA",)
    }
    assert properties["reader-1"] == properties["operator"] == [{"UNIQ_KEY", "TIMER_OUT_MS"}]
    assert all("customer" in each for name in ("tenant-a", "manager") for each in properties[name])


def test_messages_of_others_look_as_if_they_did_not_exist(
    broker: GuardedBroker, callers: dict[str, dict[str, str]]
) -> None:
    rows = broker.ask("GET", "/api/v1/messages?topic=TopicB&key=shared", **callers["tenant-b"]).json["messages"]
    assert {each["state"] for each in rows} == {"stored", "pending"}
    for row in rows:
        path = f"/api/v1/messages/{row['offsetMessageId']}"
        absent = f"/api/v1/messages/{row['offsetMessageId'][:-8]}7FFFFFF0"
        assert broker.ask("GET", path, **callers["tenant-b"]).status == 200
        for name in ("tenant-a", "reader-1", "operator"):
            refused, unknown = (broker.ask("GET", each, **callers[name]) for each in (path, absent))
            assert refused.status == unknown.status == 404
            assert refused.json["error"]["message"].replace(path[-32:], "") == unknown.json["error"]["message"].replace(
                absent[-32:], ""
            )
            assert b"TopicB" not in refused.body
        # The topic of another message does not give access.
        assert broker.ask("GET", f"{path}?topic=TopicA", **callers["tenant-a"]).status == 404
    assert broker.ask("GET", "/api/v1/messages?topic=TopicB&key=shared", **callers["tenant-a"]).status == 403
    for topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "rmq_sys_delaymq_marks"):
        assert broker.ask("GET", f"/api/v1/messages?topic={topic}", **callers["tenant-a"]).status == 403


def test_resend_does_not_tell_the_topics_of_other_messages(
    broker: GuardedBroker, callers: dict[str, dict[str, str]]
) -> None:
    (row, *_) = broker.ask("GET", "/api/v1/messages?topic=TopicB&key=shared", **callers["tenant-b"]).json["messages"]
    body = {"messages": [{"offsetMessageId": row["offsetMessageId"]}]}
    for name in ("tenant-a", "operator"):
        reply = broker.ask("POST", "/api/v1/deadletters/GroupA/resend", body, **callers[name])
        assert (b"TopicB" in reply.body) is (name == "operator"), reply.body


def test_topic_in_the_body_is_the_one_that_is_changed(
    broker: GuardedBroker, callers: dict[str, dict[str, str]]
) -> None:
    both = (
        b'{"action":"cancel","topic":"TopicA","topic":"TopicB","key":"k"}',
        b'{"action":"cancel","topic":"TopicB","topic":"TopicA","key":"k"}',
        b'{"action":"cancel","topic":"TopicB","\\u0074opic":"TopicA","key":"k"}',
    )
    replies = [broker.ask("POST", "/api/v1/delay/changes", each, **callers["tenant-a"]) for each in both]
    assert [each.status for each in replies] == [403, 404, 404]  # the last member counts, for both
    assert all(b"TopicB" not in each.body for each in replies[1:])
    for body in (b"", b"[]", b'{"topic":["TopicB"]}', b"{" * 1_000):
        assert broker.ask("POST", "/api/v1/delay/changes", body, **callers["tenant-a"]).status == 400


def test_pending_messages_belong_to_the_account_that_sent_them_over_http(
    broker: GuardedBroker, callers: dict[str, dict[str, str]]
) -> None:
    body = {"body": "x", "delayMs": 3_600_000, "delayKey": "mine"}
    assert broker.ask("POST", "/api/v1/topics/TopicA/messages", body, **callers["tenant-a"]).status == 200
    found = broker.ask("GET", "/api/v1/delay/settings/accounts/tenant-a", **callers["manager"]).json
    assert found["pending"] == 1
    cancel = {"action": "cancel", "topic": "TopicA", "key": "mine"}
    assert broker.ask("POST", "/api/v1/delay/changes", cancel, **callers["tenant-b"]).status == 403
    assert broker.ask("POST", "/api/v1/delay/changes", cancel, **callers["tenant-a"]).status == 200
    rows = broker.ask("GET", "/api/v1/audit?action=delay.cancel&result=done", **callers["admin-1"]).json["lines"]
    assert [(each["account"], each["verified"]) for each in rows] == [("tenant-a", True)]
    path = "/api/v1/audit?action=delay.cancel&account=tenant-b"
    refused = broker.ask("GET", path, **callers["admin-1"]).json["lines"]
    assert refused
    assert all((each["result"], each["verified"]) == ("refused", True) for each in refused)


def test_only_administrators_take_the_broker_out_of_service(
    broker: GuardedBroker, callers: dict[str, dict[str, str]]
) -> None:
    # The last test, because it succeeds.
    path = "/api/v1/decommission"
    statuses = {name: broker.ask("POST", path, {}, **callers[name]).status for name in sorted(ALL - {"token"})}
    allowed = {name for name, status in statuses.items() if status == 202}
    assert allowed == ADMINISTER - {"token"}
    assert set(statuses.values()) == {202, 403}
