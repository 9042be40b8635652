"""Independent service of watched namespaces: a forbidden one stops no other and may become readable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from delaymq_operator.api.names import FINALIZER
from delaymq_operator.controller import namespaces as serving
from delaymq_operator.controller import sync
from delaymq_operator.controller.cache import WatchCache
from delaymq_operator.controller.controller import Controller
from delaymq_operator.controller.finalizers import StrandedFinalizers
from delaymq_operator.controller.namespaces import NamespaceServer
from delaymq_operator.controller.sync import CacheSync, Lost, Scope
from delaymq_operator.reconcile.context import Key, Outcome, Waiting
from delaymq_operator.reconcile.errors import KubeError

TIMEOUT_S = 20.0


class Lists:
    """An API server with a Broker `demo` in each namespace."""

    def __init__(self) -> None:
        self.listing = asyncio.Lock()
        self.forbidden: set[str] = set()
        self.error: KubeError | None = None
        self.items: dict[str, list[dict[str, Any]]] = {}
        """Listed objects by plural, in place of the Broker."""

    async def send(self, request: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        namespace, _, rest = request.path.partition("/namespaces/")[2].partition("/")
        plural = rest.partition("?")[0]
        if self.error is not None:
            raise self.error
        if namespace in self.forbidden:
            raise KubeError(403, "Forbidden", f'cannot list resource "{plural}" in the namespace "{namespace}"')
        metadata = {"namespace": namespace, "name": "demo", "uid": namespace, "resourceVersion": "1"}
        items = self.items.get(plural, [{"metadata": metadata}] if plural == "brokers" else [])
        return {"items": items, "metadata": {"resourceVersion": "1000"}}


class FakeWatches:
    def __init__(self, scope: Scope, running: set[Scope]) -> None:
        self._scope = scope
        self._running = running

    async def run(self) -> None:
        self._running.add(self._scope)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self._running.discard(self._scope)


class Tenants:
    """A NamespaceServer with its collaborators, and a record of its actions."""

    def __init__(self, *namespaces: str) -> None:
        self.lists = Lists()
        self.reconciled: list[Key] = []
        self.watched: set[Scope] = set()
        self.stranded: list[str] = []
        self.is_left = False
        self.cache = WatchCache(self._changed, namespaces=namespaces)
        self.controller = Controller(self._reconcile, self, workers=1, resync_s=1_000, known=list)
        self.serving = NamespaceServer(
            namespaces,
            sync=self._sync,
            cache=self.cache,
            controller=self.controller,
            watches=lambda scope: FakeWatches(scope, self.watched),
            keys=lambda scope: [
                Key("Broker", one["metadata"]["namespace"], one["metadata"]["name"])
                for one in self.cache.all("Broker", scope)
            ],
            left=self,
        )

    def forbid(self, namespace: str) -> bool:
        self.lists.forbidden.add(namespace)
        return True

    def allow_all(self) -> bool:
        self.lists.forbidden.clear()
        return True

    def _sync(self, lost: Lost) -> CacheSync:
        requests: Any = self.lists
        return CacheSync(requests, self.cache, interval_s=0.001, lost=lost)

    def _changed(self, kind: str, before: object, after: object) -> None:
        pass

    async def _reconcile(self, key: Key) -> Outcome:
        self.reconciled.append(key)
        return Outcome()

    async def any(self, namespace: str) -> bool:
        return self.is_left

    async def release(self, namespace: str) -> None:
        self.stranded.append(namespace)

    def ran(self, *_: object) -> None:
        pass


def serve(tenants: Tenants, *steps: Callable[[], object]) -> None:
    """Serve until each step, in order, has returned a true value; TimeoutError after `TIMEOUT_S`."""

    async def run() -> None:
        running = asyncio.create_task(tenants.serving.run(tenants.controller.start))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for step in steps:
                    while not step():
                        assert not running.done(), running
                        await asyncio.sleep(0.001)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await tenants.controller.stop(0)

    asyncio.run(run())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((serving, "FIRST_RETRY_S"), (serving, "MAX_RETRY_S"), (sync, "GRACE_S")):
        monkeypatch.setattr(module, name, 0.001)


def of(namespace: str) -> Key:
    return Key("Broker", namespace, "demo")


def test_forbidden_namespace_does_not_delay_others(caplog: pytest.LogCaptureFixture) -> None:
    tenants = Tenants("b", "a")
    tenants.lists.forbidden.add("b")
    serve(tenants, lambda: of("a") in tenants.reconciled, lambda: len(tenants.stranded) > 2)
    assert of("b") not in tenants.reconciled
    assert set(tenants.stranded) == {"b"}
    said = [record.getMessage() for record in caplog.records if "namespace b is not served" in record.getMessage()]
    assert len(said) == 1
    assert "the operator's role lacks this" in said[0]


def test_namespace_is_served_once_listing_is_permitted() -> None:
    tenants = Tenants("a", "b")
    tenants.lists.forbidden.add("b")

    def allow() -> bool:
        assert tenants.serving.obstacles.keys() == {"b"}
        tenants.lists.forbidden.clear()
        return True

    serve(
        tenants,
        lambda: of("a") in tenants.reconciled,
        allow,
        lambda: of("b") in tenants.reconciled and tenants.watched == {"a", "b"},
    )
    assert tenants.serving.obstacles == {}
    assert tenants.serving.served == {"a", "b"}


def test_namespace_is_dropped_when_listing_becomes_forbidden() -> None:
    tenants = Tenants("a", "b")
    serve(
        tenants,
        lambda: tenants.watched == {"a", "b"},
        lambda: tenants.forbid("b"),
        lambda: tenants.watched == {"a"} and not tenants.cache.all("Broker", "b"),
        lambda: tenants.stranded,
        lambda: tenants.allow_all(),
        lambda: tenants.watched == {"a", "b"} and tenants.cache.all("Broker", "b"),
    )
    assert [found["metadata"]["namespace"] for found in tenants.cache.all("Broker")] == ["a", "b"]


def test_server_stops_without_readable_namespace_and_waits_for_one() -> None:
    tenants = Tenants("a", "b")
    tenants.lists.forbidden |= {"a", "b"}

    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await tenants.serving.run(tenants.controller.start)
            readable = asyncio.create_task(tenants.serving.readable())
            await asyncio.sleep(0.01)
            assert not readable.done()
            assert tenants.serving.obstacles.keys() == {"a", "b"}
            tenants.lists.forbidden.discard("b")
            await readable
        await tenants.controller.stop(0)

    asyncio.run(run())
    assert tenants.reconciled == []
    assert tenants.serving.served == set()


def test_stranded_finalizers_are_released_without_served_namespace() -> None:
    tenants = Tenants("b")
    tenants.lists.forbidden.add("b")
    tenants.is_left = True

    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await tenants.serving.readable()
            await tenants.serving.run(tenants.controller.start)
        await tenants.controller.stop(0)

    asyncio.run(run())
    assert set(tenants.stranded) == {"b"}


def test_unreachable_api_server_drops_no_namespace() -> None:
    tenants = Tenants("a")

    def leave() -> bool:
        tenants.lists.error = KubeError(0, "Unreachable", "no answer")
        tenants.serving.sync.suspect()
        return True

    def seen() -> bool:
        return bool(tenants.serving.sync._suspected.is_set())

    serve(tenants, lambda: tenants.watched == {"a"}, leave, seen)
    assert tenants.cache.all("Broker", "a")


class Held:
    """Implementation of the port Kube with a single object; it records patches."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.patches: list[dict[str, Any]] = []

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return self.body

    async def patch(self, kind: str, namespace: str, name: str, patch: dict[str, Any]) -> None:
        self.patches.append(patch)


