"""Whatever happens to a request, a register reports no outcome that is not certain, and sends a write once."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from delaymq.server.registers import Conflict, Content, RegisterError, Unknown, Written
from delaymq_testing.registers.faulty_http import SILENT, Applies, Fault
from delaymq_testing.registers.worlds import KINDS, SHORT_S, TIMEOUT_S, World, record

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]


def run(kind: str, folder: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60), World(kind, folder).running() as world:
            await scenario(world)

    asyncio.run(bounded())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_outcome_of_a_disturbed_write_is_unknown(kind: str, fault: Fault, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        register = world.open()
        before = await register.read(TIMEOUT_S)
        world.server.faults = [fault]
        outcome = await register.write(record(), before.version, SHORT_S if fault in SILENT else TIMEOUT_S)
        assert isinstance(outcome, Unknown)
        assert outcome.reason
        assert world.server.writes == 1
        assert len(world.backend.history) == (fault.applies is Applies.FIRST)
        world.server.apply_late()
        took_place = fault.applies is not Applies.NEVER
        expected = Content(world.backend.version, record()) if took_place else before
        assert await register.read(TIMEOUT_S) == expected

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_disturbed_read_fails_with_a_reason(kind: str, fault: Fault, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        register = world.open()
        world.server.choose = lambda request: fault
        with pytest.raises(RegisterError, match="cannot read"):
            await register.read(SHORT_S if fault in SILENT else TIMEOUT_S)
        assert not any(request.path == "/elsewhere" for request in world.server.requests)

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_write_on_a_connection_that_the_server_closes_is_not_repeated(kind: str, tmp_path: Path) -> None:
    # aiohttp would repeat an idempotent request, and the repetition would be a conflict with the first one.
    async def scenario(world: World) -> None:
        register = world.open()
        version = (await register.read(TIMEOUT_S)).version
        written = await register.write(record(1), version, TIMEOUT_S)
        assert isinstance(written, Written)
        world.server.faults = [Fault.CLOSE_AFTER]
        assert isinstance(await register.write(record(2), written.version, TIMEOUT_S), Unknown)
        assert world.server.writes == 2
        assert [entry.record.epoch for entry in world.backend.history] == [1, 2]

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_two_writers_wins_a_version(kind: str, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        first, second = world.open(), world.open()
        version = (await first.read(TIMEOUT_S)).version
        assert await second.read(TIMEOUT_S) == Content(version, None)
        assert await first.write(record(1), version, TIMEOUT_S) == Written(world.backend.version)
        assert await second.write(record(1, 2, "broker-a-1"), version, TIMEOUT_S) == Conflict()
        assert await second.read(TIMEOUT_S) == Content(world.backend.version, record(1))

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_record_gets_a_new_version(kind: str, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        register = world.open()
        versions = [(await register.read(TIMEOUT_S)).version]
        for _ in range(4):
            written = await register.write(record(), versions[-1], TIMEOUT_S)
            assert isinstance(written, Written)
            versions.append(written.version)
        assert len(set(versions)) == 5
        assert await register.read(TIMEOUT_S) == Content(versions[-1], record())
        assert await register.write(record(), versions[0], TIMEOUT_S) == Conflict()

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_cancelled_write_may_have_taken_place_and_disturbs_no_later_operation(kind: str, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        register = world.open()
        version = (await register.read(TIMEOUT_S)).version
        world.server.faults = [Fault.SILENT_AFTER]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(register.write(record(), version, TIMEOUT_S), SHORT_S)
        assert await register.read(TIMEOUT_S) == Content(world.backend.version, record())

    run(kind, tmp_path, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_record_that_no_reader_would_accept_is_not_sent(kind: str, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        register = world.open()
        version = (await register.read(TIMEOUT_S)).version
        for wrong in (record(1 << 31), record(-1), record(1, -1), record(master="a b"), record(master="broker-a-2")):
            with pytest.raises(ValueError, match=r"\w"):
                await register.write(wrong, version, TIMEOUT_S)
        assert world.server.writes == 0

    run(kind, tmp_path, scenario)


def test_unreachable_server_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.server.url = "http://127.0.0.1:1"
        register = world.open()
        with pytest.raises(RegisterError, match=r"cannot read the Lease orders/orders-0-register: Cannot connect to"):
            await register.read(TIMEOUT_S)

    run("lease", tmp_path, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_read_on_a_connection_that_the_server_has_closed_is_repeated_once(kind: str, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        register = world.open()
        for fault in (Fault.CLOSE_BEFORE, Fault.RESET_BEFORE):
            world.server.faults = [Fault.NONE, fault]
            content = await register.read(TIMEOUT_S)
            assert await register.read(TIMEOUT_S) == content
            world.server.faults = [fault, fault]
            with pytest.raises(RegisterError, match="cannot read"):
                await register.read(TIMEOUT_S)
        assert len(world.server.requests) == 10

    run(kind, tmp_path, scenario)
