"""Plain slaves of a broker: honest, slow, silent and hostile ones."""

import asyncio
import logging
from pathlib import Path

import pytest
from delaymq.protocol.ha import encode_report
from delaymq.server.ha import slaves
from delaymq.server.ha.slaves import MAX_SLAVES, PIN
from delaymq_testing.plain_slaves import SEGMENT_BYTES, Slave, connected, log_bytes, serving, store_messages
from delaymq_testing.running_server import run, until


def test_slave_receives_the_log_from_its_oldest_byte_and_what_follows(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            store = server.broker.store
            await store_messages(server, 50)
            slave = await Slave.connect(server)
            await slave.receive(store.end_offset)
            assert slave.data == log_bytes(server)
            assert max(slave.sizes) <= 1_024
            ends: list[int] = []
            for size in slave.sizes:
                ends.append((ends[-1] if ends else 0) + size)
            assert set(range(SEGMENT_BYTES, store.end_offset, SEGMENT_BYTES)) <= set(ends)  # none crosses segments
            await store_messages(server, 3)
            await slave.receive(store.end_offset)
            assert slave.data == log_bytes(server)
            second = await Slave.connect(server, slave.end - 500)
            await second.receive(store.end_offset)
            assert second.data == slave.data[-500:]

    run(scenario)


def test_slave_receives_only_what_is_confirmed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await store_messages(server, 2)
            confirmed = server.broker.store.end_offset
            server.broker.set_replicated(confirmed)
            await store_messages(server, 2)
            slave = await Slave.connect(server)
            await slave.receive(confirmed)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await slave.receive(confirmed + 1)
            assert slave.heartbeats
            server.broker.set_replicated(None)
            await slave.receive(server.broker.store.end_offset)

    run(scenario)


@pytest.mark.parametrize("report", [2**40, 2**63 - 1, -1, -(2**63)])
def test_forged_first_report_closes_the_connection(
    tmp_path: Path, report: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await store_messages(server, 2)
            assert await (await Slave.connect(server, report)).is_closed()
            await until(lambda: not connected(server))

    slaves._throttled._next_ms.clear()
    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert "its log ends at offset" in caplog.text


def test_forged_acknowledgement_and_garbage_close_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await store_messages(server, 2)
            slave = await Slave.connect(server)
            await slave.receive(server.broker.store.end_offset)
            slave.writer.write(encode_report(server.broker.store.end_offset + 1))
            assert await slave.is_closed()
            slave = await Slave.connect(server, None)
            slave.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await slave.is_closed()
            slave = await Slave.connect(server)
            await slave.receive(server.broker.store.end_offset)
            slave.writer.write(encode_report(slave.end) * 100_000)
            assert await slave.is_closed()

    run(scenario)


def test_slaves_beyond_the_limit_and_other_addresses_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ha_plain_slave_addresses="10.0.0.0/8") as server:
            assert await (await Slave.connect(server)).is_closed()
        async with serving(tmp_path) as server:
            waiting = [await Slave.connect(server, None) for _ in range(MAX_SLAVES)]
            await until(lambda: len(connected(server)) == MAX_SLAVES)
            assert await (await Slave.connect(server)).is_closed()
            waiting[0].writer.close()
            await until(lambda: len(connected(server)) == MAX_SLAVES - 1)
            await store_messages(server, 1)
            slave = await Slave.connect(server)
            await slave.receive(server.broker.store.end_offset)
            for each in waiting[1:]:
                each.writer.close()

    run(scenario)


def test_silent_slave_is_disconnected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ha_housekeeping_interval=1_000) as server:
            assert await (await Slave.connect(server, None)).is_closed()

    run(scenario)


def test_slave_that_does_not_read_delays_neither_others_nor_clients(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, mapped_file_size_commit_log=64 << 20, max_message_size=4 << 20) as server:
            stalled = await Slave.connect(server)
            await store_messages(server, 16, size=1 << 20)
            slave = await Slave.connect(server)
            await slave.receive(server.broker.store.end_offset)
            await store_messages(server, 1)
            sent = [each.sent for each in connected(server)]
            assert min(sent) < server.broker.store.end_offset  # its buffer is bounded
            stalled.writer.transport.abort()

    run(scenario)


def test_segments_are_kept_for_slaves_up_to_a_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            store = server.broker.store
            await store_messages(server, 50)
            slave = await Slave.connect(server)
            await slave.receive(70_000, acknowledges=False)
            slave.writer.write(encode_report(70_000))
            await until(lambda: connected(server)[0].acknowledged == 70_000)
            pins = {report.holder: report.offset for report in store.pins.report()}
            assert pins[PIN] == 70_000
            slave.writer.close()
            await until(lambda: not connected(server))
            assert {report.holder: report.offset for report in store.pins.report()}[PIN] == 70_000
        async with serving(tmp_path, ha_pin_max_bytes=10_000) as server:
            slave = await Slave.connect(server)
            await slave.receive(70_000, acknowledges=False)
            pins = {report.holder: report.offset for report in server.broker.store.pins.report()}
            assert pins[PIN] == server.broker.store.end_offset - 10_000
            slave.writer.close()

    run(scenario)


def test_clean_stop_waits_until_slaves_have_the_end_of_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            await store_messages(server, 20)
            slave = await Slave.connect(server)
            end, log = server.broker.store.end_offset, log_bytes(server)

            async def receive() -> None:
                await slave.receive(end, acknowledges=False)
                slave.acknowledge()

            received = asyncio.create_task(receive())
        assert received.done()
        assert slave.data == log

    run(scenario)


def test_rate_of_all_slaves_is_limited(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ha_max_bytes_per_second=1 << 16) as server:
            await store_messages(server, 25)
            began = asyncio.get_running_loop().time()
            slave = await Slave.connect(server)
            await slave.receive(server.broker.store.end_offset)
            # The first tenth of a second is free.
            least_s = server.broker.store.end_offset / (1 << 16) - 0.1
            assert asyncio.get_running_loop().time() - began >= least_s

    run(scenario)
