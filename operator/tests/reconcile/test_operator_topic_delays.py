"""`spec.delay` of a Topic, figures of pending messages in its status, and RefuseWhilePending."""

import asyncio
from typing import Any

import pytest
from delaymq.api_types.delay_settings import LatenessObjective, Overdue, OverdueTreatment, TopicDelaySettings
from delaymq_operator.api.names import DRY_RUN_ANNOTATION
from delaymq_operator.reconcile.context import Key, Waiting
from delaymq_operator.reconcile.topic import release_topic
from delaymq_operator_testing.worlds.topic import NAMESPACE, START_MS, TopicWorld
from delaymq_operator_testing.worlds.topic_reconciling import settle

DELAY: dict[str, Any] = {
    "maxDelaySeconds": 86_400, "maxPendingMessages": 100, "maxPendingBytes": 10**6, "whenTopicIsGone": "DeadLetter",
    "latenessObjective": {"withinMilliseconds": 5_000, "percent": 99.9},
    "maxPerSecond": 50, "spreadOverMilliseconds": 60_000,
    "overdue": {"treatment": "Spread", "afterMilliseconds": 5_000, "overMilliseconds": 1_800_000},
}  # fmt: skip
SETTINGS = TopicDelaySettings(
    max_delay_seconds=86_400,
    max_pending_messages=100,
    max_pending_bytes=10**6,
    when_topic_is_gone="deadLetter",
    lateness_objective=LatenessObjective(within_ms=5_000, percent=99.9),
    max_per_second=50,
    spread_over_ms=60_000,
    overdue=Overdue(treatment="spread", after_ms=5_000, over_ms=1_800_000),
)
DAY_MS = 86_400_000


def delete(world: TopicWorld, key: Key) -> Waiting | None:
    world.kube.mark_deleted("Topic", key.name)
    return asyncio.run(release_topic(key, world.world))


def test_delay_settings_are_applied_in_every_group_and_corrected() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders", delay=DELAY)
    settle(world, key)
    assert [world.delay_settings(number, "orders") for number in (0, 1)] == [SETTINGS] * 2
    assert world.condition(key)[:2] == ("True", "InEveryGroup")
    assert "demo-1: delay settings {} → {" in world.kube.events[-1][2]
    host = world.host(1)
    del world.brokers.delays_by_host[host]["orders"]
    world.later()
    settle(world, key)
    assert world.delay_settings(1, "orders") == SETTINGS
    assert world.kube.events[-1][:2] == ("Normal", "PutRight")
    world.later()
    world.brokers.calls.clear()
    settle(world, key)
    assert world.brokers.asked("set_topic_delays") == 0


def test_omitted_fields_are_removed_and_an_absent_object_changes_nothing() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", delay=DELAY)
    settle(world, key)
    world.kube.change("Topic", "orders", delay={"maxPendingMessages": 7})
    world.later()
    settle(world, key)
    assert world.delay_settings(0, "orders") == TopicDelaySettings(max_pending_messages=7)
    world.kube.change("Topic", "orders", delay=None)
    world.later()
    settle(world, key)
    assert world.delay_settings(0, "orders") == TopicDelaySettings(max_pending_messages=7)
    world.kube.change("Topic", "orders", delay={})
    world.later()
    settle(world, key)
    assert world.delay_settings(0, "orders") == TopicDelaySettings()


@pytest.mark.parametrize(
    ("treatment", "expected"),
    [("Deliver", "deliver"), ("Shift", "shift"), ("Drop", "drop"), ("Pause", "pause"), (None, "deliver")],
)
def test_treatment_after_a_downtime_is_applied(treatment: str | None, expected: OverdueTreatment) -> None:
    world = TopicWorld(groups=1)
    settle(world, world.add_topic("orders", delay={"overdue": {} if treatment is None else {"treatment": treatment}}))
    assert world.delay_settings(0, "orders") == TopicDelaySettings(overdue=Overdue(treatment=expected))


@pytest.mark.parametrize("overdue", [{"treatment": "Spread"}, {"treatment": "Drop", "overMilliseconds": 5}])
def test_treatment_without_its_duration_is_an_invalid_spec(overdue: dict[str, Any]) -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", delay={"overdue": overdue})
    settle(world, key)
    status, _, message = world.condition(key)
    assert status == "False"
    assert "spec.delay.overdue: overMilliseconds is the duration of the treatment Spread" in message


