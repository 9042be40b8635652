"""Leader election by a Lease, against a real API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from delaymq_operator.adapters.api_requests import ApiRequests
from delaymq_operator.adapters.credentials import Credentials
from delaymq_operator.adapters.election import GIVE_UP, RENEWALS, Election, LeaseLostError, LeaseName
from delaymq_operator_testing.api_server import ApiServer
from delaymq_testing.running_server import until

DURATION_S = 3.0
BOUND_S = 60
PAUSE_S = 0.05


class Clock:
    """Clock of the leases, which only the test advances, independently of the machine's speed."""

    def __init__(self) -> None:
        self.now_s = 1_000.0


class Replica:
    """A replica that competes for the lease."""

    def __init__(self, server: ApiServer, namespace: str, holder: str, clock: Clock) -> None:
        self.clock = clock
        self.requests = ApiRequests(
            Credentials(str(server.kubeconfig)).load, threads=1, timeout_s=20, observe=lambda request, status: None
        )
        self.election = Election(
            self.requests,
            LeaseName(namespace, "delaymq-operator", holder),
            duration_s=DURATION_S,
            clock=lambda: self.clock.now_s,
        )


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario()

    asyncio.run(bounded())


def holder_of(server: ApiServer, namespace: str) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/delaymq-operator"
    return str(server.request("GET", path)["spec"].get("holderIdentity", ""))


async def renewed(replica: Replica, times: int) -> None:
    """Wait for `times` renewals, and advance the clock by a third of the lease after each."""

    def renew_time() -> str | None:
        known = replica.election._object
        return None if known is None else str(known["spec"]["renewTime"])

    for _ in range(times):
        before = renew_time()
        await until(lambda before=before: renew_time() not in (None, before))
        replica.clock.now_s += DURATION_S / RENEWALS


def test_second_replica_waits_until_first_releases_lease(api_server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        clock = Clock()
        first, second = (Replica(api_server, namespace, name, clock) for name in ("first", "second"))
        await first.election.acquire()
        waiting = asyncio.create_task(second.election.acquire())
        holding = asyncio.create_task(first.election.hold())
        await renewed(first, times=RENEWALS + 2)
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


def test_lease_of_dead_replica_is_taken_after_expiry(
    api_server: ApiServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        clock = Clock()
        first, second = (Replica(api_server, namespace, name, clock) for name in ("first", "second"))
        await first.election.acquire()
        waiting = asyncio.create_task(second.election.acquire())
        await until(lambda: "standby: first is active" in caplog.text)
        clock.now_s += DURATION_S - 0.1
        await asyncio.sleep(2 * DURATION_S / RENEWALS)  # time in which a premature takeover would be visible
        assert not waiting.done()
        clock.now_s += 0.2
        await waiting
        assert holder_of(api_server, namespace) == "second"

    run(scenario)


def test_stalled_replica_is_inactive_before_it_detects_lost_lease(api_server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        first, second = (Replica(api_server, namespace, name, Clock()) for name in ("first", "second"))
        await first.election.acquire()
        first.clock.now_s += DURATION_S * GIVE_UP + 0.1
        assert not first.election.active
        waiting = asyncio.create_task(second.election.acquire())
        while not waiting.done():
            second.clock.now_s += 1.0
            await asyncio.sleep(PAUSE_S)
        with pytest.raises(LeaseLostError):
            await first.election.hold()
        assert holder_of(api_server, namespace) == "second"

    run(scenario)


def test_lease_modified_by_another_client_is_read_again_and_kept(api_server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        clock = Clock()
        only = Replica(api_server, namespace, "only", clock)
        await only.election.acquire()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/delaymq-operator"
        api_server.merge(path, {"metadata": {"annotations": {"changed-by": "another-client"}}})
        holding = asyncio.create_task(only.election.hold())
        await renewed(only, times=RENEWALS + 1)
        assert not holding.done()
        assert only.election.active
        holding.cancel()

    run(scenario)


def test_lease_taken_by_another_holder_is_lost(api_server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        only = Replica(api_server, namespace, "only", Clock())
        await only.election.acquire()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/delaymq-operator"
        api_server.merge(path, {"spec": {"holderIdentity": "other"}})
        with pytest.raises(LeaseLostError):
            await only.election.hold()
        assert not only.election.active

    run(scenario)


def test_only_one_of_many_concurrent_replicas_becomes_active(api_server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        clock = Clock()
        replicas = [Replica(api_server, namespace, f"replica-{n}", clock) for n in range(8)]
        tasks = [asyncio.create_task(replica.election.acquire()) for replica in replicas]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.5)  # time in which a second active replica would be visible
        assert [replica.election.active for replica in replicas].count(True) == 1
        for task in tasks:
            task.cancel()

    run(scenario)
