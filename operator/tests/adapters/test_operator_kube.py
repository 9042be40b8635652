"""The Kube port against a real API server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from delaymq_operator.adapters.api_requests import ApiRequests
from delaymq_operator.adapters.credentials import Credentials
from delaymq_operator.adapters.kube import ApiKube, list_all
from delaymq_operator.adapters.kube_events import BURST, REPEAT_S, EventRecorder
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.api_server import ApiServer

BOUND_S = 60


class Connected:
    """Kube adapter for a real server, with its counted requests and the objects that it passed to `seen`."""

    def __init__(self, server: ApiServer) -> None:
        self.calls: Counter[tuple[str, str, int]] = Counter()
        self.seen: list[tuple[str, Manifest]] = []
        self.now_s = 0.0
        self.requests = ApiRequests(
            Credentials(str(server.kubeconfig)).load,
            threads=4,
            timeout_s=10,
            observe=lambda request, status: self.calls.update([(request.verb, request.kind, status)]),
        )
        self.events = EventRecorder(self.requests, instance="pod-0", clock=lambda: self.now_s)
        self.kube = ApiKube(self.requests, seen=lambda kind, found: self.seen.append((kind, found)), events=self.events)


@asynccontextmanager
async def connected(server: ApiServer) -> AsyncIterator[Connected]:
    one = Connected(server)
    try:
        yield one
    finally:
        await one.events.close(5)
        one.requests.close()


def run(server: ApiServer, scenario: Callable[[Connected], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S), connected(server) as one:
            await scenario(one)

    asyncio.run(bounded())


def config_map(namespace: str, name: str = "one", **data: str) -> Manifest:
    metadata = {"namespace": namespace, "name": name, "labels": {"test": namespace}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_object_is_created_only_once_and_unknown_kind_is_absent(api_server: ApiServer, namespace: str) -> None:
    async def scenario(one: Connected) -> None:
        result = config_map(namespace, key="1") | {"kind": "AnalyticsResult"}
        made = await one.kube.create(result)
        assert (made["kind"], made["data"]) == ("ConfigMap", {"key": "1"})
        with pytest.raises(KubeError) as again:
            await one.kube.create(result | {"data": {"key": "2"}})
        assert again.value.conflict
        found = await one.kube.get("AnalyticsResult", namespace, "one")
        assert found is not None
        assert found["data"] == {"key": "1"}
        application = {"kind": "SparkApplication", "apiVersion": "sparkoperator.k8s.io/v1beta2"}
        metadata = {"namespace": namespace, "name": "one"}
        for call in (
            one.kube.create(application | {"metadata": metadata}),
            one.kube.list("SparkApplication", namespace),
        ):
            with pytest.raises(KubeError) as unknown:
                await call
            assert unknown.value.absent
        assert await one.kube.get("SparkApplication", namespace, "one") is None
        await one.kube.delete("SparkApplication", namespace, "one")

    run(api_server, scenario)


def test_objects_are_applied_read_patched_and_deleted(api_server: ApiServer, namespace: str) -> None:
    async def scenario(one: Connected) -> None:
        kube = one.kube
        assert await kube.get("ConfigMap", namespace, "one") is None
        applied = await kube.apply(config_map(namespace, key="1"))
        assert applied["data"] == {"key": "1"}
        assert {"delaymq-operator"} == {field["manager"] for field in applied["metadata"]["managedFields"]}
        patched = await kube.patch("ConfigMap", namespace, "one", {"data": {"key": None, "other": "2"}})
        assert patched["data"] == {"other": "2"}
        assert await kube.get("ConfigMap", namespace, "one") == patched
        assert [found["metadata"]["name"] for found in await kube.list("ConfigMap", namespace)] == ["one"]
        await kube.delete("ConfigMap", namespace, "one")
        await kube.delete("ConfigMap", namespace, "one")
        assert await kube.get("ConfigMap", namespace, "one") is None
        assert ("ConfigMap", applied) in one.seen

    run(api_server, scenario)


def test_apply_reverts_owned_fields_and_keeps_fields_of_others(api_server: ApiServer, namespace: str) -> None:
    async def scenario(one: Connected) -> None:
        await one.kube.apply(config_map(namespace, ours="1"))
        path = f"/api/v1/namespaces/{namespace}/configmaps/one"
        api_server.merge(path, {"data": {"ours": "changed", "theirs": "2"}})
        applied = await one.kube.apply(config_map(namespace, ours="1"))
        assert applied["data"] == {"ours": "1", "theirs": "2"}

    run(api_server, scenario)


def test_status_is_patched_through_subresource(api_server: ApiServer, namespace: str) -> None:
    path = f"/apis/delaymq.io/v1alpha1/namespaces/{namespace}/brokers"
    api_server.create(
        path, {"apiVersion": "delaymq.io/v1alpha1", "kind": "Broker", "metadata": {"name": "demo"}, "spec": {}}
    )

    async def scenario(one: Connected) -> None:
        await one.kube.patch("Broker", namespace, "demo", {"status": {"size": 1}}, subresource="status")
        found = await one.kube.get("Broker", namespace, "demo")
        assert found is not None
        assert found["status"]["size"] == 1

    run(api_server, scenario)


def test_recreated_object_is_not_deleted_in_place_of_old_one(api_server: ApiServer, namespace: str) -> None:
    async def scenario(one: Connected) -> None:
        await one.kube.apply(config_map(namespace))
        with pytest.raises(KubeError) as caught:
            await one.kube.delete("ConfigMap", namespace, "one", uid="00000000-0000-0000-0000-000000000000")
        assert caught.value.conflict

    run(api_server, scenario)


def test_error_responses_keep_message_of_server(api_server: ApiServer, namespace: str) -> None:
    async def scenario(one: Connected) -> None:
        with pytest.raises(KubeError) as invalid:
            await one.kube.apply(config_map(namespace, "Not A Name"))
        assert invalid.value.invalid
        assert "Not A Name" in invalid.value.message
        await one.kube.apply(config_map(namespace))
        with pytest.raises(KubeError) as conflict:
            await one.kube.patch("ConfigMap", namespace, "one", {"metadata": {"resourceVersion": "1"}})
        assert conflict.value.conflict
        with pytest.raises(KubeError) as absent:
            await one.kube.patch("ConfigMap", namespace, "other", {})
        assert absent.value.absent
        with pytest.raises(ValueError, match=r"kinds\.py"):
            await one.kube.get("Deployment", namespace, "x")

    run(api_server, scenario)


def test_lists_are_read_in_pages_and_by_label(
    api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaymq_operator.adapters.kube.PAGE_OBJECTS", 3)

    async def scenario(one: Connected) -> None:
        for number in range(8):
            await one.kube.apply(config_map(namespace, f"n{number}"))
        found = await one.kube.list("ConfigMap", labels={"test": namespace})
        assert [item["metadata"]["name"] for item in found] == [f"n{number}" for number in range(8)]
        assert all(item["kind"] == "ConfigMap" for item in found)
        assert one.calls["list", "ConfigMap", 200] == 3
        items, version = await list_all(one.requests, "ConfigMap", namespace)
        assert (len(items), version.isdigit()) == (8, True)

    run(api_server, scenario)


def test_repeated_event_increments_series_count(api_server: ApiServer, namespace: str) -> None:
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"

    async def scenario(one: Connected) -> None:
        about = await one.kube.apply(config_map(namespace))
        for turn in range(5):
            await one.kube.event(about, type="Warning", reason="Odd", message="it is odd")
            one.now_s += REPEAT_S / 2
            await one.events.close(5)
            assert len(api_server.request("GET", path)["items"]) == 1, turn
        (event,) = api_server.request("GET", path)["items"]
        assert event["series"]["count"] == 5
        assert (event["note"], event["regarding"]["name"]) == ("it is odd", "one")
        assert one.calls["patch", "Event", 200] == 2

    run(api_server, scenario)


def test_excess_events_about_one_object_are_dropped(api_server: ApiServer, namespace: str) -> None:
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"

    async def scenario(one: Connected) -> None:
        about = await one.kube.apply(config_map(namespace))
        for turn in range(BURST * 2):
            await one.kube.event(about, type="Normal", reason="Often", message=f"turn {turn} " + "ü" * 1_000)
        await one.events.close(10)
        assert len(api_server.request("GET", path)["items"]) == BURST
        assert one.events.dropped == BURST

    run(api_server, scenario)


def test_changed_token_is_reloaded_after_rejection(api_server: ApiServer, namespace: str) -> None:
    tokens = iter(["wrong", api_server.token])

    def load() -> Any:
        loaded = Credentials(str(api_server.kubeconfig)).load()
        loaded.refresh_api_key_hook = None
        loaded.api_key["BearerToken"] = f"Bearer {next(tokens)}"
        return loaded

    async def scenario(one: Connected) -> None:
        requests = ApiRequests(load, threads=1, timeout_s=10, observe=lambda request, status: None)
        kube = ApiKube(requests, seen=lambda kind, found: None)
        with pytest.raises(KubeError) as caught:
            await kube.get("ConfigMap", namespace, "one")
        assert caught.value.status == 401
        assert await kube.get("ConfigMap", namespace, "one") is None
        requests.close()

    run(api_server, scenario)


def test_fence_blocks_writes_while_another_replica_may_be_active(api_server: ApiServer, namespace: str) -> None:
    async def scenario(one: Connected) -> None:
        one.requests.fence = lambda: "another replica is active"
        with pytest.raises(KubeError, match="another replica is active"):
            await one.kube.apply(config_map(namespace))
        assert await one.kube.get("ConfigMap", namespace, "one") is None

    run(api_server, scenario)
