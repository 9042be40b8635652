"""Backups from members of a real group, and what a restored store is to the group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from delaymq.api_types.store import Store
from delaymq.cli.commands.store.remote_source import RemoteSource
from delaymq.cli.errors import CommandError
from delaymq.cli.target.contexts import target
from delaymq.clock import now_ms
from delaymq.protocol.codes import ResponseCode
from delaymq.replication import NoteKind, Settings
from delaymq.replication.events import SwitchOver
from delaymq.server.replication.member_files import refuse_members_store
from delaymq.store.backup.backup import Backup, BackupResult
from delaymq.store.backup.restore import Restore
from delaymq.store.backup.source import FolderSource
from delaymq.store.errors import BackupError
from delaymq.store.reader import StoreReader
from delaymq_testing.replicated_group import Group, GroupMember, replicated
from delaymq_testing.running_server import HOST, BrokerPeer, run, until

QUICK = Settings(replica_timeout_ms=1_000, renew_ms=300, retry_ms=200, defer_ms=200, lease_ms=3_000)

PATIENT = QUICK._replace(replica_timeout_ms=20_000)
"""Both members stay in the set when both are stopped."""


def bodies(store: Path) -> list[bytes]:
    return [record.body for record in StoreReader(store).records() if record.topic == "T"]


async def send(group: Group, *sent: bytes) -> None:
    master = group.master
    assert master is not None
    peer = await BrokerPeer.connect(master.port)
    for body in sent:
        response = await peer.send("T", body)
        assert response.code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE), response.remark


async def back_up(member: GroupMember, folder: Path, read: Any = None) -> BackupResult:
    """Back up a member over HTTP; `read` is called before each read of the log."""
    source = RemoteSource(target(http=f"http://{HOST}:{member.running.http_port}"), str(folder))
    if read is not None:
        original = source.read

        def reading(base: int, position: int, count: int) -> bytes:
            read()
            return original(base, position, count)

        source.read = reading

    def copy() -> BackupResult:
        try:
            return Backup(source, str(folder), program="test", now_ms=now_ms).run()
        finally:
            source.close()

    return await asyncio.to_thread(copy)


def restore(backup: Path, store: Path) -> None:
    restoring = Restore(str(backup), str(store))
    restoring.lay_out()
    restoring.finish()


@asynccontextmanager
async def in_sync(path: Path, settings: Settings = QUICK) -> AsyncIterator[Group]:
    async with replicated(path, "ab", settings, http=True) as group:
        yield group


def test_backups_from_all_members_continue_each_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_sync(tmp_path / "g") as group:
            await send(group, b"1", b"2")
            first = await back_up(group["b"], tmp_path / "backup")
            assert first.manifest.end_offset == group["a"].running.broker.store.end_offset
            await send(group, b"3")
            group["a"].replica.driver.handle(SwitchOver("b", group.register.record.epoch))
            await until(lambda: group["b"].is_master)
            await group.in_sync("a", "b")
            await send(group, b"4")
            for member in (group["a"], group["b"]):
                again = await back_up(member, tmp_path / "backup")
                assert again.manifest.store_id == first.manifest.store_id
                assert not again.renewed, "the logs are identical"
            folder = FolderSource(str(group["b"].path / "store"))
            assert folder.state().store_id == first.manifest.store_id
            folder.close()
        restore(tmp_path / "backup", tmp_path / "restored")
        refuse_members_store(tmp_path / "restored")
        assert bodies(tmp_path / "restored") == [b"1", b"2", b"3", b"4"]

    run(scenario)


def test_backup_ends_at_what_all_members_in_sync_have(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = Settings(replica_timeout_ms=20_000, waits_for_replicas=False)
        async with replicated(tmp_path / "g", "ab", settings, http=True) as group:
            await send(group, b"on both")
            store = group["a"].running.broker.store
            await until(lambda: store.confirmed_offset == store.end_offset)
            end = store.end_offset
            group["b"].isolate()
            await send(group, b"on the master only")
            source = RemoteSource(
                target(http=f"http://{HOST}:{group['a'].running.http_port}"), str(tmp_path / "backup")
            )
            stated = await asyncio.to_thread(source._get, "/api/v1/store", Store)
            assert (stated.end_offset, stated.member) == (end, "a")
            await asyncio.to_thread(source.close)

    run(scenario)


def test_restart_of_the_member_ends_its_backup_and_the_next_one_continues(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_sync(tmp_path / "g") as group:
            await send(group, *(b"%d" % number * 2_000 for number in range(5)))
            loop, reads = asyncio.get_running_loop(), 0

            async def restarted() -> None:
                await group["b"].stop()
                group.changes["http_port"] = port
                await group["b"].start()
                await group.in_sync("a", "b")
                await until(lambda: group["b"].replica.driver.member.may_read)

            def read() -> None:
                nonlocal reads
                reads += 1
                if reads == 1:
                    asyncio.run_coroutine_threadsafe(restarted(), loop).result(timeout=30)

            port = group["b"].running.http_port
            with pytest.raises(BackupError, match="restarted"):
                await back_up(group["b"], tmp_path / "backup", read)
            await back_up(group["b"], tmp_path / "backup")
        restore(tmp_path / "backup", tmp_path / "restored")
        assert len(bodies(tmp_path / "restored")) == 5

    run(scenario)


def test_member_that_is_not_in_sync_is_not_backed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaymq.cli.commands.store.remote_source.TRIES", 1)

    async def scenario() -> None:
        async with in_sync(tmp_path / "g") as group:
            await send(group, b"1")
            group["b"].isolate()
            await until(lambda: not group["b"].replica.driver.member.may_read)
            with pytest.raises(CommandError, match="503 not_in_sync: member b of the group is not in sync"):
                await back_up(group["b"], tmp_path / "backup")

    run(scenario)


async def restored_backup(path: Path) -> Path:
    """A store with three messages, restored from a backup of a member, whose group then stored another one."""
    async with in_sync(path / "g") as group:
        await send(group, b"1", b"2", b"3")
        await back_up(group["b"], path / "backup")
        await send(group, b"4")
    restore(path / "backup", path / "restored")
    return path / "restored"


def test_restored_store_is_the_first_member_of_a_new_group(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await restored_backup(tmp_path)
        (tmp_path / "new" / "a").mkdir(parents=True)
        store.rename(tmp_path / "new" / "a" / "store")
        async with in_sync(tmp_path / "new") as group:
            await send(group, b"new")
            ids = {member.replica.log_id for member in group.members.values()}
            assert len(ids) == 1
            assert group["a"].running.broker.store.store_id not in ids, "its log is another one than the original's"
        for name in "ab":
            assert bodies(tmp_path / "new" / name / "store") == [b"1", b"2", b"3", b"new"]

    run(scenario)


def test_restored_store_does_not_take_over_its_original_group(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_sync(tmp_path / "g", PATIENT) as group:
            await send(group, b"1", b"2", b"3")
            await back_up(group["b"], tmp_path / "backup")
            await send(group, b"4")
            for name in "ab":
                await group[name].stop()
            assert group.register.record.in_sync == {"a", "b"}
            restored = group["a"].path / "store"
            restored.rename(group["a"].path / "lost")
            restore(tmp_path / "backup", restored)
            await group["a"].start()
            note = group["a"].replica.driver.member.log.note
            assert note is not None
            assert note.kind is NoteKind.LOST_TAIL
            await group["b"].start()
            await until(lambda: group["b"].is_master)
            await until(lambda: group["a"].replica.driver.failure)
            assert "attach the right volume, or delete this one" in group["a"].replica.driver.failure
            assert bodies(restored) == [b"1", b"2", b"3"], "nothing is cut"
        assert bodies(tmp_path / "g" / "b" / "store") == [b"1", b"2", b"3", b"4"]

    run(scenario)


def test_group_that_lost_all_volumes_continues_with_a_restored_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with in_sync(tmp_path / "g", PATIENT) as group:
            await send(group, b"1", b"2")
            await back_up(group["b"], tmp_path / "backup")
            for name in "ab":
                await group[name].stop()
                (group[name].path / "store").rename(group[name].path / "lost")
            restore(tmp_path / "backup", group["a"].path / "store")
            for name in "ab":
                await group[name].start()
            assert await group.in_sync("a", "b") is group["a"]
            await send(group, b"3")
        for name in "ab":
            assert bodies(tmp_path / "g" / name / "store") == [b"1", b"2", b"3"]

    run(scenario)