def test_rejected_settings_are_reported() -> None:
    world = TopicWorld(groups=1)
    settle(world, world.add_topic("orders"))
    world.brokers.refusing[world.host(0)] = "20000 others have delay settings: remove some of those first"
    world.kube.change("Topic", "orders", delay=DELAY)
    world.later()
    key = Key("Topic", NAMESPACE, "orders")
    assert settle(world, key).requeue_after_s == world.settings.status_interval_s
    status, reason, message = world.condition(key)
    assert (status, reason) == ("False", "ApplyFailed")
    assert "demo-0 (its broker rejects the request: 20000 others have delay settings" in message


def test_broker_without_delay_settings_matters_only_to_topics_that_have_them() -> None:
    world = TopicWorld(groups=1)
    world.brokers.too_old.add(world.host(0))
    plain, limited = world.add_topic("plain"), world.add_topic("limited", delay=DELAY)
    settle(world, plain, limited)
    assert world.condition(plain)[1] == "InEveryGroup"
    assert "delay" not in world.status(plain)
    assert world.condition(limited)[:2] == ("False", "ApplyFailed")
    assert "older than delay settings: upgrade it" in world.condition(limited)[2]


def test_missing_token_is_reported_and_a_changed_one_is_read_again() -> None:
    world = TopicWorld(groups=1)
    world.kube.remove("Secret", "demo-http-token")
    key = world.add_topic("orders", delay=DELAY)
    settle(world, key)
    assert world.condition(key)[:2] == ("False", "GroupsUnreachable")
    assert "the Secret demo-http-token contains no token" in world.condition(key)[2]
    world.set_token("old")
    settle(world, key)
    assert world.condition(key)[:2] == ("False", "GroupsUnreachable")
    world.set_token(world.brokers.token)
    world.later(60)
    settle(world, key)
    assert world.condition(key)[:2] == ("True", "InEveryGroup")


def test_restarting_broker_with_settings_in_force_is_not_reported() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", delay=DELAY)
    settle(world, key)
    world.set_ready(0, False)
    world.later()
    settle(world, key)
    assert world.condition(key)[:2] == ("True", "InEveryGroup")


def test_status_shows_pending_messages_of_all_groups_once_a_minute() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders")
    world.set_pending(0, "orders", 3, START_MS + DAY_MS)
    world.set_pending(1, "orders", 2, START_MS + 2 * DAY_MS)
    settle(world, key)
    assert world.status(key)["delay"] == {
        "pendingMessages": 5,
        "pendingBytes": 1_500,
        "nextDueTime": "2023-11-14T22:14:20Z",
        "latestDueTime": "2023-11-16T22:13:20Z",
    }
    world.set_pending(0, "orders", 30, START_MS + DAY_MS)
    world.later()
    world.kube.requests.clear()
    settle(world, key)
    assert world.status(key)["delay"]["pendingMessages"] == 5
    assert not world.kube.requests
    world.later(60)
    settle(world, key)
    assert world.status(key)["delay"]["pendingMessages"] == 32
    world.brokers.down.add(world.host(1))
    world.later(60)
    settle(world, key)
    assert world.status(key)["delay"]["pendingMessages"] == 32


def test_leaving_group_is_counted_and_not_changed() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders")
    settle(world, key)
    world.set_pending(1, "orders", 4, START_MS + DAY_MS)
    world.kube.change("Broker", "demo", size=1)
    world.kube.change("Topic", "orders", delay=DELAY)
    world.later(60)
    settle(world, key)
    assert [world.delay_settings(number, "orders") for number in (0, 1)] == [SETTINGS, TopicDelaySettings()]
    assert world.status(key)["delay"]["pendingMessages"] == 4


def test_topics_share_one_list_of_delays_per_group() -> None:
    world = TopicWorld(groups=2)
    keys = [world.add_topic(f"t{number}", delay=DELAY) for number in range(20)]
    settle(world, *keys)
    world.later()
    world.brokers.calls.clear()
    settle(world, *keys)
    assert world.brokers.asked("delays") == 2
    assert world.brokers.asked("set_topic_delays") == 0


