"""Invalid content in kopf's annotations."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf
import pytest
from delaymq_operator.handlers.settings import configure
from kopf._cogs.structs.ephemera import AnyMemo
from kopf._cogs.structs.ids import HandlerId
from kopf._cogs.structs.references import Resource
from kopf._core.engines.indexing import OperatorIndexers
from kopf._core.reactor.inventory import ResourceMemories
from kopf._core.reactor.processing import process_resource_event

TOPICS = Resource("delaymq.io", "v1alpha1", "topics", kind="Topic", namespaced=True)
RELEASE = HandlerId("release")
NONSENSE = [
    *("", "nonsense", "5", "[]", '"x"', '{"metadata": 5}', '{"metadata": {"annotations": []}, "spec": 1}'),
    "[" * 100_000,
    '{"spec":' * 400 + "0" + "}" * 400,
]
UNREADABLE = [
    *("nonsense", "7", "[1]", '{"started": 5}', '{"delayed": "soon"}', '{"retries": "many"}', '{"success": "?"}'),
    '{"started": "2026-01-01T00:00:00.000000"}',
]


def told(annotations: dict[str, str]) -> list[str]:
    """Process a deletion event of an object with these annotations; return the names that reach the event handler."""
    registry, settings, seen = kopf.OperatorRegistry(), kopf.OperatorSettings(), []
    configure(settings, request_timeout_s=1)

    @kopf.on.event("delaymq.io", "v1alpha1", "topics", registry=registry)
    async def news(name: str, **_: Any) -> None:
        seen.append(name)

    @kopf.on.delete("delaymq.io", "v1alpha1", "topics", registry=registry, id="release")
    async def release(**_: Any) -> None:
        raise AssertionError("nothing is deleted here")

    metadata = {"namespace": "ns", "name": "orders", "uid": "u", "annotations": annotations}
    body: Any = {"apiVersion": "delaymq.io/v1alpha1", "kind": "Topic", "metadata": metadata, "spec": {}}

    async def process() -> None:
        await process_resource_event(
            lifecycle=kopf.lifecycles.all_at_once,
            indexers=OperatorIndexers(),
            registry=registry,
            settings=settings,
            memories=ResourceMemories(),
            memobase=AnyMemo(kopf.Memo()),
            resource=TOPICS,
            raw_event={"type": "DELETED", "object": body},
            event_queue=asyncio.Queue(),
            no_throttling=True,
        )

    asyncio.run(process())
    return seen


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
def test_invalid_last_handled_configuration_hides_no_event(text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert told({"delaymq.io/last-handled-configuration": text}) == ["orders"]
    assert caplog.records == []


@pytest.mark.parametrize("text", UNREADABLE)
def test_unreadable_progress_is_ignored(text: str) -> None:
    settings = kopf.OperatorSettings()
    configure(settings, request_timeout_s=1)
    body = kopf.Body({"metadata": {"annotations": {"delaymq.io/release": text}}})
    assert settings.persistence.progress_storage.fetch(key=RELEASE, body=body) is None


def test_stored_progress_round_trips() -> None:
    settings = kopf.OperatorSettings()
    configure(settings, request_timeout_s=1)
    storage, patch = settings.persistence.progress_storage, kopf.Patch()
    delayed = (datetime.now(UTC) + timedelta(seconds=9)).isoformat(timespec="microseconds")
    record: Any = {"started": delayed, "delayed": delayed, "retries": 3, "success": False, "purpose": "delete"}
    storage.store(key=RELEASE, record=record, body=kopf.Body({}), patch=patch)
    body = kopf.Body({"metadata": {"annotations": dict(patch["metadata"]["annotations"])}})
    assert storage.fetch(key=RELEASE, body=body) == record
