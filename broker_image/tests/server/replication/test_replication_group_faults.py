"""Real brokers of a group with damaged, empty and failed stores, and with requests during a switchover."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.replication import NoteKind, Settings
from delaymq.replication.events import SwitchOver
from delaymq.server.broker_server import BrokerServer
from delaymq.server.errors import ServerError
from delaymq_testing.broker.harness import broker_config
from delaymq_testing.replicated_group import Group, GroupMember, replicated
from delaymq_testing.running_server import BROKER_FIELDS, BrokerPeer, run, until

QUICK = Settings(replica_timeout_ms=2_000, renew_ms=300, retry_ms=200, defer_ms=200, lease_ms=2_000)


async def stop_all(group: Group) -> None:
    for member in group.members.values():
        await member.stop()


def stated(member: GroupMember) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((member.path / "store" / "delaymq" / "replica.json").read_bytes())
    return content


def test_group_without_any_message_continues_after_all_members_restarted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", QUICK) as group:
            await stop_all(group)
            epoch = group.register.record.epoch
            for member in group.members.values():
                await member.start()
            await until(lambda: group.register.record.epoch > epoch)
            master = await group.in_sync("a", "b")
            assert (await (await BrokerPeer.connect(master.port)).send("T", b"first")).code == ResponseCode.SUCCESS

    run(scenario)


def test_restarted_replica_does_not_reset_the_offsets_of_consumers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", QUICK) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            for number in range(5):
                assert (await peer.send("T", b"%d" % number)).code == ResponseCode.SUCCESS
            assert (await peer.pull("T", 0)).code == ResponseCode.SUCCESS
            await group["b"].stop()
            await group["b"].start()
            peer = await BrokerPeer.connect(group["b"].port)
            # A response that the offset has moved would let the consumer begin again.
            response = await peer.pull("T", 5, wait_ms=100)
            assert response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert response.fields["nextBeginOffset"] == "5"
            place: dict[str, Any] = {"topic": "T", "queueId": "0"}
            for code, more in (
                (RequestCode.GET_MAX_OFFSET, {}),
                (RequestCode.GET_MIN_OFFSET, {}),
                (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": "0"}),
                (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "G"}),
            ):
                response = await peer.connection.request(request_command(code, place | more))
                if code == RequestCode.QUERY_CONSUMER_OFFSET and response.code == ResponseCode.SUCCESS:
                    assert "offset" not in response.fields, "a Java client asks again"
                else:
                    assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(scenario)


def test_replica_names_the_damaged_record_that_it_does_not_accept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", QUICK) as group:
            await group["b"].stop()
            peer = await BrokerPeer.connect(group["a"].port)
            for number in range(3):
                await peer.send("T", b"content %d" % number)
            log = group["a"].path / "store" / "commitlog" / f"{0:020}"
            with log.open("r+b") as file:
                file.seek(log.read_bytes().index(b"content 1"))
                file.write(b"CONTENT")
            await group["b"].start()
            server = group["b"].server
            assert server is not None
            replica = server.replica
            assert replica is not None
            await until(lambda: any("the record at offset" in each for each in replica.problems()))
            assert "is damaged" in replica.problems()[0]

    run(scenario)


def test_held_sends_are_not_stored_by_the_former_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", QUICK) as group:
            peers = [await BrokerPeer.connect(group["a"].port) for _ in range(4)]
            assert (await peers[0].send("T", b"before")).code == ResponseCode.SUCCESS
            group["a"].replica.driver.handle(SwitchOver("b", group.register.record.epoch))
            answers = await asyncio.gather(*(peer.send("T", b"held") for peer in peers), return_exceptions=True)
            assert all(isinstance(answer, BaseException) for answer in answers), "clients repeat them"
            await until(lambda: group["b"].is_master)
            await group.in_sync("a", "b")
            assert len(group["a"].restarts) == 1, "a second restart cuts the log"

    run(scenario)


def test_held_requests_are_handled_if_the_target_does_not_take_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", QUICK._replace(hand_over_ms=1_200)) as group:
            peer, broker = await BrokerPeer.connect(group["a"].port), group["a"].running.broker
            assert (await peer.send("T", b"delayed", TIMER_DELAY_MS="300")).code == ResponseCode.SUCCESS
            paused = group["b"].replica.driver
            paused.handle = lambda event: None
            group["a"].replica.driver.handle(SwitchOver("b", group.register.record.epoch))
            held = asyncio.ensure_future(peer.send("T", b"held"))
            await until(lambda: broker.delivery.next_wakeup_ms() is not None and broker.store.refusal != "")
            assert not held.done()
            assert (await held).code == ResponseCode.SLAVE_NOT_AVAILABLE
            await until(lambda: not broker.delivery.pending_total())
            assert not group["a"].restarts

    run(scenario)


def test_damage_before_the_end_of_the_log_makes_a_member_no_candidate(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", QUICK) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            for _ in range(20):
                assert (await peer.send("T", b"x" * 100)).code == ResponseCode.SUCCESS
            end = group["a"].running.broker.store.end_offset
            await group["b"].stop()  # otherwise, it would take over
            await group["a"].stop()
            store = group["b"].path / "store"
            for name in ("snapshot.json", "snapshot.json.bak"):
                (store / "delaymq" / name).unlink(missing_ok=True)
            segment = sorted((store / "commitlog").iterdir())[0]
            content = bytearray(segment.read_bytes())
            content[end // 2] ^= 0xFF
            segment.write_bytes(content)
            await group["b"].start()
            assert group["b"].running.broker.store.end_offset < end
            note = group["b"].replica.driver.member.log.note
            assert note is not None
            assert note.kind is NoteKind.LOST_TAIL
            await group["a"].start()
            await group.in_sync("a", "b")
            await until(lambda: group["b"].running.broker.store.end_offset == end)

    run(scenario)


def test_note_of_a_lost_tail_is_on_disk_before_the_member_takes_part(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", QUICK) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS
            await stop_all(group)
            store = group["b"].path / "store"
            (store / "abort").touch()
            (store / "delaymq" / "replica.json").write_text(json.dumps(stated(group["b"]) | {"bootId": "another"}))
            await group["b"].start()
            note = stated(group["b"])["note"]
            assert note is not None, "a clean stop now would hide that power was lost"
            assert note["kind"] == "lost tail"

    run(scenario)


def test_master_whose_store_failed_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", QUICK) as group:
            peer = await BrokerPeer.connect(group["a"].port)
            assert (await peer.send("T", b"before")).code == ResponseCode.SUCCESS
            group["a"].running.broker.store.fail("the disk failed")
            await until(lambda: group["b"].is_master)
            await group.in_sync("a", "b")
            assert "the disk failed" in group["a"].restarts[0]
            peer = await BrokerPeer.connect(group["b"].port)
            assert (await peer.send("T", b"after")).code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)

    run(scenario)


def test_replica_whose_store_failed_restarts_and_catches_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", QUICK) as group:
            group["b"].running.broker.store.fail("the disk failed")
            await until(lambda: bool(group["b"].restarts))
            peer = await BrokerPeer.connect(group["a"].port)
            assert (await peer.send("T", b"x")).code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)
            await group.in_sync("a", "b")

    run(scenario)


def test_store_of_a_member_is_not_opened_without_replication(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "a") as group:
            await stop_all(group)
            config = broker_config(group["a"].path, **(BROKER_FIELDS | {"fast_port_enable": False}))
            with pytest.raises(ServerError, match="replicated group"):
                BrokerServer.open(config, http=False)

    run(scenario)


def test_isolated_former_master_does_not_reset_offsets(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", QUICK._replace(lease_ms=20_000)) as group:
            first = next(member for member in group.members.values() if member.is_master)
            other = next(member for member in group.members.values() if member is not first)
            peer = await BrokerPeer.connect(first.port)
            for _ in range(3):
                assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS
            first.isolate()
            await until(lambda: other.is_master)
            new = await BrokerPeer.connect(other.port)
            for _ in range(3):
                assert (await new.send("T", b"y")).code in (0, 11)
            assert first.is_master, "its lease is still valid"
            await until(lambda: first.replica.driver.member.may_be_replaced)
            answer = await peer.pull("T", 6, wait_ms=100)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert answer.fields["nextBeginOffset"] == "6"

    run(scenario)