def test_topic_with_pending_messages_is_not_deleted_until_they_are_gone() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders", deletionPolicy="RefuseWhilePending")
    settle(world, key)
    world.set_pending(1, "orders", 2, START_MS + DAY_MS)
    waiting = delete(world, key)
    assert waiting is not None
    assert world.on(0, "orders") is not None
    assert world.on(1, "orders") is not None
    status, reason, message = world.condition(key)
    assert (status, reason) == ("False", "Deleting")
    assert "demo-1: 2 delayed messages are pending until 2023-11-15T22:13:20Z" in message
    assert "set it to Delete" in message
    world.set_pending(1, "orders", 0, 0)
    assert delete(world, key) is None
    assert world.on(0, "orders") is None


def test_topic_is_not_deleted_while_its_pending_messages_are_unknown() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders", deletionPolicy="RefuseWhilePending")
    settle(world, key)
    world.brokers.down.add(world.host(0))
    assert delete(world, key) is not None
    assert world.on(1, "orders") is not None
    world.brokers.down.clear()
    world.brokers.too_old.add(world.host(1))
    assert delete(world, key) is not None
    assert "upgrade it" in world.condition(key)[2]


@pytest.mark.parametrize("policy", ["Delete", "RefuseWhilePending"])
def test_policy_can_be_changed_while_deletion_waits(policy: str) -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", deletionPolicy="RefuseWhilePending")
    settle(world, key)
    world.set_pending(0, "orders", 1, START_MS + DAY_MS)
    world.kube.change("Topic", "orders", deletionPolicy=policy)
    assert (delete(world, key) is None) == (policy == "Delete")
    assert (world.on(0, "orders") is None) == (policy == "Delete")


def test_dry_run_shows_the_effect_and_changes_nothing() -> None:
    world = TopicWorld(groups=2)
    key = world.add_topic("orders", delay={"maxPendingMessages": 100})
    settle(world, key)
    world.set_pending(0, "orders", 70, START_MS + DAY_MS)
    world.annotate("Topic", "orders", DRY_RUN_ANNOTATION, "true")
    world.kube.change("Topic", "orders", queues=9, delay={"maxPendingMessages": 50, "maxDelaySeconds": 60})
    world.later()
    settle(world, key)
    status, reason, message = world.condition(key)
    assert (status, reason) == ("Unknown", "DryRun")
    for part in (
        'demo-0: delay settings {"maxPendingMessages":100} → {"maxDelaySeconds":60,"maxPendingMessages":50}',
        "70 messages are pending",
        "maxPendingMessages would reject further ones until 21 of them have ended",
        "maxDelaySeconds would not change them (the last one is due at 2023-11-15T22:13:20Z)",
        "demo-1: delay settings",
    ):
        assert part in message
    assert world.delay_settings(0, "orders") == TopicDelaySettings(max_pending_messages=100)
    found = world.on(0, "orders")
    assert found is not None
    assert found.write_queues == 9
    assert world.brokers.asked("set_topic_delays") == 2
    world.annotate("Topic", "orders", DRY_RUN_ANNOTATION, None)
    world.later()
    settle(world, key)
    assert world.condition(key)[:2] == ("True", "InEveryGroup")
    assert world.delay_settings(0, "orders").max_pending_messages == 50
    # They are new, and no correction of a foreign change.
    assert world.kube.events[-1][:2] == ("Normal", "Applied")


def test_dry_run_shows_when_rates_and_treatments_would_apply() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", delay={})
    settle(world, key)
    world.annotate("Topic", "orders", DRY_RUN_ANNOTATION, "true")
    world.kube.change("Topic", "orders", delay={"maxPerSecond": 5, "overdue": {"treatment": "Drop"}})
    world.later()
    settle(world, key)
    message = world.condition(key)[2]
    assert "the rate would apply to them when they are due" in message
    assert "overdue would apply to those that come due while a broker is not running" in message


def test_dry_run_without_a_change_is_ready() -> None:
    world = TopicWorld(groups=1)
    key = world.add_topic("orders", delay=DELAY)
    settle(world, key)
    world.annotate("Topic", "orders", DRY_RUN_ANNOTATION, "true")
    settle(world, key)
    assert world.condition(key)[:2] == ("True", "InEveryGroup")
