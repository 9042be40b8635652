"""Sessions, limits of sign-ins, and senders behind proxies, without sockets."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from delaymq.access.accounts import Account, Entry, prepare
from delaymq.access.plain_acl import parse, to_text
from delaymq.config import ConfigError
from delaymq.config.checks import parse_networks
from delaymq.server.http.sign_in import attempts as limits
from delaymq.server.http.sign_in.attempts import OF_ACCOUNT, OF_KNOWN, OF_NETWORK, SUCCESSFUL, Attempts
from delaymq.server.http.sign_in.peers import Peers
from delaymq.server.http.sign_in.sessions import MAX_OF_ACCOUNT, MAX_SESSIONS, Sessions
from delaymq_testing.repetitions import SEED

IDLE_S, LIFETIME_S = 1_800, 43_200


class World:
    """Sessions of a few accounts, whose entries a test changes."""

    def __init__(self, *names: str, role: str = "") -> None:
        self.accounts = {name: account(name, role=role) for name in names}
        self.sessions = Sessions(self._known, IDLE_S, LIFETIME_S)

    def _known(self) -> Mapping[str, Account]:
        return self.accounts

    def begin(self, name: str, now_s: float = 0) -> str:
        return self.sessions.begin(self.accounts[name], now_s)[0]

    def is_valid(self, token: str, now_s: float = 0, *, renews: bool = False) -> bool:
        return self.sessions.use(token, now_s, renews=renews) is not None

    def change(self, name: str, **changes: Any) -> None:
        self.accounts[name] = prepare(replace(self.accounts[name].entry, **changes))


def account(name: str, **more: Any) -> Account:
    return prepare(Entry(access_key=name, secret_key=f"{name}-secret", **more))


def test_session_ends_without_use_and_after_its_lifetime() -> None:
    world = World("tenant-a")
    token = world.begin("tenant-a")
    assert world.is_valid(token, IDLE_S - 1)
    assert not world.is_valid(token, IDLE_S)
    assert not world.is_valid(token, 0)  # it was removed
    token, now_s = world.begin("tenant-a"), 0
    while now_s < LIFETIME_S - 600:
        now_s += 600
        assert world.is_valid(token, now_s, renews=True)
    assert not world.is_valid(token, LIFETIME_S)


@pytest.mark.parametrize("change", [{"secret_key": "another-secret"}, {"role": "read"}, {"role": ""}])
def test_session_ends_with_another_secret_or_a_lower_role(change: dict[str, str]) -> None:
    world = World("operator", role="operate")
    token = world.begin("operator")
    world.change("operator", default_topic_perm="SUB")
    assert world.is_valid(token)
    world.change("operator", **change)
    assert not world.is_valid(token)
    world.accounts["operator"] = account("operator", role="operate")
    assert not world.is_valid(token)


def test_session_continues_while_its_secret_key_is_the_former_one() -> None:
    world = World("operator", role="operate")
    token = world.begin("operator")
    world.change("operator", secret_key="another-secret", former_secret_key="operator-secret")
    assert world.is_valid(token)
    world.change("operator", former_secret_key=None)
    assert not world.is_valid(token)


def test_higher_role_applies_to_a_session_and_an_administrator_has_the_highest() -> None:
    world = World("operator", role="operate")
    token = world.begin("operator")
    world.change("operator", role="administer")
    assert world.is_valid(token)
    world.change("operator", role="", admin=True)
    assert world.is_valid(token)
    second = world.begin("operator")
    world.change("operator", role="operate", admin=False)
    assert world.is_valid(token)
    assert not world.is_valid(second)


def test_account_that_was_deleted_and_created_again_has_no_session_after_a_review() -> None:
    world = World("tenant-a", "tenant-b")
    tokens = [world.begin(name) for name in world.accounts]
    deleted = world.accounts.pop("tenant-a")
    world.sessions.review(0)
    world.accounts["tenant-a"] = deleted
    assert [world.is_valid(token) for token in tokens] == [False, True]


def test_sessions_of_an_account_and_in_total_are_limited() -> None:
    names = [f"account-{number}" for number in range(MAX_SESSIONS)]
    world = World("greedy-1", "greedy-2", *names)
    first = world.begin("greedy-1")
    others = [world.begin("greedy-1") for _ in range(MAX_OF_ACCOUNT - 1)]
    assert world.is_valid(first, renews=True)
    others.append(world.begin("greedy-1"))  # ends the one that was not used for the longest time
    assert [world.is_valid(token) for token in others] == [False] + [True] * (MAX_OF_ACCOUNT - 1)
    assert world.is_valid(first)
    quiet = [world.begin(name) for name in names[: MAX_SESSIONS - MAX_OF_ACCOUNT]]
    assert len(world.sessions) == MAX_SESSIONS
    for _ in range(MAX_OF_ACCOUNT):
        world.begin("greedy-2")
    assert len(world.sessions) == MAX_SESSIONS
    assert all(world.is_valid(token) for token in quiet)


@pytest.mark.parametrize("token", ["", "dmqs_", "dmqs_" + "x" * 10_000, "\ud800", "dmqs_\ud800", "dmqs_é", "x" * 40])
def test_invalid_token_has_no_session(token: str) -> None:
    world = World("tenant-a")
    world.begin("tenant-a")
    assert not world.is_valid(token)
    assert not world.sessions.end(token)


def test_tokens_are_not_kept() -> None:
    world = World("tenant-a")
    token = world.begin("tenant-a")
    assert token not in repr(vars(world.sessions))
    assert token.removeprefix("dmqs_") not in repr(vars(world.sessions))


def test_failures_are_limited_by_network_and_by_account() -> None:
    tried = Attempts()
    for number in range(OF_NETWORK.burst):
        assert tried.wait_s(b"\x0a\0\0\1", f"account-{number}", 0) == 0
        tried.failed(b"\x0a\0\0\1", f"account-{number}", 0)
    assert tried.wait_s(b"\x0a\0\0\1", "another-one", 0) == OF_NETWORK.interval_s
    assert tried.wait_s(b"\x0a\0\0\1", "another-one", OF_NETWORK.interval_s) == 0
    tried = Attempts()
    for number in range(OF_ACCOUNT.burst):
        assert tried.wait_s(bytes([10, 0, 1, number]), "victim-1", 0) == 0
        tried.failed(bytes([10, 0, 1, number]), "victim-1", 0)
    assert tried.wait_s(b"\x0a\0\2\1", "victim-1", 0) > 0
    assert tried.wait_s(b"\x0a\0\2\1", "other-account", 0) == 0


def test_strangers_cannot_lock_out_a_known_network() -> None:
    tried = Attempts()
    tried.succeeded(b"home", "victim-1", 0)
    for number in range(10_000):
        tried.failed(number.to_bytes(4), "victim-1", 1)
    assert tried.wait_s(b"home", "victim-1", 1) == 0
    assert tried.wait_s(b"away", "victim-1", 1) > 0
    for _ in range(OF_KNOWN.burst):
        tried.failed(b"home", "victim-1", 1)
    assert tried.wait_s(b"home", "victim-1", 1) > 0


def test_successes_of_an_account_are_limited() -> None:
    tried = Attempts()
    for _ in range(SUCCESSFUL.burst):
        assert tried.wait_s(b"home", "tenant-a", 0) == 0
        tried.succeeded(b"home", "tenant-a", 0)
    assert tried.wait_s(b"home", "tenant-a", 0) == SUCCESSFUL.interval_s


def test_memory_of_attempts_is_limited() -> None:
    tried, chosen = Attempts(), random.Random(SEED)
    for number in range(20_000):
        network, name = chosen.randbytes(8), f"name-{number}"
        tried.failed(network, name, 0)
        tried.succeeded(network, name, 0)
    tables = (tried._networks, tried._accounts, tried._known_pairs, tried._successes)
    assert all(len(each._full_at_s) <= limits.SLOTS for each in tables)
    assert len(tried._known) <= limits.MAX_KNOWN


PROXIES = "10.0.0.0/24; 127.0.0.2;fd00::/64"


@pytest.mark.parametrize(
    ("peer", "headers", "expected"),
    [
        ("192.0.2.7", {}, ("192.0.2.7", False, False)),
        ("127.0.0.1", {}, ("127.0.0.1", False, True)),
        ("::1", {}, ("::1", False, True)),
        ("::ffff:127.0.0.1", {}, ("127.0.0.1", False, True)),
        # A proxy on this machine that is not listed.
        ("127.0.0.1", {"X-Forwarded-For": "192.0.2.7"}, ("127.0.0.1", False, False)),
        ("127.0.0.1", {"Forwarded": "for=192.0.2.7;proto=https"}, ("127.0.0.1", False, False)),
        # Nobody else is believed.
        ("192.0.2.7", {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https"}, ("192.0.2.7", False, False)),
        ("10.0.0.9", {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}, ("192.0.2.7", True, False)),
        ("10.0.0.9", {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "http"}, ("192.0.2.7", False, False)),
        # The client itself sent the first of them.
        ("10.0.0.9", {"X-Forwarded-For": "127.0.0.1, 192.0.2.7, 10.0.0.8"}, ("192.0.2.7", False, False)),
        ("10.0.0.9", {"X-Forwarded-For": "evil, 10.0.0.8"}, ("10.0.0.8", False, False)),
        ("10.0.0.9", {"X-Forwarded-For": "evil"}, ("10.0.0.9", False, False)),
        ("10.0.0.9", {"X-Forwarded-Proto": "https, http"}, ("10.0.0.9", False, False)),
        ("127.0.0.2", {"X-Forwarded-Proto": "https"}, ("127.0.0.2", True, False)),
        ("fd00::1", {"X-Forwarded-For": "2001:db8::7", "X-Forwarded-Proto": "HTTPS"}, ("2001:db8::7", True, False)),
    ],
)
def test_sender_is_what_a_listed_proxy_states(
    peer: str, headers: dict[str, str], expected: tuple[str, bool, bool]
) -> None:
    request = make_mocked_request("POST", "/api/v1/session", headers=headers)
    known = {"peername": (peer, 4711)}
    assert request.transport is not None
    request.transport.get_extra_info = lambda name, default=None: known.get(name, default)
    found = Peers(parse_networks(PROXIES)).peer(request)
    assert (found.host, found.is_secure, found.is_local) == expected


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy.example", "10.0.0.0/33", "10.0.0.1,10.0.0.2"])
def test_invalid_proxies_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address or a network"):
        parse_networks(text)


def test_role_is_a_key_of_the_rule_file() -> None:
    text = "accounts:\n- {accessKey: operator, secretKey: operator-secret, role: operate}\n"
    file = parse(text, 0)
    assert file.accounts[0].entry.role == "operate"
    assert file.notes == ()
    assert parse(to_text(file), 0).accounts[0].entry.role == "operate"
    with pytest.raises(Exception, match="account operator: role: use read, operate or administer"):
        parse(text.replace("role: operate", "role: admin"), 0)
