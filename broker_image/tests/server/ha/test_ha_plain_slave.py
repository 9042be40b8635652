"""A broker that follows a master over RocketMQ's HA protocol. Here, the master is DelayMQ's, or a script."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from delaymq.protocol.bodies import DelayOffsets, KVTable, TopicTable, encode_settings
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response, encode_response
from delaymq.protocol.ha import REPORT, encode_range
from delaymq.server.broker_server import BrokerServer
from delaymq.transport import RemotingConnection
from delaymq_testing.plain_slaves import SEGMENT_BYTES, following, log_bytes, serving, status, store_messages
from delaymq_testing.running_server import HOST, BrokerPeer, run, until


async def has_all_of(slave: BrokerServer, master: BrokerServer) -> None:
    await until(lambda: slave.broker.store.end_offset == master.broker.store.end_offset)


def test_slave_has_the_log_and_the_tables_of_its_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "a") as master:
            await store_messages(master, 50)
            master.broker.offsets.commit("T", "G", 0, 7)
            master.broker.groups.find("G")
            async with serving(tmp_path / "b", **following(master)) as slave:
                await until(lambda: not slave.not_ready())
                assert log_bytes(slave) == log_bytes(master)
                await store_messages(master, 30)
                await has_all_of(slave, master)
                assert log_bytes(slave) == log_bytes(master)
                await until(lambda: status(slave).tables_at_ms)
                assert slave.broker.topics.table["T"] == master.broker.topics.table["T"]
                assert "G" in slave.broker.groups.table
                assert slave.broker.offsets.get("T", "G", 0) == 7
            await store_messages(master, 30)
            master.broker.offsets.commit("T", "G", 0, 9)
            async with serving(tmp_path / "b", **following(master)) as slave:
                await until(lambda: not slave.not_ready())
                await has_all_of(slave, master)
                assert log_bytes(slave) == log_bytes(master)
            assert '"T@G":{"0":9}' in (tmp_path / "b" / "store" / "config" / "consumerOffset.json").read_text()

    run(scenario)


def test_slave_serves_no_clients_and_delivers_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "a") as master:
            peer = await BrokerPeer.connect(master.port)
            await peer.send("T", DELAY="1")
            async with serving(tmp_path / "b", **following(master)) as slave:
                await has_all_of(slave, master)
                client = await BrokerPeer.connect(slave.port)
                answer = await client.send("T")
                assert answer.code == 14
                pulled = await client.pull("T", 0, wait_ms=0)
                assert pulled.code != 0
                assert not pulled.body
                assert not slave.registration.is_registered or not slave.registration.links
                peer.connection.close()
                client.connection.close()
                await master.stop()
                end = slave.broker.store.end_offset
                assert slave.broker.hand_over(slave.broker.now_ms() + 10_000, 10) == 0
                assert slave.broker.store.end_offset == end
                await until(lambda: status(slave).problem)
                assert "is not followed" in slave.not_ready()[0]

    run(scenario)


def test_promoted_slave_delivers_what_is_pending_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "a", message_delay_level="1s 1h") as master:
            peer = await BrokerPeer.connect(master.port)
            for number in range(3):
                await peer.send("T", b"early", DELAY="1", UNIQ_KEY=f"EARLY{number}")
            async with serving(tmp_path / "b", **following(master, message_delay_level="1s 1h")) as slave:
                await until(lambda: master.broker.store.queue_bounds("T", 0)[1] == 3)
                await peer.send("T", b"late", DELAY="1", UNIQ_KEY="LATE")
                await has_all_of(slave, master)
                peer.connection.close()
                await master.stop()
        async with serving(tmp_path / "b", message_delay_level="1s 1h") as promoted:
            await until(lambda: promoted.broker.store.queue_bounds("T", 0)[1] == 4)
            await asyncio.sleep(0.5)
            assert promoted.broker.store.queue_bounds("T", 0)[1] == 4

    run(scenario)


def test_log_of_another_broker_is_not_continued(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "other") as other:
            await store_messages(other, 10)
        async with serving(tmp_path / "a") as master:
            await store_messages(master, 5)
            end = master.broker.store.end_offset
            async with serving(tmp_path / "other", **following(master)) as slave:
                await until(lambda: "if the master lost the bytes in between" in status(slave).problem)
                await store_messages(master, 30)
                await until(lambda: "this is the log of another broker" in status(slave).problem)
                assert slave.broker.store.end_offset > end

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mapped_file_size_commit_log": 2 * SEGMENT_BYTES}, "the master has mappedFileSizeCommitLog=65536"),
        ({"message_delay_level": "1s 2s"}, "the master has messageDelayLevel=1s 5s"),
    ],
)
def test_settings_that_must_be_equal_are_compared(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "a") as master, serving(tmp_path / "b", **following(master, **changes)) as slave:
            await until(lambda: problem in status(slave).problem)

    run(scenario)


class ScriptedMaster:
    """A master with a log from `begin` on. Like RocketMQ's, it begins at its last segment for a report of 0."""

    def __init__(self, log: bytes, begin: int = 0) -> None:
        self.log = log
        self.begin = begin
        self.end = len(log)
        self.reports: list[int] = []
        self.asked: list[int] = []
        self.offsets = b'{"offsetTable":{"T@G":{0:3}}}'
        self.damage: Callable[[bytes], bytes] = lambda stream: stream
        self.port = self.ha_port = 0

    def _on_commands(self, connection: RemotingConnection, commands: list[Command]) -> None:
        for command in commands:
            self.asked.append(command.code)
            bodies = {
                RequestCode.GET_BROKER_CONFIG: encode_settings({"mappedFileSizeCommitLog": str(SEGMENT_BYTES)}),
                RequestCode.GET_BROKER_RUNTIME_INFO: KVTable(
                    {"commitLogMinOffset": str(self.begin), "commitLogMaxOffset": str(self.end)}
                ).encode(),
                RequestCode.GET_ALL_TOPIC_CONFIG: TopicTable().encode(),
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b'{"subscriptionGroupTable":{}}',
                RequestCode.GET_ALL_CONSUMER_OFFSET: self.offsets,
                RequestCode.GET_ALL_DELAY_OFFSET: DelayOffsets({1: 2}).encode(),
                RequestCode.VIEW_MESSAGE_BY_ID: self.log[: int.from_bytes(self.log[:4], "big")],
            }
            body = bodies.get(RequestCode(command.code))
            connection.send(encode_response(command, Response(body=body) if body is not None else Response(3)))

    async def _on_slave(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (report,) = REPORT.unpack(await reader.readexactly(REPORT.size))
            self.reports.append(report)
            at = report or (self.end - self.end % SEGMENT_BYTES)
            stream = b""
            while at < len(self.log):
                part = self.log[at : min(at + 5_000, at - at % SEGMENT_BYTES + SEGMENT_BYTES)]
                stream += encode_range(at, part)
                at += len(part)
            writer.write(self.damage(stream))
            while data := await reader.readexactly(REPORT.size):
                self.reports.append(REPORT.unpack(data)[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ScriptedMaster"]:
        loop = asyncio.get_running_loop()
        requests = await loop.create_server(lambda: RemotingConnection(self._on_commands), HOST, 0)
        slaves = await asyncio.start_server(self._on_slave, HOST, 0)
        self.port = requests.sockets[0].getsockname()[1]
        self.ha_port = slaves.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            requests.close()
            slaves.close()

    def keys(self) -> dict[str, Any]:
        return {
            "broker_role": "SLAVE",
            "ha_plain_slaves": False,
            "ha_master_address": f"{HOST}:{self.ha_port}",
            "ha_master_broker_address": f"{HOST}:{self.port}",
        }


async def made_log(path: Path, count: int = 60) -> bytes:
    async with serving(path) as server:
        await store_messages(server, count)
        return log_bytes(server)


def test_first_record_is_requested_if_the_master_begins_at_its_last_segment(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await made_log(tmp_path / "a")
        async with ScriptedMaster(log).running() as master, serving(tmp_path / "b", **master.keys()) as slave:
            await until(lambda: slave.broker.store.end_offset == len(log))
            assert log_bytes(slave) == log
            assert master.reports[:2] == [0, int.from_bytes(log[:4], "big")]
            await until(lambda: master.reports[-1] == len(log))

    run(scenario)


def test_log_whose_beginning_was_deleted_is_followed_from_its_oldest_byte(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await made_log(tmp_path / "a")
        async with (
            ScriptedMaster(log, SEGMENT_BYTES).running() as master,
            serving(tmp_path / "b", **master.keys()) as slave,
        ):
            await until(lambda: slave.broker.store.end_offset == len(log))
            assert slave.broker.store.min_offset == SEGMENT_BYTES
            assert master.reports[0] == SEGMENT_BYTES
            assert RequestCode.VIEW_MESSAGE_BY_ID not in master.asked

    run(scenario)


def test_offsets_wait_until_the_log_has_what_they_refer_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = await made_log(tmp_path / "a")
        script = ScriptedMaster(log, SEGMENT_BYTES)
        script.end += 1_000  # bytes that the slave does not receive
        async with script.running() as master, serving(tmp_path / "b", **master.keys()) as slave:
            await until(lambda: slave.broker.store.end_offset == len(log))
            await until(lambda: master.asked.count(RequestCode.GET_BROKER_RUNTIME_INFO) >= 4)
            assert slave.broker.offsets.get("T", "G", 0) is None
            assert not (tmp_path / "b" / "store" / "config" / "delayOffset.json").exists()
            master.end = len(log)
            # The last request of the tables, when the broker stops, states the lower end.
        tables = tmp_path / "b" / "store" / "config"
        assert '{"0":3}' in (tables / "consumerOffset.json").read_text()
        assert DelayOffsets.decode((tables / "delayOffset.json").read_bytes()).offset_table == {1: 2}

    run(scenario)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda stream: stream[:8] + b"\xff" + stream[9:], "are not a range"),
        (lambda stream: stream[:100] + bytes([stream[100] ^ 1]) + stream[101:], "is damaged"),
        (lambda stream: stream[:7] + bytes([stream[7] ^ 1]) + stream[8:], "was expected"),
        (lambda stream: b"HTTP/1.1 400 Bad Request\r\n\r\n", "are not a range"),
    ],
)
def test_damaged_stream_is_refused_and_repeated(tmp_path: Path, damage: Callable[[bytes], bytes], problem: str) -> None:
    async def scenario() -> None:
        log = await made_log(tmp_path / "a")
        script = ScriptedMaster(log, SEGMENT_BYTES)
        script.damage = damage
        async with script.running() as master, serving(tmp_path / "b", **master.keys()) as slave:
            await until(lambda: problem in status(slave).problem)
            master.damage = lambda stream: stream
            await until(lambda: slave.broker.store.end_offset == len(log))
            assert log_bytes(slave) == log[SEGMENT_BYTES:]

    run(scenario)
