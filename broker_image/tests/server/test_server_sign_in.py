"""Sign-in over HTTP: cookies, other origins, limits, the audit log, and closed metrics."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delaymq_testing.accounts.http_accounts import RULES, TOKEN, GuardedBroker, Reply, ask, bearer, sign_in, token_of

PROXY, SESSION = "127.0.0.9", "/api/v1/session"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    made = GuardedBroker(tmp_path_factory.mktemp("sign-in"), f"httpTrustedProxies={PROXY}\nhttpMetricsToken=m3trics\n")
    with made.running():
        yield made


def by_cookie(broker: GuardedBroker, account: str = "operator", **headers: str) -> tuple[Reply, str]:
    """Sign in like the console: the response, and the cookie as a browser returns it."""
    keys = {"accessKey": account, "secretKey": f"{account}-secret"}
    reply = broker.ask("POST", SESSION, keys, **headers)
    return reply, (reply.headers["Set-Cookie"] or "").partition(";")[0]


def own(broker: GuardedBroker) -> str:
    return f"http://127.0.0.1:{broker.http_port}"


def test_cookie_is_hardened_and_ends_with_the_session(broker: GuardedBroker) -> None:
    reply, cookie = by_cookie(broker)
    assert reply.status == 200
    assert "token" not in reply.json or reply.json["token"] is None
    attributes = {part.strip() for part in reply.headers["Set-Cookie"].split(";")[1:]}
    assert attributes == {"HttpOnly", "Path=/", "SameSite=Strict"}
    assert cookie.startswith("delaymq-session-")
    state = broker.ask("GET", SESSION, Cookie=cookie).json
    assert (state["account"], state["role"], state["accessControl"]) == ("operator", "operate", True)
    assert 0 < state["idleExpiresMs"] - state["asOfMs"] <= 1_800_000
    assert 0 < state["expiresMs"] - state["asOfMs"] <= 43_200_000
    ended = broker.ask("DELETE", SESSION, Cookie=cookie, Origin=own(broker))
    assert ended.json == {"signedOut": True}
    assert "Max-Age=0" in ended.headers["Set-Cookie"]
    after = broker.ask("GET", SESSION, Cookie=cookie)
    assert (after.status, after.code) == (401, "session_ended")
    assert "Max-Age=0" in after.headers["Set-Cookie"]


def test_cookie_of_a_tls_connection_is_secure_and_of_this_host_only(broker: GuardedBroker) -> None:
    through = {"X_Forwarded_Proto": "https", "X_Forwarded_For": "192.0.2.7"}
    keys = {"accessKey": "operator", "secretKey": "operator-secret"}
    reply = ask(broker.http_port, "POST", SESSION, keys, source=PROXY, **through)
    assert reply.status == 200
    name, _, rest = reply.headers["Set-Cookie"].partition("=")
    assert name.startswith("__Host-delaymq-session-")
    assert {part.strip() for part in rest.split(";")[1:]} == {"HttpOnly", "Path=/", "SameSite=Strict", "Secure"}
    cookie = f"{name}={rest.partition(';')[0]}"
    assert ask(broker.http_port, "GET", SESSION, source=PROXY, Cookie=cookie, **through).status == 200
    # It is not accepted without TLS, where another host could have set it.
    assert broker.ask("GET", SESSION, Cookie=cookie).code == "sign_in_needed"
    origin = {"Origin": "https://127.0.0.1:" + str(broker.http_port)}
    change = ("POST", "/api/v1/drain", {"mode": "none"})
    assert ask(broker.http_port, *change, source=PROXY, Cookie=cookie, **through, **origin).status == 200
    plain = {"Origin": own(broker)}
    assert ask(broker.http_port, *change, source=PROXY, Cookie=cookie, **through, **plain).code == "origin_not_allowed"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": "http://attacker.example"}, "origin_not_allowed"),
        ({"Origin": "http://127.0.0.1:1"}, "origin_not_allowed"),
        ({"Origin": "null"}, "origin_not_allowed"),
        ({}, "origin_not_allowed"),
        ({"Origin": "{own}", "Content_Type": "text/plain"}, "json_needed"),
        ({"Origin": "{own}", "Content_Type": "application/x-www-form-urlencoded"}, "json_needed"),
        ({"Origin": "{own}"}, ""),
    ],
)
def test_changes_with_a_cookie_come_from_pages_of_this_server(
    broker: GuardedBroker, headers: dict[str, str], code: str
) -> None:
    _, cookie = by_cookie(broker)
    sent = {name: value.format(own=own(broker)) for name, value in headers.items()}
    for method, path in (("POST", "/api/v1/drain"), ("PUT", "/api/v1/log-level")):
        body = {"mode": "none"} if method == "POST" else {"level": "info"}
        reply = broker.ask(method, path, body, Cookie=cookie, **sent)
        assert (reply.status, "" if reply.status == 200 else reply.code) == (
            {"": 200, "json_needed": 415}.get(code, 403),
            code,
        )


def test_page_of_another_origin_cannot_sign_a_user_in(broker: GuardedBroker) -> None:
    assert by_cookie(broker, Origin="http://attacker.example")[0].code == "origin_not_allowed"
    assert by_cookie(broker, Content_Type="text/plain")[0].code == "json_needed"
    assert by_cookie(broker, Origin=own(broker))[0].status == 200


def test_sign_in_never_continues_a_session(broker: GuardedBroker) -> None:
    _, first = by_cookie(broker)
    name = first.partition("=")[0]
    reply, second = by_cookie(broker, "reader-1", Cookie=first)
    assert reply.json["account"] == "reader-1"
    assert first != second
    assert broker.ask("GET", SESSION, Cookie=first).code == "session_ended"
    planted, third = by_cookie(broker, Cookie=f"{name}=dmqs_chosen-by-an-attacker")
    assert planted.status == 200
    assert "chosen" not in third


def test_authorization_takes_precedence_over_a_cookie(broker: GuardedBroker) -> None:
    _, cookie = by_cookie(broker)
    assert broker.ask("GET", SESSION, Cookie=cookie, **bearer("wrong")).code == "unauthorized"
    assert broker.ask("GET", SESSION, Cookie=cookie, **bearer(TOKEN)).json["account"] is None
    basic = broker.ask("GET", SESSION, Authorization="Basic b3BlcmF0b3I6b3BlcmF0b3Itc2VjcmV0")
    assert basic.code == "unauthorized"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"accessKey":"operator"}',
        b'{"accessKey":"operator","secretKey":7}',
        b'{"accessKey":"","secretKey":""}',
        b'{"accessKey":"operator","secretKey":"s3cr3t-s3cr3t","s3cr3t-s3cr3t":1}',
        b'{"accessKey":"operator","secretKey":"\xff\xfe"}',
        b'{"accessKey":"' + b"a" * 2_000 + b'","secretKey":"s3cr3t-s3cr3t"}',
        b'{"accessKey":"operator","secretKey":"\\ud800"}',
        b"[" * 30_000,
    ],
)
def test_invalid_sign_in_is_rejected_without_repeating_it(broker: GuardedBroker, body: bytes) -> None:
    reply = broker.ask("POST", SESSION, body)
    assert reply.status in (400, 401)
    assert b"s3cr3t" not in reply.body
    assert reply.code in ("bad_request", "sign_in_failed")


def test_larger_sign_in_than_any_account_needs_is_rejected(broker: GuardedBroker) -> None:
    assert broker.ask("POST", SESSION, b"x" * (65 * 1024)).status == 413


def test_sign_in_from_another_machine_needs_tls(broker: GuardedBroker) -> None:
    reply, _ = by_cookie(broker, X_Forwarded_For="192.0.2.7")
    assert (reply.status, reply.code) == (403, "tls_needed")
    keys = {"accessKey": "operator", "secretKey": "operator-secret"}
    plain = ask(broker.http_port, "POST", SESSION, keys, source=PROXY, X_Forwarded_Proto="http")
    assert plain.code == "tls_needed"


def test_failed_sign_ins_are_limited_by_address(broker: GuardedBroker) -> None:
    def tried(address: str, name: str = "operator", secret: str = "wrong-secret") -> Reply:
        keys = {"accessKey": name, "secretKey": secret, "bearer": True}
        headers = {"X_Forwarded_Proto": "https", "X_Forwarded_For": address}
        return ask(broker.http_port, "POST", SESSION, keys, source=PROXY, **headers)

    replies = [tried("192.0.2.20", f"account-{number}") for number in range(21)]
    assert {each.code for each in replies[:20]} == {"sign_in_failed"}
    assert (replies[20].status, replies[20].code) == (429, "too_many_sign_ins")
    assert 1 <= int(replies[20].headers["Retry-After"]) <= 6
    # The correct secret key is not accepted either, so that the limit reveals nothing.
    assert tried("192.0.2.20", secret="operator-secret").status == 429
    assert tried("192.0.2.21", secret="operator-secret").status == 200
    known = [tried("192.0.2.22", "operator").json, tried("192.0.2.22", "no-such-account").json]
    assert known[0] == known[1]


def test_attempts_are_audited_without_secrets(broker: GuardedBroker) -> None:
    sign_in(broker.http_port, "tenant-a")
    sign_in(broker.http_port, "tenant-a", secretKey="guessed-secret")
    manager = broker.as_account("manager")
    found = broker.ask("GET", "/api/v1/audit?action=session.sign-in&account=tenant-a", **manager)
    refused, done = found.json["lines"][:2]
    assert (done["result"], done["verified"], done["via"]) == ("done", True, "http")
    assert (refused["result"], refused.get("verified", False)) == ("refused", False)
    for each in (found.body, broker.log_path.read_bytes()):
        assert b"-secret" not in each
        assert b"dmqs_" not in each
    through = {"X_Forwarded_Proto": "https", "X_Forwarded_For": "192.0.2.99"}
    keys = {"accessKey": "reader-1", "secretKey": "reader-1-secret"}
    assert ask(broker.http_port, "POST", SESSION, keys, source=PROXY, **through).status == 200
    (line, *_) = broker.ask("GET", "/api/v1/audit?account=reader-1", **manager).json["lines"]
    assert line["peer"].startswith("192.0.2.99:")


def test_changes_are_audited_with_the_account(broker: GuardedBroker) -> None:
    operator, manager = broker.as_account("operator"), broker.as_account("manager")
    assert broker.ask("POST", "/api/v1/drain", {"mode": "none"}, **operator).status == 200
    assert broker.ask("POST", "/api/v1/offsets/forget", {}, **operator).status == 403
    lines = broker.ask("GET", "/api/v1/audit?account=operator", **manager).json["lines"]
    by_action = {each["action"]: each for each in reversed(lines)}
    assert (by_action["broker.drain"]["result"], by_action["broker.drain"]["verified"]) == ("done", True)
    assert (by_action["offset.forget"]["result"], by_action["offset.forget"]["verified"]) == ("refused", True)


def test_metrics_are_closed_by_a_token_of_their_own(broker: GuardedBroker) -> None:
    def status(**headers: str) -> int:
        return broker.ask("GET", "/metrics", **headers).status

    assert status() == 401
    assert status(**bearer("m3trics")) == status(**bearer(TOKEN)) == 200
    assert status(**broker.as_account("reader-1")) == 200
    assert status(**broker.as_account("tenant-a")) == 403
    assert broker.ask("GET", "/api/v1/totals", **bearer("m3trics")).status == 401
    assert broker.ask("GET", "/livez").status == 200


def test_session_ends_when_the_rule_file_changes(tmp_path: Path) -> None:
    broker = GuardedBroker(tmp_path)
    with broker.running():
        kept, gone = broker.as_account("reader-1"), broker.as_account("tenant-a")
        without = RULES.replace("tenant-a", "other-a")
        new = tmp_path / "new"
        new.write_text(without)
        os.replace(new, tmp_path / "plain_acl.yml")
        deadline = time.monotonic() + 30
        while broker.ask("GET", SESSION, **gone).status == 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert broker.ask("GET", SESSION, **gone).code == "session_ended"
        assert broker.ask("GET", SESSION, **kept).status == 200


def test_restart_ends_all_sessions(tmp_path: Path) -> None:
    broker = GuardedBroker(tmp_path)
    with broker.running():
        headers = broker.as_account("reader-1")
    with broker.running():
        assert broker.ask("GET", SESSION, **headers).code == "session_ended"


def test_requests_of_an_account_count_for_its_quotas(tmp_path: Path) -> None:
    quotas = ", quotas: {requestsPerSecond: 1, sendRequestsPerSecond: 1, maxDelayMs: 1000}}"
    rules = RULES.replace("groupPerms: [GroupB=SUB]}", "groupPerms: [GroupB=SUB]" + quotas)
    broker = GuardedBroker(tmp_path, rules=rules)
    with broker.running():
        tenant, other = broker.as_account("tenant-b"), broker.as_account("tenant-a")
        replies = [broker.ask("GET", "/api/v1/topics", **tenant) for _ in range(20)]
        assert {each.status for each in replies} == {200, 429}
        assert replies[-1].code == "quota_exceeded"
        assert "requestsPerSecond" in replies[-1].json["error"]["message"]
        assert broker.ask("GET", "/api/v1/topics", **other).status == 200
        sends = [broker.ask("POST", "/api/v1/topics/TopicB/messages", {"body": "x"}, **tenant) for _ in range(20)]
        assert sends[-1].status == 503
        assert "quota" in sends[-1].json["error"]["message"].lower()


def test_slow_sign_in_does_not_delay_others(broker: GuardedBroker) -> None:
    head = b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n"
    slow = [socket.create_connection(("127.0.0.1", broker.http_port)) for _ in range(32)]
    try:
        for each in slow:
            each.sendall(head + b"\r\n{")
        assert token_of(broker.http_port, "operator")
    finally:
        for each in slow:
            each.close()


def test_broker_without_accounts_has_no_sign_in(tmp_path: Path) -> None:
    broker = GuardedBroker(tmp_path)
    broker.config_path.write_text(broker.config_path.read_text().replace("aclEnable=true", "aclEnable=false"))
    with broker.running():
        keys: dict[str, Any] = {"accessKey": "operator", "secretKey": "operator-secret"}
        assert broker.ask("POST", SESSION, keys).code == "unauthorized"
        assert broker.ask("POST", SESSION, keys, **bearer(TOKEN)).code == "no_accounts"
        state = json.loads(broker.ask("GET", SESSION, **bearer(TOKEN)).body)
        assert (state["account"], state["role"], state["accessControl"]) == (None, "administer", False)


OTHER_KEYS = """
accounts:
- {accessKey: rotated-1, secretKey: new-secret, formerSecretKey: old-secret, role: read}
- {accessKey: certified, certificateOnly: true, role: administer}
- {accessKey: certified-2, secretKey: unused-secret, certificateOnly: true, role: administer}
"""


@pytest.mark.parametrize(
    ("account", "secret", "status"),
    [
        ("rotated-1", "new-secret", 200),
        ("rotated-1", "old-secret", 200),
        ("rotated-1", "rotated-1-secret", 401),
        ("certified", "certified-secret", 401),
        ("certified-2", "unused-secret", 401),
    ],
)
def test_former_key_admits_and_a_key_of_an_account_with_certificates_does_not(
    other_keys: GuardedBroker, account: str, secret: str, status: int
) -> None:
    reply = other_keys.ask("POST", SESSION, {"accessKey": account, "secretKey": secret, "bearer": True})
    assert (reply.status, reply.status == 200 or reply.code) == (status, True if status == 200 else "sign_in_failed")


@pytest.fixture(scope="module")
def other_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    made = GuardedBroker(tmp_path_factory.mktemp("other-keys"), rules=OTHER_KEYS)
    with made.running():
        yield made
