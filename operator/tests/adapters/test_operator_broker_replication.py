"""The replication requests of the BrokerAdmin port, against the members of a real group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from delaymq_operator.adapters.broker_admin import HttpBrokerAdmin
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Endpoint
from delaymq_testing.replicated_group import Group, replicated
from delaymq_testing.running_server import HOST, run, standalone, until

TOKEN = "secret"


def endpoint(group: Group, name: str) -> Endpoint:
    server = group[name].running
    assert server.http_port is not None
    return Endpoint(host=HOST, broker_port=server.port, http_port=server.http_port, token=TOKEN)


@asynccontextmanager
async def a_group(path: Path, names: str = "ab") -> AsyncIterator[tuple[HttpBrokerAdmin, Group]]:
    async with replicated(path / "g", names, http=True, http_token=TOKEN) as group:
        admin = HttpBrokerAdmin(timeout_s=5)
        try:
            yield admin, group
        finally:
            await admin.close()


def test_members_state_their_roles_and_the_master_who_is_in_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_group(tmp_path) as (admin, group):
            master = await admin.replication(endpoint(group, "a"))
            replica = await admin.replication(endpoint(group, "b"))
            assert master is not None
            assert replica is not None
            assert (master.member, master.role, master.in_sync) == ("a", "Master", ("a", "b"))
            assert (replica.member, replica.role, replica.master) == ("b", "Replica", "a")
            assert master.epoch == replica.epoch > 0
            [progress] = [each for each in master.members if each.name == "b"]
            assert (progress.in_sync, progress.behind_bytes) == (True, 0)

    run(scenario)


def test_broker_without_replicas_has_no_replication(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_token=TOKEN) as server:
            admin = HttpBrokerAdmin(timeout_s=5)
            assert server.broker.http_port is not None
            at = Endpoint(host=HOST, broker_port=server.broker.port, http_port=server.broker.http_port, token=TOKEN)
            assert await admin.replication(at) is None
            with pytest.raises(BrokerRefused):
                await admin.switch_over(at, "b", 1)
            with pytest.raises(BrokerUnreachable):
                await admin.replication(Endpoint(host=HOST, broker_port=1, http_port=1, token=TOKEN))
            await admin.close()

    run(scenario)


def test_master_hands_over_only_in_its_epoch_and_to_a_member(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_group(tmp_path) as (admin, group):
            epoch = group["a"].replica.driver.member.epoch
            for target, stated in (("b", epoch + 1), ("c", epoch)):
                with pytest.raises(BrokerRefused) as refused:
                    await admin.switch_over(endpoint(group, "a"), target, stated)
                assert refused.value.code == "refused"
            with pytest.raises(BrokerRefused):
                await admin.switch_over(endpoint(group, "b"), "a", epoch)
            await admin.switch_over(endpoint(group, "a"), "b", epoch)
            await until(lambda: group["b"].is_master)

    run(scenario)


def test_replica_leaves_its_group_by_its_own_statement(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_group(tmp_path, "abc") as (admin, group):
            epoch = group["a"].replica.driver.member.epoch
            with pytest.raises(BrokerRefused):
                await admin.detach(endpoint(group, "c"), endpoint(group, "a"), "c", epoch + 1)
            await admin.detach(endpoint(group, "c"), endpoint(group, "a"), "c", epoch)
            await until(lambda: "c" not in group.register.record.in_sync)
            assert group.register.record.in_sync == {"a", "b"}

    run(scenario)


def test_promotion_needs_the_epoch_of_the_member(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_group(tmp_path) as (admin, group):
            epoch = group["b"].replica.driver.member.epoch
            with pytest.raises(BrokerRefused) as refused:
                await admin.promote(endpoint(group, "b"), epoch - 1)
            assert refused.value.code == "refused"
            await admin.promote(endpoint(group, "b"), epoch)
            await until(lambda: group["b"].is_master)

    run(scenario)
