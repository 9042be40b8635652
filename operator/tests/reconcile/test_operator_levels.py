"""DelayLevelConfigs: users and application reported in the status, deletion blocked while in use."""

import asyncio

import pytest
from delaymq_operator.api.names import DRY_RUN_ANNOTATION
from delaymq_operator.reconcile.context import Key, Outcome, Waiting
from delaymq_operator.reconcile.delay_level_config import reconcile_levels, release_levels
from delaymq_operator_testing.trees import copied
from delaymq_operator_testing.worlds.topic import NAMESPACE, TopicWorld


def look(world: TopicWorld, key: Key) -> Outcome:
    return asyncio.run(reconcile_levels(key, world.world))


def release(world: TopicWorld, key: Key) -> Waiting | None:
    return asyncio.run(release_levels(key, world.world))


def use(world: TopicWorld, broker: str, levels: str, *, runs: str | None = None) -> None:
    """Add a Broker that refers to the config; `runs` is the table that its brokers run with."""
    body = world.kube.add("Broker", broker, {"size": 1, "delayLevelConfigRef": {"name": levels}})
    if runs is not None:
        body["status"] = {"levels": runs}


def test_unused_config_is_valid_and_reported_as_unused() -> None:
    world = TopicWorld(groups=0)
    key = world.add_levels("short", "1s", "2d", "5m")
    assert look(world, key) == Outcome(world.settings.poll_interval_s)
    assert world.condition(key)[:2] == ("True", "NotUsed")
    assert world.condition(key, "InUse")[:2] == ("False", "NotUsed")
    status = world.status(key)
    assert (status["levelCount"], status["maxDelay"], status["table"]) == (3, "2d", "1s 2d 5m")
    assert status["usedBy"] == []
    assert status["observedGeneration"] == 1


def test_modified_status_is_restored_by_next_reconciliation() -> None:
    world = TopicWorld(groups=0)
    key = world.add_levels("short", "1s", "2d", "5m")
    look(world, key)
    before = world.status(key)
    body = copied(world.kube.objects[key])
    body["status"] |= {"usedBy": ["theirs"], "levelCount": 9, "observedGeneration": 0}
    body["status"]["conditions"][0] |= {"reason": "Theirs", "message": "-"}
    body["status"]["conditions"].append(body["status"]["conditions"][0] | {"type": "Theirs"})
    world.kube.objects[key] = body
    look(world, key)
    assert world.status(key) == before


def test_invalid_table_is_reported_with_message_of_broker() -> None:
    world = TopicWorld(groups=0)
    use(world, "demo", "short", runs="1s")
    key = world.add_levels("short", "1s", "9999d")
    assert look(world, key).requeue_after_s is None
    status, reason, message = world.condition(key)
    assert (status, reason) == ("False", "Invalid")
    assert "level 2" in message
    assert message.endswith("at most 3650d. Brokers keep their current table.")
    assert world.status(key)["usedBy"] == ["demo"]


def test_config_is_applied_when_all_users_run_with_it() -> None:
    world = TopicWorld(groups=0)
    use(world, "one", "short", runs="1s 2s")
    use(world, "two", "short", runs="1s")
    use(world, "elsewhere", "other", runs="9s")
    key = world.add_levels("short", "1s", "2s")
    assert look(world, key).requeue_after_s == world.settings.progress_interval_s
    assert world.condition(key) == ("False", "Applying", "Not yet in effect in two (the change is being sent to it).")
    assert world.status(key)["usedBy"] == ["one", "two"]
    world.kube.objects["Broker", NAMESPACE, "two"]["status"] = {"levels": "1s 2s"}
    look(world, key)
    assert world.condition(key) == ("True", "Applied", "In effect in one, two.")
    world.kube.requests.clear()
    world.later()
    look(world, key)
    assert not world.kube.requests


def test_reason_for_delayed_application_is_reported_per_broker() -> None:
    world = TopicWorld(groups=0)
    use(world, "paused", "short", runs="9s")
    world.kube.change("Broker", "paused", paused=True)
    use(world, "starting", "short")
    condition = {"type": "Ready", "status": "False", "reason": "Creating", "message": "", "lastTransitionTime": ""}
    world.kube.objects["Broker", NAMESPACE, "starting"]["status"] = {"conditions": [condition]}
    use(world, "wrong", "short")
    world.kube.change("Broker", "wrong", size="many")
    key = world.add_levels("short", "1s")
    look(world, key)
    message = world.condition(key)[2]
    for part in ("paused (it is paused)", "starting (it is not ready: Creating)", "wrong (its spec is invalid)"):
        assert part in message


def test_changed_table_enqueues_all_users_once() -> None:
    world = TopicWorld(groups=0)
    for name in ("one", "two"):
        use(world, name, "short", runs="1s")
    key = world.add_levels("short", "1s")
    users = (Key("Broker", NAMESPACE, "one"), Key("Broker", NAMESPACE, "two"))
    assert look(world, key).enqueue == users
    assert look(world, key).enqueue == ()
    world.kube.change("DelayLevelConfig", "short", levels=["1s", "2s"])
    assert look(world, key).enqueue == users
    assert world.condition(key)[1] == "Applying"