@pytest.mark.parametrize(
    ("metadata", "waiting", "patched"),
    [
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, None, [["theirs"]]),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, Waiting("its broker is not ready", 1.0), []),
        ({}, None, []),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["theirs"]}, None, []),
    ],
)
def test_finalizer_is_removed_only_from_deleted_and_released_objects(
    metadata: dict[str, Any], waiting: Waiting | None, patched: list[list[str]]
) -> None:
    tenants = Tenants("a")
    common = {"namespace": "a", "name": "orders", "resourceVersion": "7", "finalizers": ["theirs", FINALIZER]}
    kube: Any = Held({"metadata": common | metadata})
    requests: Any = tenants.lists
    requests.items["topics"] = [kube.body]

    async def release(key: Key) -> Waiting | None:
        assert key == Key("Topic", "a", "orders")
        return waiting

    stranded = StrandedFinalizers(requests, kube, tenants.controller, {"Topic": release})
    held = "deletionTimestamp" in metadata and FINALIZER in metadata.get("finalizers", [FINALIZER])
    assert asyncio.run(stranded.any("a")) == held
    asyncio.run(stranded.release("a"))
    assert [patch["metadata"]["finalizers"] for patch in kube.patches] == patched
    assert all(patch["metadata"]["resourceVersion"] == "7" for patch in kube.patches)


def test_failed_list_or_release_raises_no_error() -> None:
    tenants = Tenants("a")
    held = {"namespace": "a", "name": "orders", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER]}
    kube: Any = Held({"metadata": held | {"resourceVersion": "7"}})
    requests: Any = tenants.lists
    requests.items["topics"] = [kube.body]

    async def release(key: Key) -> Waiting | None:
        raise KubeError(403, "Forbidden", "cannot get secrets")

    stranded = StrandedFinalizers(requests, kube, tenants.controller, {"Topic": release})
    asyncio.run(stranded.release("a"))
    requests.forbidden.add("a")
    asyncio.run(stranded.release("a"))
    assert not asyncio.run(stranded.any("a"))
    assert kube.patches == []
