"""Restart of a broker with a large backlog: every view shows all pending messages, and those due are delivered once."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from kind import objects
from kind.space import Space
from kind.waiting import NotYetError, wait_until

POD = "demo-broker-0-0"
FAR_LEVEL = objects.LEVEL_OF["2h"]
BACKLOG = "backlog"
RATE = 20_000
"""More than the producer reaches: it keeps 500 sends in flight."""
SOON = 600
"""Messages due after a few seconds. The broker is killed while they are sent."""
TIMED = 20
"""Timed messages delivered after the restart, for the metrics of their lateness."""
STORE_OF_A_MILLION: dict[str, Any] = {"config": {"mappedFileSizeCommitLog": str(256 << 20)}, "storage": {"size": "8Gi"}}


@pytest.mark.parametrize(
    "pending",
    [
        pytest.param(20_000, marks=pytest.mark.timeout(240)),
        pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(2400)]),
    ],
)
def test_killed_broker_resumes_its_backlog_and_every_view_shows_it(
    pending: int, spaces: Callable[..., Space], spare: Callable[[], Space], note: Callable[..., None]
) -> None:
    if pending > 100_000:
        space = spaces("backlog")
        space.broker_ready(**STORE_OF_A_MILLION)
        space.apply(objects.topic("orders", queues=4))
    else:
        space = spare()
    space.apply(objects.topic(BACKLOG, queues=4))
    for topic in (BACKLOG, "orders"):
        space.wait_condition("topic.delaymq.io", topic, "Ready", reason="InEveryGroup")
    half = pending // 2
    _send(space, BACKLOG, half, levels=FAR_LEVEL)
    _send(space, BACKLOG, half, delay="30d")
    _wait_pending(space, half)
    soon = space.client.produce(
        topic="orders", name_servers=space.name_servers(), run="soon", rate=SOON // 2, count=SOON,
        levels=objects.LEVEL_OF["5s"], retries=0,
    )  # fmt: skip
    soon.wait_lines("sent", SOON // 2)
    boot_id = space.http(POD, "/api/v1/broker")["bootId"]
    space.kill_broker_process(POD)
    after = _wait_other_start(space, boot_id)
    soon.result()
    verdict = space.judge_when_done("orders", soon.sends(), timeout_s=60)
    verdict.assert_clean()
    _send(space, "orders", TIMED, delay="500ms")
    _wait_pending(space, half)
    _check_status(space, after, half)
    _check_command(space, half)
    _check_metrics(space, half)
    _check_console(space, half)
    note(pending=pending, **verdict.figures())


def _send(space: Space, topic: str, count: int, **options: Any) -> None:
    """Send messages, all of which are acknowledged."""
    producer = space.client.produce(
        topic=topic, name_servers=space.name_servers(), count=count, rate=RATE, show="failures",
        at_most_s=60 + count / 500, **options,
    )  # fmt: skip
    assert producer.result() == {"acknowledged": count, "failed": 0}


def _wait_pending(space: Space, half: int) -> None:
    """Wait until the API counts the backlog, half of it with a delay level, and nothing else."""

    def ask() -> bool:
        answer = space.http(POD, "/api/v1/delay")
        levels = {each["level"]: each["pending"] for each in answer["levels"] if each["pending"]}
        found = levels, answer["timed"]["pending"]
        if found != ({FAR_LEVEL: half}, half):
            raise NotYetError(str(found))
        return True

    wait_until("the broker counts its backlog", ask, timeout_s=60)


def _wait_other_start(space: Space, boot_id: str) -> str:
    def ask() -> str:
        found = str(space.http(POD, "/api/v1/broker")["bootId"])
        if found == boot_id:
            raise NotYetError("the former process still answers")
        return found

    return wait_until(f"{POD} answers with another process", ask, timeout_s=120)


def _check_status(space: Space, boot_id: str, half: int) -> None:
    """Check that the Broker shows timed messages next to levels, and how many messages the broker resumed with."""

    def group(broker: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = broker["status"]["groups"][0]
        return found

    broker = space.wait_broker(
        lambda found: group(found).get("resumed", {}).get("bootId") == boot_id and group(found)["pending"] == 2 * half,
        "the status shows this start and the backlog",
        timeout_s=120,
    )
    seen = group(broker)
    assert broker["status"]["pending"] == 2 * half
    assert {each["level"]: each["pending"] for each in seen["delay"]}[FAR_LEVEL] == half
    assert seen["timed"]["pending"] == half
    assert 2 * half <= seen["resumed"]["pending"] <= 2 * half + SOON
    assert seen["resumed"]["verdict"] in ("Intact", "Corrected")


def _check_command(space: Space, half: int) -> None:
    text = space.kubectl("exec", POD, "--", "delaymq", "delay", "status").stdout
    rows = {words[0]: words for line in text.splitlines() if (words := line.split())}
    assert str(half) in rows[str(FAR_LEVEL)], text
    assert str(half) in rows["timed"], text
    answer = json.loads(space.kubectl("exec", POD, "--", "delaymq", "delay", "status", "--json").stdout)
    assert answer["timed"]["pending"] == half


def _check_metrics(space: Space, half: int) -> None:
    text = space.text(POD, "/metrics")
    pending = dict(re.findall(r'^delaymq_delay_pending\{level="(\w+)"\} (\S+)$', text, re.MULTILINE))
    assert float(pending[str(FAR_LEVEL)]) == float(pending["timed"]) == half, pending
    late = dict(re.findall(r'^delaymq_delay_lateness_seconds_count\{level="(\w+)"\} (\S+)$', text, re.MULTILINE))
    assert float(late[str(objects.LEVEL_OF["5s"])]) > 0, late
    assert float(late["timed"]) == TIMED, late


def _check_console(space: Space, half: int) -> None:
    """Check the page, and the counts from which it draws the pending messages."""
    assert "<title>DelayMQ</title>" in space.text(POD, "/")
    by_topic = space.http(POD, "/api/v1/delay/pending?by=topic")
    assert [(row["topic"], row["pending"]) for row in by_topic["rows"]] == [(BACKLOG, 2 * half)]
    soonest = space.http(POD, "/api/v1/delay/pending/messages?kind=timed&limit=3")
    assert (len(soonest["messages"]), soonest["total"]) == (3, half)
