"""Delay settings of Topics: dry runs, limited rates, and messages that came due while the broker was not running."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from kind import objects
from kind.lab import Lab, Operator
from kind.space import Space
from kind.verdict import Sent
from kind.waiting import NotYetError, wait_until

pytestmark = pytest.mark.timeout(240)

BROKER = "broker.delaymq.io"
LEVELS = "delaylevelconfig.delaymq.io"
TOPIC = "topic.delaymq.io"
POD = "demo-broker-0-0"
DRY_RUN = "delaymq.io/dry-run"

PENDING = 8
"""Messages of the dry run."""
TOGETHER = 90
"""Messages of each topic that are due at one time: a third of them in a second is smooth, and half of them a burst."""
PER_SECOND = 15
SPREAD_MS = 6_000
DUE_AFTER_S = 8
"""Time for sending all messages before they are due."""
DOWN_AFTER_S = 20
"""Time for sending all messages and for stopping the broker before they are due."""
OVERDUE_AFTER_MS = 5_000
OVERDUE_OVER_MS = 8_000
SLACK_MS = 10_000
"""Additional lateness, because other suites may need the processors."""


@pytest.fixture(scope="module")
def demo(lab: Lab, operator: Operator) -> Iterator[Space]:
    """Provide one Broker for the tests here, each with its own topics."""
    space = lab.spare()
    yield space
    lab.remove(space)


def test_dry_runs_show_their_effect_and_are_applied_when_the_annotation_is_removed(
    demo: Space, note: Callable[..., None]
) -> None:
    level = objects.LEVEL_OF["1h"]
    delays = objects.LEVELS_TEXT.split()
    _apply_topics(demo, dry={})
    demo.apply(objects.levels("steps", *delays))
    demo.client.produce(
        topic="dry", name_servers=demo.name_servers(), run="dry", count=PENDING, levels=level, retries=0
    ).result()
    due_ms = _topic_delays(demo, "dry")["latestDueMs"]
    demo.patch(BROKER, "demo", {"spec": {"delayLevelConfigRef": {"name": "steps"}}})
    demo.wait_condition(LEVELS, "steps", "Ready", reason="Applied")
    demo.wait_broker(lambda broker: _pending(broker, level) == PENDING, "the status counts the messages")
    for kind, name in ((TOPIC, "dry"), (LEVELS, "steps")):
        demo.annotate(kind, name, f"{DRY_RUN}=true")
    delays[level - 1] = "90m"
    began = time.monotonic()
    demo.patch(TOPIC, "dry", {"spec": {"queues": 4, "delay": {"maxPendingMessages": 5, "maxPerSecond": 10}}})
    demo.patch(LEVELS, "steps", {"spec": {"levels": delays}})
    settings = {"maxPendingMessages": 5, "maxPerSecond": 10}
    of_topic = _wait_dry_run(demo, TOPIC, "dry", f"{PENDING} messages are pending")
    for effect in (
        'delay settings {} → {"maxPendingMessages":5,"maxPerSecond":10}',
        "maxPendingMessages would reject further ones until 4 of them have ended",
        "the rate would apply to them when they are due",
    ):
        assert effect in of_topic, of_topic
    of_levels = _wait_dry_run(demo, LEVELS, "steps", f"demo: level {level} (1h → 90m) would change")
    assert f"{PENDING} pending messages of changed levels would keep their due times" in of_levels, of_levels
    shown_s = time.monotonic() - began
    # Only the other fields are applied.
    assert demo.get(TOPIC, "dry")["status"]["groups"][0]["writeQueues"] == 4
    assert _topic_delays(demo, "dry")["settings"] == {}
    assert demo.level_delays_ms(POD)[level - 1] == 3_600_000
    assert not _applied_events(demo)
    began = time.monotonic()
    for kind, name, reason in ((TOPIC, "dry", "InEveryGroup"), (LEVELS, "steps", "Applied")):
        demo.annotate(kind, name, f"{DRY_RUN}-")
        demo.wait_condition(kind, name, "Ready", reason=reason)
    wait_until("an event reports the settings", lambda: _applied_events(demo), timeout_s=30)
    applied = _topic_delays(demo, "dry")
    assert (applied["settings"], applied["pending"]) == (settings, PENDING)
    assert applied["latestDueMs"] == due_ms
    assert demo.level_delays_ms(POD)[level - 1] == 5_400_000
    note(shown_s=shown_s, applied_s=time.monotonic() - began, of_topic=of_topic, of_levels=of_levels)


def test_messages_due_together_are_delivered_at_the_rate_or_over_the_window_of_their_topic(
    demo: Space, note: Callable[..., None]
) -> None:
    _apply_topics(
        demo, limited={"maxPerSecond": PER_SECOND}, smoothed={"spreadOverMilliseconds": SPREAD_MS}, unlimited={}
    )
    sends = _send_together(demo, ("limited", "smoothed", "unlimited"), DUE_AFTER_S)
    limited, smoothed, unlimited = (_deliveries(demo, topic, sends[topic]) for topic in sends)
    limited.assert_smooth(within_ms=TOGETHER * 1_000 // PER_SECOND)
    smoothed.assert_smooth(within_ms=SPREAD_MS)
    # The rates were limited by the settings, not by the machine.
    unlimited.assert_burst()
    note(limited=limited.figures(), smoothed=smoothed.figures(), unlimited=unlimited.figures())


def test_messages_that_came_due_during_a_downtime_are_treated_as_their_topics_require(
    demo: Space, note: Callable[..., None]
) -> None:
    after = {"afterMilliseconds": OVERDUE_AFTER_MS}
    _apply_topics(
        demo,
        spread={"overdue": {"treatment": "Spread", "overMilliseconds": OVERDUE_OVER_MS, **after}},
        dropped={"overdue": {"treatment": "Drop", **after}},
        paused={"overdue": {"treatment": "Pause", **after}},
        # Longer downtimes only.
        tolerant={"overdue": {"treatment": "Drop"}},
    )
    sends = _send_together(demo, ("spread", "dropped", "paused", "tolerant"), DOWN_AFTER_S)
    down_s = _stay_down_until_due(demo, [send for each in sends.values() for send in each])
    assert down_s * 1_000 > OVERDUE_AFTER_MS
    started_ms = demo.http(POD, "/api/v1/broker")["startedAtMs"]
    tolerant = _deliveries(demo, "tolerant", sends["tolerant"], since_ms=started_ms)
    tolerant.assert_burst()
    spread = _deliveries(demo, "spread", sends["spread"], since_ms=started_ms)
    spread.assert_smooth(within_ms=OVERDUE_OVER_MS)
    # By then, messages without a treatment have been delivered.
    for topic in ("dropped", "paused"):
        assert len(demo.judge(topic, sends[topic]).lost) == TOGETHER
    assert _topic_delays(demo, "dropped")["pending"] == 0
    assert f"\ndelaymq_delay_refused_total {TOGETHER:.1f}\n" in demo.text(POD, "/metrics")
    assert _topic_delays(demo, "paused")["pending"] == TOGETHER
    assert [each["topic"] for each in demo.http(POD, "/api/v1/delay")["pauses"]] == ["paused"]
    resume = ["delaymq", "delay", "resume", "--topic", "paused", "--http", "http://127.0.0.1:8080", "--yes"]
    demo.kubectl("exec", POD, "--", *resume)
    demo.judge_when_done("paused", sends["paused"]).assert_clean()
    note(down_s=down_s, spread=spread.figures(), tolerant=tolerant.figures())


class _Deliveries:
    """Times at which the messages of a topic were delivered that were due together."""

    def __init__(self, topic: str, begin_ms: int, stored_ms: Iterable[int]) -> None:
        self._topic = topic
        self._begin_ms = begin_ms
        self._stored_ms = sorted(stored_ms)

    def assert_smooth(self, *, within_ms: int) -> None:
        """Check that no second had more than a third of the messages, and that they were not later than necessary."""
        assert self._most_per_second <= TOGETHER // 3, self._text
        assert self._last_ms <= within_ms + SLACK_MS, self._text

    def assert_burst(self) -> None:
        """Check that half of the messages were delivered in a second."""
        assert self._most_per_second > TOGETHER // 2, self._text

    def figures(self) -> dict[str, int]:
        return {"most_per_second": self._most_per_second, "last_ms": self._last_ms}

    @property
    def _most_per_second(self) -> int:
        stored = self._stored_ms
        return max(bisect_left(stored, first_ms + 1_000) - number for number, first_ms in enumerate(stored))

    @property
    def _last_ms(self) -> int:
        return self._stored_ms[-1] - self._begin_ms

    @property
    def _text(self) -> str:
        return f"{self._topic}: {[stored_ms - self._begin_ms for stored_ms in self._stored_ms]} ms"


def _deliveries(space: Space, topic: str, sends: list[Sent], *, since_ms: int | None = None) -> _Deliveries:
    """Return the deliveries of all messages, from their due time or, if they were overdue, from another time."""
    verdict = space.judge_when_done(topic, sends, timeout_s=60)
    verdict.assert_clean()
    due_ms = {due_ms for due_ms, _ in verdict.handed_over}
    assert len(due_ms) == 1, due_ms
    begin_ms = due_ms.pop() if since_ms is None else since_ms
    assert max(send.ended_ms for send in sends) < begin_ms, "the last messages were sent when the first were due"
    return _Deliveries(topic, begin_ms, (stored_ms for _, stored_ms in verdict.handed_over))


def _apply_topics(space: Space, **delays: dict[str, Any]) -> None:
    """Create Topics with these settings, and wait until the broker has them."""
    space.apply(*(objects.topic(topic, queues=2, delay=delay) for topic, delay in delays.items()))
    for topic in delays:
        space.wait_condition(TOPIC, topic, "Ready", reason="InEveryGroup")


def _send_together(space: Space, topics: Iterable[str], after_s: int) -> dict[str, list[Sent]]:
    """Send messages of several topics at the same time; those of each topic have the same due time."""
    programs = {
        topic: space.client.start(
            "produce", topic=topic, name_servers=space.name_servers(), run=topic, count=TOGETHER, rate=200,
            together_after_s=after_s, retries=0,
        )
        for topic in topics
    }  # fmt: skip
    for program in programs.values():
        assert program.result() == {"acknowledged": TOGETHER, "failed": 0}
    return {topic: program.sends() for topic, program in programs.items()}


def _stay_down_until_due(space: Space, sends: list[Sent]) -> float:
    """Stop the broker before the messages are due, and start it afterwards; return the seconds in between."""
    # A paused Broker is not repaired.
    space.patch(BROKER, "demo", {"spec": {"paused": True}})
    space.wait_condition(BROKER, "demo", "Paused", status="True")
    space.kubectl("scale", "statefulset", "demo-broker-0", "--replicas=0")
    wait_until("the broker is down", lambda: space.find("pod", POD) is None, timeout_s=60)
    began = time.time()
    first_due_s = min(send.began_ms for send in sends) / 1_000 + DOWN_AFTER_S
    assert began < first_due_s, "the broker was still running when the first messages were due"
    time.sleep(max(send.ended_ms for send in sends) / 1_000 + DOWN_AFTER_S - began)
    down_s = time.time() - began
    space.patch(BROKER, "demo", {"spec": {"paused": False}})
    space.wait_broker_ready()
    return down_s


def _topic_delays(space: Space, topic: str) -> Any:
    """Return the delay settings of a topic and what is pending, as the broker has them."""
    return space.http(POD, f"/api/v1/delay/settings/topics/{topic}")


def _pending(broker: dict[str, Any], level: int) -> int | None:
    """Return the number of pending messages with a level in the status of a Broker."""
    levels = broker["status"]["groups"][0].get("delay", [])
    return next((each["pending"] for each in levels if each["level"] == level), None)


def _wait_dry_run(space: Space, kind: str, name: str, effect: str) -> str:
    """Return the message of the condition Ready once it shows an effect of a dry run."""

    def ask() -> str:
        state = space.condition(kind, name, "Ready")
        if (state.get("status"), state.get("reason")) == ("Unknown", "DryRun") and effect in state["message"]:
            return str(state["message"])
        raise NotYetError(str(state))

    return wait_until(f"{kind} {name} shows the effect", ask, timeout_s=60)


def _applied_events(space: Space) -> list[str]:
    """Return the events about the settings of the Topic of the dry run."""
    return [
        event["message"]
        for event in space.list("events")
        if (event["involvedObject"]["name"], event["reason"]) == ("dry", "Applied")
        and "delay settings" in event["message"]
    ]
