"""The address that the members of a group share: masters publish theirs, replicas send clients there."""

import asyncio
from pathlib import Path

from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.replication.events import SwitchOver
from delaymq.server.replication.replica import LINGER_S
from delaymq.transport import TransportError
from delaymq_testing.replicated_group import replicated
from delaymq_testing.running_server import BrokerPeer, run, until


def test_each_master_publishes_its_address_with_its_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", publishes=True) as group:
            epoch = group["a"].replica.driver.member.epoch
            assert group.published == [("a", epoch)]
            group["a"].replica.driver.handle(SwitchOver("b", epoch))
            await until(lambda: group["b"].is_master)
            assert group.published == [("a", epoch), ("b", group["b"].replica.driver.member.epoch)]
            assert group.published[1][1] > epoch

    run(scenario)


def test_master_whose_address_is_not_published_is_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", publishes=True) as group:
            assert group["a"].replica.problems() == []
            group.unpublished = "the EndpointSlice orders/b-0: not written yet"
            group["a"].replica.driver.handle(SwitchOver("b", group["a"].replica.driver.member.epoch))
            await until(lambda: group["b"].is_master)
            assert group["b"].replica.problems() == [group.unpublished]

    run(scenario)


def test_master_that_ends_holds_requests_until_clients_reach_the_new_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", publishes=True) as group:
            loop, former, replica = asyncio.get_running_loop(), group["a"], group["a"].replica
            stopped_s: list[float] = []
            stop_leading = replica.stop_leading

            def note_and_stop(reason: str) -> None:
                stopped_s.append(loop.time())
                stop_leading(reason)

            replica.stop_leading = note_and_stop
            peers = [await BrokerPeer.connect(former.port) for _ in range(2)]
            stopping = asyncio.ensure_future(former.stop())
            await until(lambda: replica.is_held)
            held = asyncio.ensure_future(peers[0].send("T"))
            await until(lambda: group["b"].is_master)
            late = asyncio.ensure_future(peers[1].send("T"))
            answers = await asyncio.gather(held, late, return_exceptions=True)
            assert all(isinstance(answer, BaseException) for answer in answers), "clients repeat them"
            assert loop.time() - stopped_s[0] >= LINGER_S
            await stopping

    run(scenario)


def test_replica_closes_connections_of_clients_that_take_it_for_the_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab", publishes=True) as group:
            replica = await BrokerPeer.connect(group["b"].port)
            sends = [asyncio.ensure_future(replica.send("T")) for _ in range(2)]
            await replica.pull("T", 0, wait_ms=0)
            answers = await asyncio.gather(*sends, return_exceptions=True)
            assert all(isinstance(answer, TransportError) for answer in answers), "clients repeat them"
            tool = await BrokerPeer.connect(group["b"].port)
            await tool.pull("T", 0, wait_ms=0)
            for _ in range(2):
                answer = await tool.connection.request(request_command(RequestCode.GET_BROKER_CONFIG, {}))
                assert answer.code == ResponseCode.SUCCESS
            master = await BrokerPeer.connect(group["a"].port)
            for _ in range(2):
                assert (await master.send("T")).code in (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)
            assert not master.connection.closing
            # The link between the members continues.
            assert group.register.record.in_sync == {"a", "b"}

    run(scenario)


def test_replica_with_an_address_of_its_own_keeps_connections(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with replicated(tmp_path / "g", "ab") as group:
            replica = await BrokerPeer.connect(group["b"].port)
            for _ in range(2):
                assert (await replica.send("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert not replica.connection.closing

    run(scenario)
