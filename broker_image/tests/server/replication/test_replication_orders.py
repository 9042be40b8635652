"""State of a group over HTTP, orders of administrators, changed members, and the group's first record."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from delaymq.api_types.replication import DetachBody, EpochBody, NoteBody, Replication, SwitchoverBody
from delaymq.protocol.codes import ResponseCode
from delaymq.replication import Settings
from delaymq.server.api import replication as api
from delaymq.server.api.routing import Api, ApiError
from delaymq.server.main import EXIT_FAILED, Again
from delaymq_testing.replicated_group import Group, GroupMember, MemoryRegister, replicated
from delaymq_testing.running_server import BrokerPeer, run, until


def of(member: GroupMember) -> Api:
    return cast("Api", SimpleNamespace(server=member.running))


def state_of(member: GroupMember) -> Replication:
    return api.state(member.running, member.replica)


async def refused(order: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        await order
    return raised.value


def test_state_of_master_and_replica(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            peer = await BrokerPeer.connect(group["a"].port)
            assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS
            stores = [group[name].running.broker.store for name in "ab"]
            await until(lambda: stores[1].confirmed_offset == stores[0].confirmed_offset == stores[0].end_offset)
            await until(lambda: not state_of(group["b"]).problem)
            master, replica = await api.replication(of(group["a"])), await api.replication(of(group["b"]))
            assert (master.role, master.master, master.in_sync) == ("Master", "a", ("a", "b"))
            assert (replica.role, replica.master, replica.in_sync) == ("Replica", "a", ())
            assert master.confirmed == master.end == replica.end == replica.confirmed
            assert (master.problem, replica.problem) == ("", "")
            by_name = {each.name: each for each in master.members}
            assert by_name["b"].behind_bytes == 0
            assert (by_name["b"].connected, by_name["b"].in_sync) == (True, True)
            assert all(each.behind_bytes is None for each in replica.members)
            await group["b"].stop()
            await until(lambda: state_of(group["a"]).in_sync == ("a",))
            members = state_of(group["a"]).members
            assert [(each.name, each.connected, each.in_sync) for each in members] == [
                ("a", True, True),
                ("b", False, False),
            ]

    run(scenario)


def test_orders_apply_to_one_epoch_and_one_role(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            a, b = of(group["a"]), of(group["b"])
            epoch = group["a"].replica.driver.member.epoch
            wrong = (
                api.switch_over(a, SwitchoverBody(target="b", epoch=epoch + 1)),
                api.promote(b, EpochBody(epoch=epoch - 1)),
                api.prepare_detach(b, EpochBody(epoch=epoch + 1)),
            )
            for order in wrong:
                error = await refused(order)
                assert error.status == 409
                assert f"the epoch is {epoch}, not" in str(error)
            assert "is not a connected replica in sync" in str(
                await refused(api.switch_over(a, SwitchoverBody(target="z", epoch=epoch)))
            )
            assert "this member is not the master" in str(
                await refused(api.switch_over(b, SwitchoverBody(target="a", epoch=epoch)))
            )
            assert "this member is the master" in str(await refused(api.promote(a, EpochBody(epoch=epoch))))
            assert group["a"].is_master
            state = await api.switch_over(a, SwitchoverBody(target="b", epoch=epoch))
            assert state.held
            await until(lambda: group["b"].is_master)

    run(scenario)


def test_detached_member_is_not_waited_for_and_returns_when_it_has_caught_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", Settings(replica_timeout_ms=20_000)) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            epoch = group["a"].replica.driver.member.epoch
            forged = DetachBody(member="b", epoch=epoch, note=NoteBody(kind="detached", epoch=epoch - 1, serial=7))
            assert "may be a candidate again" in str(await refused(api.detach(of(group["a"]), forged)))
            group["a"].replica.driver.register = MemoryRegister(is_down=True)
            note = (await api.prepare_detach(of(group["b"]), EpochBody(epoch=epoch))).note
            assert (note.kind, note.epoch) == ("detached", epoch)
            await group["b"].stop()
            body = DetachBody(
                member="b", epoch=epoch, note=NoteBody(kind="detached", epoch=note.epoch, serial=note.serial)
            )
            assert (await api.detach(of(group["a"]), body)).in_sync == ("a",)
            assert (await peer.send("T", b"x")).code == ResponseCode.SLAVE_NOT_AVAILABLE
            group["a"].replica.driver.register = group.register
            await group["b"].start()
            await until(lambda: group["b"].replica.driver.member.log.note is None)
            await group.in_sync("a", "b")

    run(scenario)


def test_stopped_master_hands_over_to_a_replica(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", Settings(waits_for_replicas=False)) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS
            end = group["a"].running.broker.store.end_offset
            # The lease would expire only after 10 s.
            await asyncio.wait_for(group["a"].stop(), 8)
            assert group["a"].restarts == []
            await until(lambda: group["b"].is_master)
            assert group["b"].running.broker.store.end_offset >= end

    run(scenario)


def test_members_write_the_first_record_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        group = Group(tmp_path / "g", "abc", Settings(), {})
        group.register = MemoryRegister()
        try:
            await group["a"].start()
            await group["b"].start()
            await until(lambda: "do not answer: c" in state_of(group["a"]).problem)
            assert group.master is None
            await group["c"].start()
            await until(lambda: group.register.content is not None)
            await group.in_sync("a", "b", "c")
            group.register.delete()
            await until(lambda: group.register.content is not None and group.register.record.epoch > 1)
            await group.in_sync("a", "b", "c")
        finally:
            for member in group.members.values():
                await member.stop()

    run(scenario)


def test_changed_members_take_effect_without_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            listed = {"a": group.addresses["a"]}
            group["a"].replica.set_members(listed)
            await until(lambda: group.register.record.in_sync == {"a"})
            assert group["a"].is_master
            group["a"].replica.set_members(group.addresses)
            await group.in_sync("a", "b")

    run(scenario)


def test_process_whose_log_cannot_be_replaced_fails_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    again = Again()
    again.request("the log diverges", fail)
    assert again.execute() == EXIT_FAILED
    assert "cannot restart: [Errno 28] No space left on device" in capsys.readouterr().err
