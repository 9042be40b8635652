"""Address of a master in an EndpointSlice: written once per epoch, never backwards, in spite of faults."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import pytest
from delaymq.config.register_keys import RegisterKeys
from delaymq.server.registers import RegisterError, open_endpoints
from delaymq.server.registers.endpoint_slices import EPOCH_ANNOTATION, EndpointSlices
from delaymq.server.registers.service_account import ServiceAccount
from delaymq_testing.registers.backends import NAMESPACE, SLICE, FakeSlices
from delaymq_testing.registers.faulty_http import Fault, FaultyServer
from delaymq_testing.registers.worlds import SHORT_S, write_account

ADDRESS = "10.1.0.7"
OTHER = "10.1.0.8"
ENDED_S = 10.0


class World(NamedTuple):
    """The API server, and the publisher of one member."""

    api: FakeSlices
    server: FaultyServer
    open: Callable[..., EndpointSlices]
    waits: list[float]
    """Seconds for which publishers waited before another attempt."""


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    write_account(folder)
    api, waits = FakeSlices(), list[float]()
    server = FaultyServer(api, late_s=SHORT_S * 3)
    made: list[EndpointSlices] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    def open_slices(address: str = ADDRESS, names: tuple[str, ...] = (SLICE,)) -> EndpointSlices:
        account = ServiceAccount(folder)
        made.append(EndpointSlices(server.url, NAMESPACE, names, address, account, timeout_s=SHORT_S, sleep=sleep))
        return made[-1]

    async with server.running():
        yield World(api, server, open_slices, waits)
        for each in made:
            await each.stop()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(ENDED_S):
        while not done():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


def run(folder: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with world(folder) as made:
            await scenario(made)

    asyncio.run(main())


def test_new_master_replaces_the_only_endpoint_and_keeps_everything_else(tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        w.api.create(epoch="6", address=OTHER)
        slices = w.open()
        assert slices.problem == ""
        slices.publish(7)
        assert slices.problem == f"the EndpointSlice orders/{SLICE}: not written yet"
        await until(lambda: not slices.problem)
        assert w.api.published == ("7", [ADDRESS])
        assert w.api.slice is not None
        assert w.api.slice["ports"] == [{"name": "broker", "port": 10911}]
        assert w.api.slice["endpoints"] == [{"addresses": [ADDRESS], "conditions": {"ready": True}}]

    run(tmp_path, scenario)


@pytest.mark.parametrize("epoch", [None, "", "many", "-1", "9" * 40])
def test_slice_without_an_epoch_is_written_by_any_master(epoch: str | None, tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        w.api.create(epoch=epoch, address=OTHER)
        slices = w.open()
        slices.publish(1)
        await until(lambda: not slices.problem)
        assert w.api.published == ("1", [ADDRESS])

    run(tmp_path, scenario)


def test_later_epoch_is_never_replaced(tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        w.api.create(epoch="8", address=OTHER)
        slices = w.open()
        slices.publish(7)
        await until(lambda: not slices.problem)
        assert w.api.published == ("8", [OTHER])
        assert w.api.patches == []

    run(tmp_path, scenario)


def test_master_that_is_overtaken_between_read_and_write_gives_up(tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        def overtake(request: object) -> Fault:
            if getattr(request, "method", "") == "PATCH" and w.api.published[0] != "8":
                newer = deepcopy(w.api.slice)
                assert newer is not None
                newer["metadata"]["annotations"] = {EPOCH_ANNOTATION: "8"}
                newer["endpoints"] = [{"addresses": [OTHER]}]
                w.api.store(newer)
            return Fault.NONE

        w.server.choose = overtake
        slices = w.open()
        slices.publish(7)
        await until(lambda: not slices.problem)
        assert w.api.published == ("8", [OTHER])
        assert len(w.api.patches) == 1

    run(tmp_path, scenario)


def test_address_that_is_already_there_is_not_written_again(tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        w.api.create(epoch="7", address=ADDRESS)
        slices = w.open()
        slices.publish(7)
        await until(lambda: not slices.problem)
        assert w.api.patches == []

    run(tmp_path, scenario)


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name)
def test_address_is_written_in_spite_of_a_fault(fault: Fault, tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        for faults in ([fault], [Fault.NONE, fault]):
            w.api.create(epoch="6", address=OTHER)
            w.server.faults[:] = faults
            slices = w.open()
            slices.publish(7)
            await until(lambda: not slices.problem)  # noqa: B023  (awaited in the loop)
            assert w.api.published == ("7", [ADDRESS])

    run(tmp_path, scenario)


def test_missing_slice_is_awaited_with_growing_intervals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(w: World) -> None:
        w.api.slice = None
        slices = w.open()
        slices.publish(7)
        await until(lambda: len(w.waits) >= 8)
        assert w.waits[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
        assert f'endpointslices.discovery.k8s.io "{SLICE}" not found' in slices.problem
        w.api.create()
        await until(lambda: not slices.problem)
        assert w.api.published == ("7", [ADDRESS])

    run(tmp_path, scenario)
    assert len([line for line in caplog.messages if "was not published" in line]) == 1


def test_missing_right_is_named(tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        w.api.is_forbidden = True
        slices = w.open()
        slices.publish(7)
        await until(lambda: bool(w.waits))
        assert "has to allow the verb get of endpointslices in the API group discovery.k8s.io" in slices.problem
        assert f"with the name {SLICE}" in slices.problem

    run(tmp_path, scenario)


def test_slice_for_the_other_ip_version_is_a_problem(tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        w.api.create(kind="IPv6")
        slices = w.open()
        slices.publish(7)
        await until(lambda: bool(w.waits))
        assert f"has the addressType IPv6, and this pod the address {ADDRESS}" in slices.problem
        w.api.create(kind="IPv4")
        await until(lambda: not slices.problem)
        assert w.api.published == ("7", [ADDRESS])

    run(tmp_path, scenario)


def test_other_object_is_not_changed(tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        assert w.api.slice is not None
        w.api.slice["kind"] = "Service"
        slices = w.open()
        slices.publish(7)
        await until(lambda: bool(w.waits))
        assert f"the response is the Service orders/{SLICE}" in slices.problem
        assert w.api.patches == []

    run(tmp_path, scenario)


def test_each_slice_is_written_although_another_one_is_missing(tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        slices = w.open(names=("orders-broker-0-external-master", SLICE))
        slices.publish(7)
        await until(lambda: w.api.published == ("7", [ADDRESS]))
        await until(lambda: f"/{SLICE}:" not in slices.problem)
        assert "orders-broker-0-external-master" in slices.problem

    run(tmp_path, scenario)


def test_stop_ends_attempts_and_a_later_epoch_replaces_an_earlier_one(tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
        w.api.slice = None
        slices = w.open()
        slices.publish(7)
        await until(lambda: bool(w.waits))
        slices.publish(9)
        w.api.create()
        await until(lambda: not slices.problem)
        assert w.api.published == ("9", [ADDRESS])
        assert [json.loads(json.dumps(each))["metadata"]["annotations"] for each in w.api.patches] == [
            {EPOCH_ANNOTATION: "9"}
        ]
        w.api.slice = None
        slices.publish(10)
        await slices.stop()
        requests = len(w.server.requests)
        await asyncio.sleep(0.05)
        assert len(w.server.requests) == requests

    run(tmp_path, scenario)


def test_slices_are_opened_from_settings(tmp_path: Path) -> None:
    keys = RegisterKeys()
    stated = {"replica_endpoint": f"kubernetes:{NAMESPACE}/{SLICE},other", "replica_endpoint_address": ADDRESS}
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}

    async def scenario() -> None:
        assert await open_endpoints(keys, environment=environment) is None
        for name, value in stated.items():
            object.__setattr__(keys, name, value)
        slices = await open_endpoints(keys, environment=environment)
        assert slices is not None
        await slices.stop()
        with pytest.raises(RegisterError, match="only in a pod"):
            await open_endpoints(keys, environment={})

    asyncio.run(scenario())
