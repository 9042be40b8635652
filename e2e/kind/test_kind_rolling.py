"""Rolling restart of two groups, unnoticed by Python and Java clients."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kind import objects
from kind.clients import JAVA_POD, JavaClient
from kind.lab import Lab
from kind.space import Space, condition
from kind.waiting import stays, wait_until

pytestmark = pytest.mark.timeout(420)

BROKER = "broker.delaymq.io"
LEVELS = "1,2"
PYTHON_RATE = 100
JAVA_RATE = 60
JAVA_TIMEOUT_MS = 15_000
"""Time for a send with its retries. While other suites run, the client may get no processor for its default of 3 s."""
ROLL_TIMEOUT_S = 240


def test_invalid_image_stops_the_rollout_at_its_first_pod_and_a_valid_one_completes_it(
    lab: Lab, spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    space = spare()
    before = space.pod_uids()
    producer = space.client.produce(
        topic="orders", name_servers=space.name_servers(), run="image", rate=50, levels=objects.LEVEL_OF["5s"]
    )
    producer.wait_lines("sent", 20)
    space.patch(BROKER, "demo", {"spec": {"image": "delaymq/no-such-image:0"}})
    state = space.wait_condition(BROKER, "demo", "Degraded", reason="PodFailing")
    assert "no-such-image" in state["message"], state["message"]
    failing = [pod for pod in space.list("pods", "app.kubernetes.io/name=delaymq") if not _ready(pod)]
    assert len(failing) == 1, [pod["metadata"]["name"] for pod in failing]
    # The only NameServer is not changed until another pod has run.
    assert failing[0]["metadata"]["name"] == "demo-namesrv-trial-0"
    stays("no pod stops", lambda: before.items() <= space.pod_uids().items(), for_s=5, every_s=0.5)
    # Neither the broker nor its clients are affected.
    assert not producer.lines("failed"), producer.lines("failed")[:3]
    began = time.monotonic()
    space.patch(BROKER, "demo", {"spec": {"image": lab.images["broker"]}})
    broker = space.wait_broker_ready(timeout_s=120)
    mended_s = time.monotonic() - began
    assert condition(broker, "Degraded")["status"] == "False"
    producer.wait_lines("sent", len(producer.lines("sent")) + 50)
    producer.stop()
    verdict = space.judge_when_done("orders", producer.sends())
    verdict.assert_clean()
    note(sentence=state["message"], stopped_at=failing[0]["metadata"]["name"], mended_s=mended_s, **verdict.figures())


def _ready(pod: dict[str, Any]) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def test_rolling_update_of_two_groups_fails_no_send_and_loses_no_message(
    lab: Lab, spaces: Callable[..., Space], note: Callable[..., None], tmp_path: Path
) -> None:
    space = spaces("rolling")
    java_requests = {"cpu": "50m", "memory": "192Mi"}
    space.apply(objects.client_pod(JAVA_POD, lab.java_client_image(), requests=java_requests))
    space.apply(objects.topic("python", queues=4), objects.topic("java", queues=4))
    name_servers = space.broker_ready(size=2)
    for topic in ("python", "java"):
        space.wait_condition("topic.delaymq.io", topic, "Ready", reason="InEveryGroup")
    space.wait_pod_ready(JAVA_POD)
    before = space.pod_uids("app.kubernetes.io/component=broker")
    assert len(before) == 2
    with JavaClient(space, tmp_path) as java:
        python = space.client.produce(
            topic="python", name_servers=name_servers, run="roll", rate=PYTHON_RATE, levels=LEVELS, at_most_s=300
        )
        sending = java.send(
            namesrv=name_servers, topic="java", threads=4, rate=JAVA_RATE, seconds=270, levels=LEVELS,
            retries=2, timeout_ms=JAVA_TIMEOUT_MS,
        )  # fmt: skip
        python.wait_lines("sent", PYTHON_RATE)
        began = time.monotonic()
        space.apply_broker(size=2, resources={"requests": {**objects.SMALL_REQUESTS, "cpu": "11m"}})

        def rolled() -> bool:
            now = space.pod_uids("app.kubernetes.io/component=broker")
            return len(now) == 2 and all(now[name][0] != uid for name, (uid, _) in before.items())

        wait_until("both pods are new", rolled, timeout_s=ROLL_TIMEOUT_S, every_s=1)
        space.wait_broker_ready()
        rolled_s = time.monotonic() - began
        # Send some more, so that both brokers receive messages again.
        python.wait_lines("sent", len(python.lines("sent")) + 2 * PYTHON_RATE)
        counts = python.stop()
        java.stop_sending()
        sent = sending.result(60)
        attempts = java.attempts("java")
    assert counts["failed"] == 0, python.lines("failed")[:5]
    verdict = space.judge_when_done("python", python.sends(), groups=2)
    verdict.assert_clean()
    verdict.assert_no_send_failed()
    by_java = space.judge_when_done("java", attempts, groups=2, by_unique_key=True)
    by_java.assert_clean()
    assert sent["failed"] == 0, sent["errors"]
    by_java.assert_no_send_failed()
    note(
        rolled_s=rolled_s, stored_again=verdict.stored_again, **verdict.figures(),
        java={"stored_again": by_java.stored_again, **by_java.figures()},
    )  # fmt: skip
