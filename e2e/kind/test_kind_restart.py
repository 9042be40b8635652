"""Loss of a broker's pod or process while thousands of messages are pending."""

import time
from collections.abc import Callable, Iterator

import pytest
from kind import objects
from kind.clients import Program
from kind.lab import Lab, Operator
from kind.space import Space, condition
from kind.verdict import longest_gap_s
from kind.waiting import NotYetError, wait_until

pytestmark = pytest.mark.timeout(240)

PENDING = 2500
RATE = 800
SENT_AFTERWARDS = 400
LEVELS = f"{objects.LEVEL_OF['5s']},{objects.LEVEL_OF['10s']}"
POD = "demo-broker-0-0"
OVERDUE_WITHIN_S = 30.0
"""Time from the process's start until the last overdue message is delivered: a second or two, longer while other suites
run.
"""


@pytest.fixture(scope="module")
def demo(lab: Lab, operator: Operator) -> Iterator[Space]:
    """Provide one Broker for the tests here, each with its own topic."""
    space = lab.spare()
    yield space
    lab.remove(space)


def _pending_thousands(space: Space, topic: str) -> Program:
    """Start a producer: thousands are acknowledged and pending, and more are in flight, each sent only once."""
    space.apply(objects.topic(topic, queues=4))
    space.wait_condition("topic.delaymq.io", topic, "Ready", reason="InEveryGroup")
    producer = space.client.produce(
        topic=topic, name_servers=space.name_servers(), run=topic, rate=RATE, levels=LEVELS, retries=0
    )
    producer.wait_lines("sent", PENDING)
    return producer


def _pod_away(
    space: Space, topic: str, take_away: Callable[[], None], note: Callable[..., None], **more: object
) -> None:
    """Send, stop the broker, and judge: nothing lost, duplicated or early; overdue messages delivered immediately."""
    producer = _pending_thousands(space, topic)
    before = space.pod(POD)
    sent_ms = int(time.time() * 1000)
    take_away()
    _wait_other_process(space, before)
    back_s = time.time() - sent_ms / 1000
    producer.wait_lines("sent", len(producer.lines("sent")) + SENT_AFTERWARDS)
    producer.stop()
    sends = producer.sends()
    verdict = space.judge_when_done(topic, sends, timeout_s=30)
    verdict.assert_clean()
    started_ms = space.http(POD, "/api/v1/broker")["startedAtMs"]
    last_ms = verdict.last_overdue_at_ms(sent_ms, started_ms)
    overdue_s = 0.0 if last_ms is None else max(0.0, (last_ms - started_ms) / 1000)
    assert overdue_s < OVERDUE_WITHIN_S
    on_time = sorted(verdict.lateness_of_due_after_ms(started_ms + 1000))
    assert on_time, "nothing fell due after the restart, so the test proves too little"
    # The ids returned to producers before still identify their records, although the pod's address has changed.
    first = next(send for send in sends if not send.failure)
    seen = space.client.ask("view", first.message_id, name_servers=space.name_servers())
    assert seen["keys"] == [first.key]
    note(
        ready_again_s=back_s, gap_s=longest_gap_s(sends), overdue_handed_over_s=overdue_s,
        lateness_after_restart_p99_ms=on_time[int(len(on_time) * 0.99)], **verdict.figures(), **more,
    )  # fmt: skip


def _wait_other_process(space: Space, before: dict[str, object]) -> None:
    """Wait until the pod is ready with a container other than that of ``before``."""
    old = before["status"]["containerStatuses"][0]["containerID"]  # type: ignore[index]

    def ask() -> bool:
        pod = space.find("pod", POD)
        states = (pod or {}).get("status", {}).get("containerStatuses", [])
        if states and states[0]["ready"] and states[0].get("containerID") != old:
            return True
        raise NotYetError(str(states))

    wait_until(f"{POD} is ready with another process", ask, timeout_s=90)


def test_deleted_pod_loses_no_delayed_message_and_delivers_none_twice(demo: Space, note: Callable[..., None]) -> None:
    _pod_away(demo, "deleted", lambda: demo.kubectl("delete", "pod", POD, "--wait=false"), note)


def test_process_killed_by_sigkill_loses_no_delayed_message_and_delivers_none_twice(
    demo: Space, note: Callable[..., None]
) -> None:
    _pod_away(demo, "killed", lambda: demo.kill_broker_process(POD), note)
    # The status shows the resumed positions. After a kill while messages fall due, the file with the offsets is stale
    # and is corrected from the log: forwards, never back.
    boot_id = demo.http(POD, "/api/v1/broker")["bootId"]
    broker = demo.wait_broker(
        lambda broker: broker["status"]["groups"][0]["resumed"]["bootId"] == boot_id, "the status tells of this process"
    )
    resumed = broker["status"]["groups"][0]["resumed"]
    assert all(each["reason"] == "stale" and each["from"] < each["to"] for each in resumed["corrected"]), resumed
    assert resumed["verdict"] == ("Corrected" if resumed["corrected"] else "Intact"), resumed
    state = condition(broker, "SchedulerIntact")
    assert state["reason"] == resumed["verdict"], state


def test_restart_of_a_single_group_causes_only_a_short_gap(demo: Space, note: Callable[..., None]) -> None:
    demo.apply(objects.topic("gap", queues=4))
    demo.wait_condition("topic.delaymq.io", "gap", "Ready", reason="InEveryGroup")
    uid = demo.pod(POD)["metadata"]["uid"]
    # Each message is sent only once, so every failure is counted.
    producer = demo.client.produce(
        topic="gap", name_servers=demo.name_servers(), run="gap", rate=100, levels=objects.LEVEL_OF["1s"], retries=0,
        timeout_ms=1000, at_most_s=90,
    )  # fmt: skip
    producer.wait_lines("sent", 100)
    demo.annotate("broker.delaymq.io", "demo", "delaymq.io/restart=gap")
    demo.wait_pod_ready(POD, other_than_uid=uid)
    demo.wait_broker_ready()
    producer.wait_lines("sent", len(producer.lines("sent")) + 100)
    producer.stop()
    verdict = demo.judge_when_done("gap", producer.sends())
    verdict.assert_clean()
    gap_s = longest_gap_s(producer.sends())
    assert gap_s > 0
    note(gap_s=gap_s, **verdict.figures())
