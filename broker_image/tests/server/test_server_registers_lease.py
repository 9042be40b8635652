"""Register in a Lease: fields, objects that were changed or deleted, missing rights, rotated credentials."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from delaymq.replication import Record
from delaymq.server.registers import Conflict, Content, Register, RegisterError, Unknown, Written
from delaymq.server.registers.lease_object import ANNOTATION
from delaymq.server.registers.record_text import encode
from delaymq.server.registers.service_account import ServiceAccount, api_server_url
from delaymq_testing.certificates import Authority
from delaymq_testing.registers.backends import FakeApiServer
from delaymq_testing.registers.worlds import TIMEOUT_S, World, record, write_account


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Register, FakeApiServer, str]]:
    """A register without a record, its API server, and its version."""
    async with World("lease", folder).running() as world:
        register = world.open()
        assert isinstance(world.backend, FakeApiServer)
        yield register, world.backend, (await register.read(TIMEOUT_S)).version


def test_lease_shows_master_and_epoch_and_keeps_what_others_wrote(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (register, api, version):
            written = await register.write(record(7), version, TIMEOUT_S)
            assert isinstance(written, Written)
            assert api.lease is not None
            assert api.lease["spec"] == {
                "holderIdentity": "broker-a-0",
                "leaseTransitions": 7,
                "leaseDurationSeconds": 10,
                "acquireTime": "2026-01-01T00:00:00.000000Z",
                "renewTime": "2026-01-01T00:00:00.000000Z",
            }
            assert await register.write(record(7), written.version, TIMEOUT_S) == Written(api.version)
            assert api.lease["metadata"]["labels"] == {"app": "delaymq"}
            assert api.lease["metadata"]["annotations"] == {ANNOTATION: encode(record(7))}
            assert api.lease["spec"]["acquireTime"] == "2026-01-01T00:00:00.000000Z"
            assert api.lease["spec"]["renewTime"] == "2026-01-01T00:00:00.000001Z"

    asyncio.run(scenario())


def test_lease_of_epoch_0_has_no_holder(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (register, api, version):
            first = Record(0, "", 0, frozenset({"a", "b"}))
            assert await register.write(first, version, TIMEOUT_S) == Written(api.version)
            assert api.lease is not None
            assert "holderIdentity" not in api.lease["spec"]
            assert await register.read(TIMEOUT_S) == Content(api.version, first)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ({"holderIdentity": "broker-a-1"}, "states 'broker-a-0' and 7: set both fields"),
        ({"holderIdentity": None}, "spec.holderIdentity is '' and"),
        ({"leaseTransitions": 8}, "spec.leaseTransitions is 8, but the annotation"),
        ({"leaseTransitions": -1}, "spec.leaseTransitions is -1"),
        ({"leaseTransitions": "many"}, "is no Lease"),
        ({"holderIdentity": {}}, "is no Lease"),
        ({"annotations": {}}, "the annotation delaymq.io/register is missing"),
        ({"annotations": None}, "the annotation delaymq.io/register is missing"),
        ({"annotations": {ANNOTATION: "broker-a-0"}}, "the annotation delaymq.io/register is invalid"),
        ({"annotations": {ANNOTATION: '{"version":2}'}}, "version 2 is not supported, only 1: upgrade this broker"),
        ({"annotations": {ANNOTATION: encode(record(8))}}, "states 'broker-a-0' and 8"),
        ({"annotations": {ANNOTATION: "x" * 20_000}}, "20000 bytes exceed the limit"),
        ({"annotations": [1]}, "is no Lease"),
    ],
)
def test_edited_lease_is_an_error_and_no_record(edit: dict[str, Any], problem: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (register, api, version):
            written = await register.write(record(7), version, TIMEOUT_S)
            assert isinstance(written, Written)
            api.edit(**edit)
            with pytest.raises(RegisterError, match=problem):
                await register.read(TIMEOUT_S)
            api.edit(holderIdentity="broker-a-0", leaseTransitions=7, annotations={ANNOTATION: encode(record(7))})
            assert await register.read(TIMEOUT_S) == Content(api.version, record(7))

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["created again", "emptied"])
def test_lease_that_lost_its_record_is_a_register_without_one(change: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (register, api, version):
            written = await register.write(record(7), version, TIMEOUT_S)
            assert isinstance(written, Written)
            if change == "created again":
                api.create()
            else:
                api.edit(holderIdentity=None, leaseTransitions=None, annotations={})
            assert await register.read(TIMEOUT_S) == Content(api.version, None)
            assert isinstance(await register.write(record(8), written.version, TIMEOUT_S), Conflict)

    asyncio.run(scenario())


def test_missing_lease_names_its_creator(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World("lease", tmp_path).running() as world:
            assert isinstance(world.backend, FakeApiServer)
            world.backend.lease = None
            with pytest.raises(RegisterError, match="orders/orders-0-register does not exist: the operator creates"):
                await world.open().read(TIMEOUT_S)

    asyncio.run(scenario())


def test_missing_right_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (register, api, version):
            api.is_forbidden = True
            with pytest.raises(
                RegisterError, match="a Role in the namespace orders has to allow the verb get of leases"
            ):
                await register.read(TIMEOUT_S)
            outcome = await register.write(record(), version, TIMEOUT_S)
            assert isinstance(outcome, Unknown)
            assert "the verb patch of leases" in outcome.reason

    asyncio.run(scenario())


def test_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as (register, api, version):
            api.token = "rotated"
            with pytest.raises(RegisterError, match="rejects the token"):
                await register.read(TIMEOUT_S)
            write_account(tmp_path, "rotated")
            assert (await register.read(TIMEOUT_S)).version == version
            for content in ("", "two\nlines", "x" * 70_000, "\x00"):
                (tmp_path / "token").write_text(content)
                with pytest.raises(RegisterError, match="contains no token"):
                    await register.read(TIMEOUT_S)
            (tmp_path / "token").unlink()
            with pytest.raises(RegisterError, match="cannot read the token"):
                await register.read(TIMEOUT_S)

    asyncio.run(scenario())


def test_replaced_certificate_authority_is_loaded(tmp_path: Path) -> None:
    write_account(tmp_path)
    account = ServiceAccount(tmp_path)
    _, first = account.refresh()
    assert account.refresh()[1] is first
    (tmp_path / "ca.crt").write_bytes(Authority(tmp_path / "new", "new").certificate.read_bytes())
    _, second = account.refresh()
    assert [ca["subject"] for ca in second.get_ca_certs()] != [ca["subject"] for ca in first.get_ca_certs()]
    (tmp_path / "ca.crt").write_text("no PEM")
    with pytest.raises(RegisterError, match="contains no PEM certificates"):
        account.refresh()
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(RegisterError, match="cannot read the CA"):
        account.refresh()


def test_address_of_the_api_server_is_taken_from_the_environment() -> None:
    address = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert api_server_url(address) == "https://10.0.0.1:443"
    assert api_server_url({**address, "KUBERNETES_SERVICE_HOST": "fd00::1"}) == "https://[fd00::1]:443"
    assert api_server_url({**address, "KUBERNETES_SERVICE_PORT_HTTPS": "6443"}) == "https://10.0.0.1:6443"
    with pytest.raises(RegisterError, match="only in a pod"):
        api_server_url({})
