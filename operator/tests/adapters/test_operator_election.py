"""One active replica by a Lease, against a real API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from api_server import ApiServer
from delaymq_operator.adapters.api_requests import ApiRequests
from delaymq_operator.adapters.credentials import Credentials
from delaymq_operator.adapters.election import GIVE_UP, Election, LeaseLostError, LeaseName

DURATION_S = 3.0
BOUND_S = 60


class Replica:
    """One that would be active; its clock can be moved."""

    def __init__(self, server: ApiServer, namespace: str, holder: str) -> None:
        self.ahead_s = 0.0
        self.requests = ApiRequests(
            Credentials(str(server.kubeconfig)).load, threads=1, timeout_s=2, observe=lambda request, status: None
        )
        self.election = Election(
            self.requests,
            LeaseName(namespace, "delaymq-operator", holder),
            duration_s=DURATION_S,
            clock=lambda: time.monotonic() + self.ahead_s,
        )


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario()

    asyncio.run(bounded())


def holder_of(server: ApiServer, namespace: str) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/delaymq-operator"
    return str(server.request("GET", path)["spec"].get("holderIdentity", ""))


def test_a_second_replica_waits_until_the_first_gives_the_lease_back(api_server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        first, second = (Replica(api_server, namespace, name) for name in ("first", "second"))
        await first.election.acquire()
        waiting = asyncio.create_task(second.election.acquire())
        holding = asyncio.create_task(first.election.hold())
        await asyncio.sleep(DURATION_S * 1.5)
        assert not waiting.done()
        assert (first.election.active, second.election.active) == (True, False)
        assert "does not hold" in (second.election.fence() or "")
        holding.cancel()
        await first.election.release()
        assert first.election.fence() is not None
        await waiting
        assert holder_of(api_server, namespace) == "second"
        assert second.election.fence() is None

    run(scenario)


def test_the_lease_of_one_that_died_is_taken_after_its_end(api_server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        first, second = (Replica(api_server, namespace, name) for name in ("first", "second"))
        await first.election.acquire()
        began_s = time.monotonic()
        await second.election.acquire()
        assert time.monotonic() - began_s > DURATION_S - 0.5
        assert holder_of(api_server, namespace) == "second"

    run(scenario)


def test_one_that_slept_too_long_is_not_active_even_before_it_notices(api_server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        first, second = (Replica(api_server, namespace, name) for name in ("first", "second"))
        await first.election.acquire()
        first.ahead_s = DURATION_S * GIVE_UP + 0.1
        assert not first.election.active
        await second.election.acquire()
        with pytest.raises(LeaseLostError):
            await first.election.hold()
        assert holder_of(api_server, namespace) == "second"

    run(scenario)


def test_a_lease_that_somebody_else_wrote_meanwhile_is_read_again_and_kept(
    api_server: ApiServer, namespace: str
) -> None:
    async def scenario() -> None:
        only = Replica(api_server, namespace, "only")
        await only.election.acquire()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/delaymq-operator"
        api_server.merge(path, {"metadata": {"annotations": {"somebody": "wrote"}}})
        holding = asyncio.create_task(only.election.hold())
        await asyncio.sleep(DURATION_S * 1.5)
        assert not holding.done()
        assert only.election.active
        holding.cancel()

    run(scenario)


def test_a_lease_that_is_taken_by_force_is_lost(api_server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        only = Replica(api_server, namespace, "only")
        await only.election.acquire()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/delaymq-operator"
        api_server.merge(path, {"spec": {"holderIdentity": "other"}})
        with pytest.raises(LeaseLostError):
            await only.election.hold()
        assert not only.election.active

    run(scenario)


def test_of_many_that_begin_together_one_is_active(api_server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        replicas = [Replica(api_server, namespace, f"replica-{n}") for n in range(8)]
        tasks = [asyncio.create_task(replica.election.acquire()) for replica in replicas]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.5)
        assert [replica.election.active for replica in replicas].count(True) == 1
        for task in tasks:
            task.cancel()

    run(scenario)
