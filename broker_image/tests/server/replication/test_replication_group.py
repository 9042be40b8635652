"""Real brokers replicate their log, take over from each other, and return as replicas."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from shutil import rmtree
from typing import Any

from delaymq.protocol.codes import ResponseCode
from delaymq.replication import Settings
from delaymq.replication.events import SwitchOver
from delaymq.store.reader import StoreReader
from delaymq_testing.broker.followers import check_copies
from delaymq_testing.replicated_group import Group, GroupMember, delete_old_segments, replicated
from delaymq_testing.running_server import BrokerPeer, run, until

STORED = (ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)


def records(member: GroupMember) -> list[tuple[str, bytes]]:
    """Topic and body of the records in a member's log, which the store's own reader returns."""
    return [(record.topic, record.body) for record in StoreReader(member.path / "store").records()]


def segments(member: GroupMember) -> dict[str, bytes]:
    """Log segments by name, without those that contain nothing yet."""
    files = sorted((member.path / "store" / "commitlog").iterdir())
    return {file.name: data for file in files if any(data := file.read_bytes())}


async def same_end(group: Group, *members: str) -> None:
    """Wait until logs end at the same offset, all of which is confirmed."""
    stores = [group[name].running.broker.store for name in members]
    await until(lambda: len({(each.end_offset, each.confirmed_offset) for each in stores}) == 1)
    await until(lambda: stores[0].confirmed_offset == stores[0].end_offset)


async def send_mixed(peer: BrokerPeer, count: int, prefix: str, body: bytes = b"x" * 500) -> None:
    """Send messages of which some are delayed, each with a unique id. A busy replica may be out of sync meanwhile."""
    for number in range(count):
        delay: dict[str, Any] = ({}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "1500"})[number % 3]
        response = await peer.send("T", body, UNIQ_KEY=f"{prefix}{number:05d}", **delay)
        assert response.code in STORED, response.remark


def test_segments_of_all_members_are_identical_and_delays_survive_a_switchover(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "abc") as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await send_mixed(peer, 900, "A")
            group["a"].replica.driver.handle(SwitchOver("b", 1))
            await until(lambda: group["b"].is_master)
            await until(lambda: group["a"].restarts and group["a"].server is not None)
            master = await group.in_sync("a", "b", "c")
            peer = await BrokerPeer.connect(master.port)
            await send_mixed(peer, 300, "B")
            await until(lambda: not master.running.broker.delivery.pending_total())
            await same_end(group, "a", "b", "c")
            assert not group["c"].running.broker.delivery.pending_total()
            reference = segments(group["a"])
            assert len(reference) > 2
            assert segments(group["b"]) == reference
            assert segments(group["c"]) == reference
        for name in "abc":
            copies = check_copies(group[name].path / "store")
            assert sorted(str(key) for _, key, _ in copies) == sorted(
                f"{prefix}{number:05d}"
                for prefix, count in (("A", 900), ("B", 300))
                for number in range(count)
                if number % 3
            )

    run(scenario)


def test_send_is_acknowledged_when_all_members_in_sync_have_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", Settings()) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            assert (await peer.send("T", b"both")).code == ResponseCode.SUCCESS
            await group["b"].stop()
            response = await peer.send("T", b"only here")  # the set still contains the replica
            assert response.code == ResponseCode.SLAVE_NOT_AVAILABLE
            assert group.register.record.in_sync == {"a"}
            await group["b"].start()
            await group.in_sync("a", "b")
            assert (await peer.send("T", b"both again")).code == ResponseCode.SUCCESS
            await same_end(group, "a", "b")
            assert records(group["a"]) == records(group["b"])

    run(scenario)


def test_sends_are_refused_unstored_while_too_few_members_are_in_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = Settings(min_in_sync=2)
        async with replicated(tmp_path / "g", "ab", settings) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await group["b"].stop()
            await until(lambda: group.register.record.in_sync == {"a"})
            await until(lambda: group["a"].running.broker.store.refusal)
            end = group["a"].running.broker.store.end_offset
            response = await peer.send("T", b"nowhere")
            assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "fewer than 2 members" in (response.remark or "")
            assert group["a"].running.broker.store.end_offset == end

    run(scenario)


def test_replica_refuses_sends_and_names_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            peer = await BrokerPeer.connect(group["b"].port)
            response = await peer.send("T", b"x")
            assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "replica" in (response.remark or "")

    run(scenario)


def test_readers_see_nothing_that_replicas_do_not_have(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = Settings(replica_timeout_ms=20_000, waits_for_replicas=False)
        async with replicated(tmp_path / "g", "ab", settings) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            assert (await peer.send("T", b"first", queue_id=0)).code == ResponseCode.SUCCESS
            store = group["a"].running.broker.store
            await same_end(group, "a", "b")
            group.register.is_down = True
            await group["b"].stop()
            assert (await peer.send("T", b"second", queue_id=0)).code == ResponseCode.SUCCESS
            assert store.confirmed_offset < store.end_offset
            assert store.queue_bounds("T", 0)[1] == 1
            assert store.stored_bounds("T", 0)[1] == 2

    run(scenario)


def test_former_master_is_cut_where_its_log_diverges(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = Settings(replica_timeout_ms=1_000, renew_ms=500, lease_ms=2_500)
        async with replicated(tmp_path / "g", "abc", settings) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await send_mixed(peer, 30, "A")
            await same_end(group, "a", "b", "c")
            former = group["a"]
            former.isolate()
            lost = [asyncio.ensure_future(peer.send("T", b"lost", UNIQ_KEY=f"L{number}")) for number in range(5)]
            await until(lambda: group.master is not None and group.master.name != "a")
            await until(lambda: former.restarts)  # its lease has expired
            for each in await asyncio.gather(*lost, return_exceptions=True):
                assert isinstance(each, BaseException) or each.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            master = await group.in_sync("a", "b", "c")
            assert any("diverges" in reason for reason in former.restarts)
            assert (await (await BrokerPeer.connect(master.port)).send("T", b"kept")).code == ResponseCode.SUCCESS
            await same_end(group, "a", "b", "c")
            assert segments(group["a"]) == segments(group["b"]) == segments(group["c"])
            assert not any(body == b"lost" for _, body in records(group["a"]))
            assert any((group["a"].path / "store" / "delaymq" / "aside").iterdir())

    run(scenario)


def test_empty_member_receives_the_log_from_the_masters_oldest_segment(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", file_reserved_time=1) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await send_mixed(peer, 1_500, "A", b"x" * 700)
            store = group["a"].running.broker.store
            await until(lambda: not group["a"].running.broker.delivery.pending_total())
            await same_end(group, "a", "b")
            await group["b"].stop()
            await delete_old_segments(group["a"])
            rmtree(group["b"].path)
            await group["b"].start()
            await group.in_sync("a", "b")
            await same_end(group, "a", "b")
            assert group["b"].running.broker.store.min_offset == store.min_offset
            assert segments(group["b"]) == segments(group["a"])
            stated = json.loads((group["b"].path / "store" / "delaymq" / "epochs.json").read_bytes())
            assert stated["storeId"] == store.store_id

    run(scenario)


def test_log_that_the_master_cannot_continue_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", file_reserved_time=1) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            await send_mixed(peer, 60, "A")
            await same_end(group, "a", "b")
            await group["b"].stop()
            await until(lambda: group.register.record.in_sync == {"a"})
            await until(lambda: group["a"].running.flushing.in_sync == 1)
            for number in range(1_500):
                await peer.send("T", b"x" * 700, UNIQ_KEY=f"B{number:05d}")
            broker = group["a"].running.broker
            await until(lambda: not broker.delivery.pending_total())
            await delete_old_segments(group["a"])
            await group["b"].start()
            await until(lambda: group["b"].restarts and group["b"].server is not None)
            await group.in_sync("a", "b")
            assert "discarded" in group["b"].restarts[0]
            await same_end(group, "a", "b")
            assert segments(group["b"]) == segments(group["a"])

    run(scenario)
