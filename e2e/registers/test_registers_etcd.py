"""The register in a real etcd: races, crashed and suspended members, TLS and accounts."""

import asyncio
import signal
import ssl
from pathlib import Path

import pytest
from delaymq.config.register_keys import RegisterKeys
from delaymq.replication import Record
from delaymq.server.registers import Content, RegisterError, Unknown, Written
from delaymq.server.registers.etcd import NO_KEY, EtcdRegister
from delaymq.server.tls.contexts import register_context
from delaymq_operator_testing.api_server import Programs
from registers.etcd_processes import EtcdCluster
from registers.race import MEMBERS, TIMEOUT_S, Race

KEY = "/delaymq/DefaultCluster/broker-a/register"
SUSPENDED_S = 3.0
"""Longer than a request may take."""
RECORD = Record(1, MEMBERS[0], 1, frozenset(MEMBERS))


def test_one_of_two_writers_wins_each_version_across_a_crash(kubernetes_programs: Programs, tmp_path: Path) -> None:
    async def scenario(etcd: EtcdCluster) -> Race:
        registers = [EtcdRegister(etcd.urls, KEY) for _ in range(2)]
        race = Race(registers)
        await race.run(500, lambda number: etcd.crash(0) if number == 250 else None)
        for register in registers:
            await register.close()
        return race

    with EtcdCluster(kubernetes_programs.etcd, tmp_path) as etcd:
        race = asyncio.run(scenario(etcd))
        length = race.verify()
        print(race.figures("etcd, 1 member"))
        assert length >= 495
        assert race.counts()["Conflict"] >= 495
        # Revisions 2 to `last` are those of the key.
        assert int(race.last) - 1 == length


def test_writes_without_a_quorum_are_unknown_until_a_read(kubernetes_programs: Programs, tmp_path: Path) -> None:
    async def scenario(etcd: EtcdCluster) -> Race:
        registers = [EtcdRegister(etcd.urls[first:] + etcd.urls[:first], KEY) for first in range(2)]
        race = Race(registers)

        def suspend(number: int) -> None:
            if number == 100:
                for process in etcd.processes[1:]:
                    process.suspend()
                    asyncio.get_running_loop().call_later(SUSPENDED_S, process.signal, signal.SIGCONT)

        await race.run(200, lambda number: etcd.crash(0) if number == 50 else None, suspend)
        for register in registers:
            await register.close()
        return race

    with EtcdCluster(kubernetes_programs.etcd, tmp_path, members=3) as etcd:
        race = asyncio.run(scenario(etcd))
        print(race.figures("etcd, 3 members"))
        assert race.verify() >= 190
        assert race.counts()["Unknown"] >= 2


def test_account_and_client_certificate_are_used(kubernetes_programs: Programs, tmp_path: Path) -> None:
    async def scenario(etcd: EtcdCluster) -> None:
        assert etcd.authority is not None
        # With accounts, etcd's gateway rejects certificates whose subject has a common name.
        pair = etcd.authority.issue("broker", has_subject=False)
        named = etcd.authority.issue("named")
        keys = RegisterKeys()
        object.__setattr__(keys, "tls_register_trust_cert_path", str(etcd.authority.certificate))
        without_certificate = register_context(keys)
        object.__setattr__(keys, "tls_register_cert_path", str(pair.certificate))
        object.__setattr__(keys, "tls_register_key_path", str(pair.key))
        tls = register_context(keys)
        object.__setattr__(keys, "tls_register_cert_path", str(named.certificate))
        object.__setattr__(keys, "tls_register_key_path", str(named.key))
        with_name = register_context(keys)

        async def read(
            user: str = "broker", password: str = "secret", key: str = KEY, context: ssl.SSLContext = tls
        ) -> Content:
            register = EtcdRegister(etcd.urls, key, tls=context, user=user, password=lambda: password)
            try:
                return await register.read(TIMEOUT_S)
            finally:
                await register.close()

        assert await read() == Content(NO_KEY, None)
        with pytest.raises(RegisterError, match="cannot read etcd"):
            await read(context=without_certificate)
        with pytest.raises(RegisterError, match="user name is empty: set replicaRegisterUser"):
            await read(user="")
        with pytest.raises(RegisterError, match="authentication failed"):
            await read(password="wrong")
        with pytest.raises(RegisterError, match="use a client certificate whose subject has no common name"):
            await read(context=with_name)
        with pytest.raises(RegisterError, match="permission denied: grant the user"):
            await read(key="/other")
        register = EtcdRegister(etcd.urls, KEY, tls=tls, user="broker", password=lambda: "secret")
        assert isinstance(await register.write(RECORD, NO_KEY, TIMEOUT_S), Written)
        # etcd keeps tokens in memory.
        etcd.crash(0)
        etcd.processes[0].wait_until(lambda: _responds(etcd), timeout_s=30)
        content = await register.read(TIMEOUT_S)
        assert content.record == RECORD
        written = await register.write(RECORD, content.version, TIMEOUT_S)
        assert isinstance(written, Written)
        assert await register.read(TIMEOUT_S) == Content(written.version, RECORD)
        denied = EtcdRegister(etcd.urls, "/other", tls=tls, user="broker", password=lambda: "secret")
        assert isinstance(await denied.write(RECORD, NO_KEY, TIMEOUT_S), Unknown)
        await register.close()
        await denied.close()

    with EtcdCluster(kubernetes_programs.etcd, tmp_path, with_tls=True) as etcd:
        etcd.enable_accounts("broker", "secret", "/delaymq/DefaultCluster/broker-a/")
        asyncio.run(scenario(etcd))


def _responds(etcd: EtcdCluster) -> bool:
    try:
        etcd.call("auth/authenticate", {"name": "broker", "password": "secret"})
    except OSError:
        return False
    return True
