"""Accounts at the HTTP address of several broker groups: one session for all, with the same rights in each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq_testing.accounts.http_accounts import RULES, TOKEN, GuardedBroker, ask, bearer
from harness.ports import free_broker_port

NAMES = ("broker-a", "broker-a-1")
SESSION = "/api/v1/session"


class GuardedGroups(GuardedBroker):
    """Two groups with accounts."""

    def __init__(self, folder: Path, settings: str = "") -> None:
        super().__init__(folder, settings)
        self.listen_port = free_broker_port(2)

    @property
    def arguments(self) -> list[str]:
        return [*super().arguments, "--groups", "2"]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedGroups]:
    made = GuardedGroups(tmp_path_factory.mktemp("groups"), "httpMetricsToken=m3trics\n")
    with made.running():
        for name in NAMES:
            sent = made.ask("POST", f"/brokers/{name}/api/v1/topics/TopicA/messages", {"body": "x"}, **bearer(TOKEN))
            assert sent.status == 200
        yield made


def cookie_of(groups: GuardedGroups, account: str, path: str) -> str:
    keys = {"accessKey": account, "secretKey": f"{account}-secret"}
    return groups.ask("POST", path, keys).headers["Set-Cookie"].partition(";")[0]


def test_one_session_serves_all_groups_with_the_rights_of_its_account(groups: GuardedGroups) -> None:
    for path in (SESSION, *(f"/brokers/{name}{SESSION}" for name in NAMES)):
        cookie = cookie_of(groups, "tenant-a", path)
        state = groups.ask("GET", path, Cookie=cookie).json
        broker_name = path.split("/")[2] if path != SESSION else None
        assert (state["account"], state["role"], state["brokerName"]) == ("tenant-a", "", broker_name)
        assert (state["address"] is None) is (broker_name is None)
        for name in NAMES:
            rows = groups.ask("GET", f"/brokers/{name}/api/v1/topics", Cookie=cookie).json["topics"]
            assert [each["topic"] for each in rows] == ["TopicA"]
            assert groups.ask("GET", f"/brokers/{name}/api/v1/topics/TopicB", Cookie=cookie).code == "permission_needed"
            assert groups.ask("GET", f"/brokers/{name}/api/v1/store", Cookie=cookie).code == "role_needed"
        assert groups.ask("GET", "/api/v1/brokers", Cookie=cookie).status == 200
        assert groups.ask("GET", "/api/v1/totals", Cookie=cookie).code == "role_needed"
        origin = f"http://127.0.0.1:{groups.http_port}"
        assert groups.ask("DELETE", path, Cookie=cookie, Origin=origin).json == {"signedOut": True}
        assert groups.ask("GET", f"/brokers/{NAMES[1]}/api/v1/topics", Cookie=cookie).code == "session_ended"


def test_roles_apply_in_each_group(groups: GuardedGroups) -> None:
    for account, role in (("reader-1", "read"), ("operator", "operate"), ("manager", "administer")):
        headers = groups.as_account(account)
        assert groups.ask("GET", SESSION, **headers).json["role"] == role
        assert groups.ask("GET", "/api/v1/totals", **headers).status == 200
        for name in NAMES:
            drained = groups.ask("POST", f"/brokers/{name}/api/v1/drain", {"mode": "none"}, **headers)
            assert drained.status == (403 if role == "read" else 200)
    assert groups.ask("GET", f"/brokers/{NAMES[0]}/api/v1/topics").code == "sign_in_needed"
    assert groups.ask("GET", "/api/v1/brokers").code == "sign_in_needed"


def test_only_the_supervisor_states_accounts(groups: GuardedGroups) -> None:
    path = f"/brokers/{NAMES[0]}/api/v1/store"
    forged = {"DelayMQ_Account": "manager", "DelayMQ_Peer": "192.0.2.1:1"}
    assert groups.ask("GET", path, **forged).code == "sign_in_needed"
    assert groups.ask("GET", path, **forged, **groups.as_account("tenant-a")).code == "role_needed"
    # The own port of a group requires the supervisor's secret.
    for port in ports_of_groups(groups):
        for headers in (forged, forged | bearer(TOKEN), groups.as_account("manager"), forged | bearer("")):
            reply = ask(port, "GET", "/api/v1/store", **headers)
            assert reply.status == 401
        assert ask(port, "GET", "/metrics").status == 401


def ports_of_groups(groups: GuardedGroups) -> list[int]:
    """The HTTP ports on which groups listen."""
    known = {groups.http_port, groups.namesrv_port, *range(groups.listen_port - 2, groups.listen_port + 13)}
    ports = []
    mine = children_sockets()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        port = int(words[1].rpartition(":")[2], 16)
        if words[3] == "0A" and words[9] in mine and port not in known:
            ports.append(port)
    assert len(ports) == 2
    return ports


def children_sockets() -> set[str]:
    """Inodes of the sockets of all processes below this one."""
    found, waiting = set(), [os.getpid()]
    while waiting:
        pid = waiting.pop()
        waiting += [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        if pid == os.getpid():
            continue
        for each in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(each)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def test_paths_that_only_look_like_open_ones_are_closed(groups: GuardedGroups) -> None:
    for path in (
        f"/brokers/{NAMES[0]}/api/v1%2Fsession",
        f"/brokers/{NAMES[0]}%2Fapi/v1/session",
        f"/brokers/{NAMES[0]}/console%2F..%2Fapi/v1/store",
        f"/brokers/{NAMES[0]}/console/..%2F..%2Fapi/v1/store",
        f"/brokers/{NAMES[0]}//api/v1/session",
        "/api/v1%2Fsession",
    ):
        for method in ("GET", "POST"):
            reply = groups.ask(method, path, {} if method == "POST" else None)
            assert reply.status in (400, 401, 404, 405), (method, path, reply.body)
            assert b"segments" not in reply.body


def test_changes_are_audited_by_the_group_and_sign_ins_by_the_supervisor(groups: GuardedGroups) -> None:
    operator, manager = groups.as_account("operator"), groups.as_account("manager")
    assert groups.ask("POST", f"/brokers/{NAMES[1]}/api/v1/drain", {"mode": "none"}, **operator).status == 200
    path = f"/brokers/{NAMES[1]}/api/v1/audit?action=broker.drain"
    (line, *_) = groups.ask("GET", path, **manager).json["lines"]
    assert (line["account"], line["verified"], line["result"]) == ("operator", True, "done")
    assert line["peer"].startswith("127.0.0.1:")
    folder = groups.store_path / "delaymq" / "audit" / "supervisor"
    text = "".join(each.read_text() for each in sorted(folder.iterdir()) if each.is_file())
    assert '"action":"session.sign-in"' in text
    assert '"account":"operator"' in text
    assert "-secret" not in text


def test_closed_metrics_need_their_token(groups: GuardedGroups) -> None:
    for path in ("/metrics", f"/brokers/{NAMES[1]}/metrics"):
        assert groups.ask("GET", path).status == 401
        assert groups.ask("GET", path, **bearer("m3trics")).status == 200
        assert groups.ask("GET", path, **groups.as_account("tenant-a")).status == 403


def test_changed_rules_end_the_sessions_of_the_supervisor(groups: GuardedGroups) -> None:
    headers = groups.as_account("tenant-b")
    new = groups.config_path.with_name("new")
    new.write_text(RULES.replace("secretKey: tenant-b-secret", "secretKey: another-secret"))
    new.replace(groups.config_path.with_name("plain_acl.yml"))
    deadline = time.monotonic() + 30
    while groups.ask("GET", SESSION, **headers).status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert groups.ask("GET", f"/brokers/{NAMES[0]}/api/v1/topics", **headers).code == "session_ended"
