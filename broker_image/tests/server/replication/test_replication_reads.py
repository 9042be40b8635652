"""Replicas of a real group respond to pulls, and are registered as slaves while they are in sync."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from delaymq.config import NamesrvConfig
from delaymq.protocol.codes import ResponseCode
from delaymq.replication.events import SwitchOver
from delaymq.server.namesrv_server import NamesrvServer
from delaymq.server.replication import readers
from delaymq_testing.broker.harness import records_of
from delaymq_testing.replicated_group import Group, GroupMember, replicated
from delaymq_testing.running_server import HOST, BrokerPeer, run, until

READING: dict[str, Any] = {"slave_read_enable": True, "access_message_in_memory_max_ratio": 0}


async def knows_tables(replica: GroupMember, master: GroupMember) -> None:
    """Wait until a replica has the topic, the group and the messages of the master."""
    ours, theirs = replica.running.broker, master.running.broker
    await until(lambda: "T" in ours.topics.table and "G" in ours.groups.table)
    await until(lambda: ours.store.confirmed_offset == theirs.store.end_offset)


def test_slow_consumer_reads_from_a_replica_and_a_restarted_one_does_not_move_its_offset(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", **READING) as group:
            master, replica = group["a"], group["b"]
            peer = await BrokerPeer.connect(master.port)
            for number in range(12):
                assert (await peer.send("T", b"%d" % number)).code == ResponseCode.SUCCESS
            response = await peer.pull("T", 0)
            assert response.fields["suggestWhichBrokerId"] == "2"
            await knows_tables(replica, master)
            peer = await BrokerPeer.connect(replica.port)
            response = await peer.pull("T", 0)
            assert [record.body for record in records_of(response.body)] == [b"%d" % number for number in range(8)]
            assert response.fields["suggestWhichBrokerId"] == "2"
            waiting = peer.pull("T", 12)
            assert (await (await BrokerPeer.connect(master.port)).send("T", b"new")).code == ResponseCode.SUCCESS
            response = await waiting
            assert [record.body for record in records_of(response.body)] == [b"new"]

            await group["a"].stop()
            await group["b"].stop()
            await replica.start()
            replica.isolate()
            peer = await BrokerPeer.connect(replica.port)
            response = await peer.pull("T", 13, wait_ms=200)
            assert response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert (response.fields["nextBeginOffset"], response.fields["suggestWhichBrokerId"]) == ("13", "0")

    run(scenario)


@asynccontextmanager
async def registered(path: Path, names: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Group, Any]]:
    """A group with a NameServer, and a function that returns the group's addresses by broker id."""
    monkeypatch.setattr(readers, "CHECK_S", 0.02)
    monkeypatch.setattr(readers, "LEAVE_AFTER_S", 0.1)
    namesrv = NamesrvServer(NamesrvConfig(listen_port=0, kv_config_path=""), None)
    await namesrv.start(http=False)
    try:
        async with replicated(path, names, namesrv_addr=f"{HOST}:{namesrv.port}", **READING) as group:

            def members() -> dict[int, str]:
                brokers = namesrv.namesrv.routes.groups
                by_port = {f"{HOST}:{member.port}": member.name for member in group.members.values()}
                addresses = brokers["broker-a"].addresses if "broker-a" in brokers else {}
                return {number: by_port[address] for number, address in addresses.items()}

            yield group, members
    finally:
        await namesrv.stop()


def test_replicas_are_registered_under_the_ids_of_their_names_while_they_are_in_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with registered(tmp_path / "g", "abc", monkeypatch) as (group, members):
            await until(lambda: members() == {0: "a", 2: "b", 3: "c"})
            group["a"].replica.driver.handle(SwitchOver("b", 1))
            await until(lambda: members() == {0: "b", 1: "a", 3: "c"})
            await group["c"].stop()
            await until(lambda: members() == {0: "b", 1: "a"})
            group["a"].replica.links.set_members({})  # it receives nothing more
            await until(lambda: members() == {0: "b"})

    run(scenario)


def test_former_master_stops_registering_before_it_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with registered(tmp_path / "g", "ab", monkeypatch) as (group, members):
            await until(lambda: members() == {0: "a", 2: "b"})
            server = group["a"].running
            server.stop_leading()
            before = [link.registrations for link in server.registration.links]
            server.registration.register_soon()
            server.broker.topics.announce()
            group["a"].replica.driver.handle(SwitchOver("b", 1))
            await until(lambda: members() == {0: "b", 1: "a"})
            assert [link.registrations for link in server.registration.links] == before

    run(scenario)


def test_new_master_repeats_its_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaymq.server.registration.INSISTING_INTERVAL_S", 0.05)

    async def scenario() -> None:
        async with registered(tmp_path / "g", "a", monkeypatch) as (group, _):
            (link,) = group["a"].running.registration.links
            await until(lambda: link.registrations >= 5)
            link.insists_until = 0
            await until(lambda: link.problem is None)

    run(scenario)
