"""The register in a Lease of a real API server, with an account that may get, update and patch this Lease only."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from delaymq.replication import Record
from delaymq.server.registers import Conflict, RegisterError, Unknown, Written
from delaymq.server.registers.lease import LeaseRegister
from delaymq.server.registers.service_account import ServiceAccount
from delaymq_operator_testing.api_server import ApiServer
from registers.race import MEMBERS, TIMEOUT_S, Race

LEASE = "orders-0-register"
RBAC = "rbac.authorization.k8s.io"
SUSPENDED_S = 4.5
"""Longer than a write and a read may take."""
RECORD = Record(1, MEMBERS[0], 1, frozenset(MEMBERS))


class Site(NamedTuple):
    """A namespace with a Lease, and the files of an account."""

    api: ApiServer
    namespace: str
    folder: Path

    @property
    def leases(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    def open(self) -> LeaseRegister:
        return LeaseRegister(self.api.url, self.namespace, LEASE, ServiceAccount(self.folder), lease_s=10)


@pytest.fixture
def site(api_server: ApiServer, tmp_path: Path) -> Iterator[Site]:
    """Provide a Lease without a record, and an account with the rights of a broker pod."""
    namespace = api_server.new_namespace()
    made = Site(api_server, namespace, tmp_path)
    api_server.create(made.leases, {"metadata": {"name": LEASE, "labels": {"app": "delaymq"}}})
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    api_server.create(accounts, {"metadata": {"name": "broker"}})
    roles = f"/apis/{RBAC}/v1/namespaces/{namespace}"
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [LEASE],
        "verbs": ["get", "update", "patch"],
    }
    api_server.create(f"{roles}/roles", {"metadata": {"name": "register"}, "rules": [rule]})
    api_server.create(
        f"{roles}/rolebindings",
        {
            "metadata": {"name": "register"},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "register"},
            "subjects": [{"kind": "ServiceAccount", "name": "broker", "namespace": namespace}],
        },
    )
    token = api_server.create(f"{accounts}/broker/token", {"spec": {}})["status"]["token"]
    (tmp_path / "token").write_text(token)
    (tmp_path / "ca.crt").write_bytes((api_server.folder / "apiserver.crt").read_bytes())
    yield made
    api_server.request("DELETE", f"/api/v1/namespaces/{namespace}")


def test_one_of_two_writers_wins_each_version_across_a_crash_of_etcd(site: Site) -> None:
    etcd = site.api.process("etcd")

    def crash(number: int) -> None:
        if number == 250:
            etcd.kill()
            etcd.start()

    async def scenario() -> Race:
        registers = [site.open() for _ in range(2)]
        race = Race(registers)
        await race.run(500, crash)
        for register in registers:
            await register.close()
        return race

    race = asyncio.run(scenario())
    print(race.figures("Lease"))
    assert race.verify() >= 495
    assert race.counts()["Conflict"] >= 495
    shown = site.api.kubectl("get", "lease", LEASE, "-n", site.namespace)
    assert MEMBERS[0] in shown or MEMBERS[1] in shown


def test_write_to_a_suspended_api_server_is_unknown_until_a_read(site: Site) -> None:
    server = site.api.process("kube-apiserver")

    async def scenario() -> Race:
        registers = [site.open() for _ in range(2)]
        race = Race(registers)
        await race.run(5)
        outcomes = len(race.attempts)

        def suspend(number: int) -> None:
            if number == 2:
                server.suspend()
                asyncio.get_running_loop().call_later(SUSPENDED_S, server.signal, signal.SIGCONT)

        await race.run(10, suspend=suspend)
        made = [attempt.outcome for attempt in race.attempts[outcomes:]]
        reasons = [outcome.reason for outcome in made if isinstance(outcome, Unknown)]
        assert len(reasons) == 2
        assert all("no response within" in reason for reason in reasons)
        assert race.failed_reads > 0
        for register in registers:
            await register.close()
        return race

    try:
        race = asyncio.run(scenario())
    finally:
        server.signal(signal.SIGCONT)
    race.verify()


@pytest.mark.parametrize("account", ["broker", "administrator"])
def test_deleted_lease_is_not_created_and_a_new_one_has_no_record(site: Site, account: str) -> None:
    if account == "administrator":
        (site.folder / "token").write_text(site.api.token)

    async def scenario() -> None:
        register = site.open()
        written = await register.write(RECORD, (await register.read(TIMEOUT_S)).version, TIMEOUT_S)
        assert isinstance(written, Written)
        site.api.request("DELETE", f"{site.leases}/{LEASE}")
        outcome = await register.write(RECORD, written.version, TIMEOUT_S)
        assert isinstance(outcome, Unknown)
        assert "was deleted" in outcome.reason
        with pytest.raises(RegisterError, match="was deleted: the operator creates it"):
            await register.read(TIMEOUT_S)
        site.api.create(site.leases, {"metadata": {"name": LEASE}})
        assert await register.write(RECORD, written.version, TIMEOUT_S) == Conflict()
        content = await register.read(TIMEOUT_S)
        assert content.record is None
        assert isinstance(await register.write(RECORD, content.version, TIMEOUT_S), Written)
        await register.close()

    asyncio.run(scenario())


def test_withdrawn_right_and_token_of_another_issuer_are_named(site: Site) -> None:
    async def scenario() -> None:
        register = site.open()
        version = (await register.read(TIMEOUT_S)).version
        other = LeaseRegister(site.api.url, site.namespace, "another", ServiceAccount(site.folder), lease_s=10)
        with pytest.raises(RegisterError, match=f"the namespace {site.namespace} has to allow the verb get of leases"):
            await other.read(TIMEOUT_S)
        token = (site.folder / "token").read_text()
        (site.folder / "token").write_text("x" + token[1:])
        outcome = await register.write(RECORD, version, TIMEOUT_S)
        assert isinstance(outcome, Unknown)
        assert "rejects the token" in outcome.reason
        (site.folder / "token").write_text(token)
        assert isinstance(await register.write(RECORD, version, TIMEOUT_S), Written)
        await register.close()
        await other.close()

    asyncio.run(scenario())
