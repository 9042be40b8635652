"""Statuses with every field, stored and patched on a real API server."""

from __future__ import annotations

from typing import Any

import pytest
from delaymq_operator.api import (
    AnalyticsGroupStatus,
    AnalyticsStatus,
    BrokerStatus,
    Condition,
    DelayLevelConfigStatus,
    TopicStatus,
    names,
    parse_broker,
    status_patch,
)
from delaymq_operator.api.broker_status import (
    CorrectedLevel,
    GroupStatus,
    LatenessStatus,
    LevelStatus,
    ReplicaStatus,
    ResumedStatus,
    StorageStatus,
    TimedStatus,
    VolumesStatus,
)
from delaymq_operator.api.delay_level_config import AppliedLevels
from delaymq_operator.api.resource import StatusStruct
from delaymq_operator.api.topic import TopicDelayStatus, TopicGroupStatus
from delaymq_operator_testing.api_server import ApiError, ApiServer
from msgspec import inspect

TIME = "2026-11-21T06:00:00Z"
CONDITION = Condition(
    type="Ready", status="True", reason="Settled", message="m", last_transition_time=TIME, observed_generation=1
)
CORRECTED = CorrectedLevel(level=2, from_offset=9, to_offset=4, reason="behind")
GROUP = GroupStatus(
    name="demo-0",
    group=0,
    pod="demo-broker-0-0",
    node="n",
    ready=True,
    master="demo-broker-0-0",
    epoch=7,
    replicas=(ReplicaStatus(name="demo-broker-0-1", node="m", in_sync=False, behind_bytes=9, behind_ms=4),),
    address="10.96.0.9:10911",
    version="0.1.0",
    started_at=TIME,
    store_id="s",
    writable=False,
    drain="withdraw",
    storage=StorageStatus(requested="20Gi", capacity="10Gi"),
    pending=3,
    next_due=TIME,
    lateness=LatenessStatus(p50_ms=0.5, p99_ms=2, max_ms=7.25),
    delay=(LevelStatus(level=1, delay_ms=1000, offset=4, max_offset=7, pending=3, next_due=TIME),),
    timed=TimedStatus(pending=2, next_due=TIME),
    resumed=ResumedStatus(at=TIME, boot_id="b", verdict="WentBack", pending=5, corrected=(CORRECTED,)),
)
VOLUMES = VolumesStatus(smallest="10Gi", storage_class_name="fast")
ANALYSED = AnalyticsGroupStatus(
    group=0,
    name="demo-0",
    application="demo-analytics-0-29654400",
    state="Failed",
    started_at=TIME,
    completed_at=TIME,
    message="The driver's exit code is 3.",
    messages=7,
    total_bytes=700,
    live_bytes=300,
    dead_bytes=400,
    reclaimable_bytes=350,
    pending=3,
    delivered=2,
    lost=1,
    duplicates=1,
    early=1,
    worst_lateness_ms=-5,
    p99_lateness_ms=-5,
    complete=False,
    skipped=2,
    report="demo-analytics-0-29654399",
)
ANALYTICS = AnalyticsStatus(
    since=TIME,
    last_schedule_time=TIME,
    next_schedule_time=TIME,
    analyzed="now",
    run="29654400",
    state="Failed",
    application="demo-analytics-0-29654400",
    completed_at=TIME,
    messages=7,
    total_bytes=700,
    live_bytes=300,
    dead_bytes=400,
    reclaimable_bytes=350,
    pending=3,
    lost=1,
    worst_lateness_ms=-5,
    complete=False,
    groups=(ANALYSED,),
)
STATUSES: dict[str, tuple[dict[str, Any], StatusStruct]] = {
    "Broker": (
        {},
        BrokerStatus(
            observed_generation=1,
            defaults=2,
            size=1,
            ready_groups=1,
            selector="a=b",
            name_servers=("demo-namesrv.ns:9876",),
            external_name_servers=("203.0.113.10:30976",),
            image="i",
            conditions=(CONDITION,),
            pending=3,
            next_due=TIME,
            levels="1s 5s",
            volumes=VOLUMES,
            groups=(GROUP,),
            analytics=ANALYTICS,
        ),
    ),
    "Topic": (
        {"brokerRef": {"name": "demo"}},
        TopicStatus(
            observed_generation=1,
            conditions=(CONDITION,),
            topic_name="T",
            groups=(TopicGroupStatus(name="demo-0", write_queues=4, read_queues=8, permission="None"),),
            delay=TopicDelayStatus(
                pending_messages=2,
                pending_bytes=600,
                next_due_time="2026-12-01T00:00:00Z",
                latest_due_time="2026-12-02T00:00:00Z",
            ),
        ),
    ),
    "DelayLevelConfig": (
        {"levels": ["1s"]},
        DelayLevelConfigStatus(
            observed_generation=1,
            conditions=(CONDITION,),
            used_by=("demo",),
            level_count=1,
            max_delay="1s",
            table="1s",
            applied=AppliedLevels(message_delay_level="1s", delay_level_overflow="reject"),
        ),
    ),
}


@pytest.mark.parametrize("kind", STATUSES)
def test_api_server_keeps_every_field_of_status(api_server: ApiServer, namespace: str, kind: str) -> None:
    spec, status = STATUSES[kind]
    path = _make(api_server, namespace, kind, spec)
    written = status.to_dict()
    assert set(written) == {field.encode_name for field in _fields(status)}
    kept = api_server.merge(f"{path}/status", {"status": written})["status"]
    assert kept == written


def test_nested_status_types_have_every_field_set() -> None:
    parts = (GROUP, GROUP.delay[0], GROUP.resumed, GROUP.storage, GROUP.lateness, CORRECTED, CONDITION)
    for part in (*parts, VOLUMES, ANALYTICS, ANALYSED):
        assert part is not None
        assert set(part.to_dict()) == {field.encode_name for field in _fields(part)}


def test_patch_removes_cleared_status_fields(api_server: ApiServer, namespace: str) -> None:
    path = _make(api_server, namespace, "Broker", {})
    before = STATUSES["Broker"][1].to_dict()
    api_server.merge(f"{path}/status", {"status": before})
    after = BrokerStatus(size=2).to_dict()
    patch = status_patch(before, after)
    assert patch is not None
    kept = api_server.merge(f"{path}/status", patch)
    assert kept["status"] == after
    assert parse_broker(kept).status == BrokerStatus(size=2)


def test_patch_removes_cleared_analytics_figures(api_server: ApiServer, namespace: str) -> None:
    path = _make(api_server, namespace, "Broker", {})
    before = BrokerStatus(analytics=ANALYTICS).to_dict()
    api_server.merge(f"{path}/status", {"status": before})
    after = BrokerStatus(analytics=AnalyticsStatus(since=TIME, groups=(ANALYSED,))).to_dict()
    patch = status_patch(before, after)
    assert patch is not None
    assert api_server.merge(f"{path}/status", patch)["status"] == after


def test_status_that_violates_schema_is_rejected(api_server: ApiServer, namespace: str) -> None:
    path = _make(api_server, namespace, "Broker", {})
    with pytest.raises(ApiError, match=r"status.groups\[1\]: Duplicate value"):
        api_server.merge(f"{path}/status", {"status": {"groups": [GROUP.to_dict()] * 2}})


def _make(api_server: ApiServer, namespace: str, kind: str, spec: dict[str, Any]) -> str:
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURALS[kind]}"
    api_server.create(path, {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": "t"}, "spec": spec})
    return f"{path}/t"


def _fields(part: StatusStruct) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(type(part))
    assert isinstance(found, inspect.StructType)
    return found.fields