def test_config_is_kept_while_broker_uses_it() -> None:
    world = TopicWorld(groups=0)
    use(world, "demo", "short", runs="1s")
    key = world.add_levels("short", "1s")
    look(world, key)
    world.kube.mark_deleted("DelayLevelConfig", "short")
    waiting = release(world, key)
    assert waiting is not None
    assert "demo" in waiting.message
    assert "delayLevelConfigRef" in waiting.message
    assert world.condition(key, "InUse") == ("True", "UsedByBrokers", waiting.message)
    assert world.kube.events == [("Warning", "StillUsed", waiting.message)]
    release(world, key)
    look(world, key)
    assert len(world.kube.events) == 1
    assert world.condition(key, "InUse")[2] == waiting.message
    world.kube.change("Broker", "demo", delayLevelConfigRef=None)
    assert release(world, key) is None


@pytest.mark.parametrize("how", ["gone", "going"])
def test_deleted_or_terminating_broker_does_not_block_deletion(how: str) -> None:
    world = TopicWorld(groups=0)
    use(world, "demo", "short", runs="1s")
    key = world.add_levels("short", "1s")
    look(world, key)
    world.kube.mark_deleted("DelayLevelConfig", "short")
    if how == "gone":
        world.kube.remove("Broker", "demo")
    else:
        world.kube.mark_deleted("Broker", "demo")
    assert release(world, key) is None


def test_user_missing_from_cache_blocks_deletion() -> None:
    world = TopicWorld(groups=0)
    key = world.add_levels("short", "1s")
    world.kube.mark_deleted("DelayLevelConfig", "short")
    world.kube.frozen = dict(world.kube.objects)
    use(world, "demo", "short")
    assert release(world, key) is not None


def test_long_list_of_users_is_abbreviated_in_message() -> None:
    world = TopicWorld(groups=0)
    for number in range(15):
        use(world, f"b{number:02}", "short", runs="1s")
    key = world.add_levels("short", "1s")
    look(world, key)
    assert world.condition(key)[2].endswith("b09 and 5 more.")
    assert len(world.status(key)["usedBy"]) == 15


def test_table_of_thousand_levels_is_truncated_in_status() -> None:
    world = TopicWorld(groups=0)
    key = world.add_levels("long", *[f"{number}s" for number in range(1, 1001)])
    look(world, key)
    assert world.status(key)["levelCount"] == 1000
    assert len(world.status(key)["table"]) <= 202


def test_absent_config_is_ignored() -> None:
    world = TopicWorld(groups=0)
    key = Key("DelayLevelConfig", NAMESPACE, "never")
    assert look(world, key) == Outcome()
    assert release(world, key) is None


def test_dry_run_shows_the_effect_on_each_broker() -> None:
    world = TopicWorld(groups=0)
    use(world, "demo", "short", runs="1s 10s 1h 2h")
    pending = [{"level": level, "pending": count} for level, count in ((1, 9), (2, 5), (3, 2), (4, 1))]
    world.kube.objects["Broker", NAMESPACE, "demo"]["status"]["groups"] = [
        {"name": f"demo-{number}", "group": number, "delay": pending} for number in (0, 1)
    ]
    use(world, "new", "short")
    key = world.add_levels("short", "1s", "10s", "1h", "2h")
    look(world, key)
    assert world.status(key)["applied"] == {"messageDelayLevel": "1s 10s 1h 2h", "delayLevelOverflow": "clamp"}
    world.annotate("DelayLevelConfig", "short", DRY_RUN_ANNOTATION, "true")
    world.kube.change("DelayLevelConfig", "short", levels=["1s", "15s"])
    look(world, key)
    status, reason, message = world.condition(key)
    assert (status, reason) == ("Unknown", "DryRun")
    assert (
        "demo: level 2 (10s → 15s) would change, levels 3 to 4 would be removed, and messages sent with them would get"
        " level 2; 16 pending messages of changed levels would keep their due times"
    ) in message
    assert "new: its present table is unknown until its brokers are ready" in message
    assert world.status(key)["applied"]["messageDelayLevel"] == "1s 10s 1h 2h"
    world.kube.change("DelayLevelConfig", "short", levels=["1s", "10s", "1h", "2h", "1d"], overflow="Reject")
    look(world, key)
    assert "demo: level 5 would be added; 0 pending messages" in world.condition(key)[2]
    world.annotate("DelayLevelConfig", "short", DRY_RUN_ANNOTATION, None)
    look(world, key)
    assert world.condition(key)[1] == "Applying"
    assert world.status(key)["applied"] == {"messageDelayLevel": "1s 10s 1h 2h 1d", "delayLevelOverflow": "reject"}


def test_dry_run_without_users_or_changes_says_so() -> None:
    world = TopicWorld(groups=0)
    key = world.add_levels("short", "1s")
    world.annotate("DelayLevelConfig", "short", DRY_RUN_ANNOTATION, "true")
    look(world, key)
    assert "No Broker refers to it" in world.condition(key)[2]
    assert "applied" not in world.status(key)
    use(world, "demo", "short", runs="1s")
    look(world, key)
    assert "demo: no level would change" in world.condition(key)[2]
