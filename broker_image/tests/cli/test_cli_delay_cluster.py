"""`delaymq delay list`, `count`, `show` and changes, against a cluster of two brokers, one of which then stops."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delaymq.cli.errors import EXIT_UNREACHABLE, EXIT_USAGE
from delaymq.client import Client, PendingCount, PendingList, Producer
from delaymq_testing.cli_running import Done, SecondBroker, Standalone, called


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline


class Cluster:
    """Runs commands against both brokers."""

    def __init__(self, first: Standalone, second: Standalone) -> None:
        self.first = first
        self.second = second

    def __call__(self, *words: str) -> Done:
        return called("delay", *words, environment=self.first.environment)

    def json(self, *words: str) -> list[dict[str, Any]]:
        done = self(*words, "--json")
        assert (done.code, done.err) == (0, ""), done
        return [json.loads(line) for line in done.lines]

    def send(self, at: Standalone, body: str, delay: str, *words: str) -> dict[str, Any]:
        """Send to one of the brokers, by its HTTP API."""
        from delaymq.cli.target.contexts import target
        from delaymq.cli.target.http_api import HttpApi

        api = HttpApi(target(http=at.environment["DELAYMQ_HTTP"]))
        members = dict(zip(words[::2], words[1::2], strict=True))
        return api.post("topics/Both/messages", {"body": body, "delayMs": int(delay), **members})


def test_commands_ask_both_brokers_and_name_the_one_that_does_not_answer(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    first = Standalone(tmp_path / "a")
    with first.running():
        second = SecondBroker(tmp_path / "b", first)
        with second.running() as process:
            cluster = Cluster(first, second)
            expected = lists_merge_both_brokers(cluster)
            client_merges_both_brokers(cluster, expected)
            changes_reach_the_broker_that_has_the_message(cluster)
            settings_are_changed_on_both_brokers(cluster)
            other_cluster_with_a_broker_of_the_same_name_is_not_changed(cluster, tmp_path)
            groups_are_changed_at_both_brokers(cluster)
            process.kill()
            process.wait()
            one_broker_is_missing(cluster, expected)


def lists_merge_both_brokers(cluster: Cluster) -> list[str]:
    first, second = cluster.first, cluster.second
    sent = [
        cluster.send(
            (first, second)[number % 2], f"m{number}", str((10 - number) * 3_600_000), "tags", f"T{number % 3}"
        )
        for number in range(6)
    ]
    by_due = [each["messageId"] for each in reversed(sent)]
    rows = cluster.json("list", "--topic", "Both")
    assert [row["messageId"] for row in rows] == by_due
    assert [row["broker"] for row in rows] == ["broker-b", "broker-a"] * 3
    assert [row["messageId"] for row in cluster.json("list", "--tag", "T0")] == [by_due[2], by_due[5]]
    soon = cluster.json("list", "--until", "in 7h 30m", "--from", "now")
    assert [row["messageId"] for row in soon] == by_due[:3]
    done = cluster("list", "--limit", "4")
    assert done.lines[-1] == "4 of 6 pending messages are listed: list more with --limit, or later ones with --from"
    assert "Both" in cluster("forecast").out
    assert cluster("forecast").lines[-1].split() == ["total", "0", "0", "0", "6", "0", "6"]
    by_hour = cluster("forecast", "--by", "hour", "--topic", "Both").lines
    assert [line.split()[2] for line in by_hour if line.strip()[0].isdigit()] == ["0"] * 4 + ["1"] * 6 + ["0"] * 14
    by_day = [line.split()[:3] for line in cluster("forecast", "--by", "day").lines]
    assert ["1.", "day", "6"] in by_day
    [counted] = cluster.json("count", "--from", "in 7h 30m")
    assert (counted["total"], counted["missing"]) == (3, [])
    assert counted["brokers"] == [{"broker": "broker-a", "total": 2}, {"broker": "broker-b", "total": 1}]
    assert cluster("count", "--tag", "T1").lines[-1] == "2 pending"
    alone = cluster.json("count", "--http", second.environment["DELAYMQ_HTTP"])[0]
    assert alone["total"] == 3
    return by_due


def changes_reach_the_broker_that_has_the_message(cluster: Cluster) -> None:
    cluster.send(cluster.second, "keyed", "3600000", "delayKey", "order 1")
    [life] = cluster.json("show", "Both", "--key", "order 1")
    assert life["state"] == "pending"
    [moved] = cluster.json("move", "Both", "--key", "order 1", "--after", "2h")
    assert (moved["changed"], moved["broker"]) == (1, "broker-b")
    assert "1 message touched, due at" in cluster("touch", "Both", "--key", "order 1").out
    assert "1 message cancelled" in cluster("cancel", "Both", "--key", "order 1").out
    assert "cancelled before" in cluster("cancel", "Both", "--key", "order 1").out
    shown = cluster("show", "Both", "--key", "order 1").out
    assert ": cancelled" in shown.splitlines()[0]
    assert shown.count("moved") == 2
    late = cluster("fire", "Both", "--key", "order 1")
    assert (late.code, late.out) == (1, "")
    assert "cancelled" in late.err
    unknown = cluster("cancel", "Both", "--key", "never")
    assert unknown.code == 1
    assert "no pending message with this name is known" in unknown.err
    assert cluster("show", "Both", "--id", "never").code == 1


def settings_are_changed_on_both_brokers(cluster: Cluster) -> None:
    assert "no topic or account has delay settings" in cluster("settings").out
    wanted = ("--max-pending-messages", "50", "--max-delay", "30d", "--lateness-objective", "99.5%/5s")
    rates = ("--max-per-second", "50", "--spread", "10m", "--overdue", "spread=30m", "--overdue-after", "1h")
    for row in cluster.json("set", "--topic", "Both", *wanted, *rates):
        assert row["settings"] == {
            "maxPendingMessages": 50,
            "maxDelaySeconds": 30 * 86_400,
            "latenessObjective": {"withinMs": 5_000, "percent": 99.5},
            "maxPerSecond": 50,
            "spreadOverMs": 600_000,
            "overdue": {"treatment": "spread", "overMs": 1_800_000, "afterMs": 3_600_000},
        }
    assert "50/s over 10m" in cluster("settings", "--topic", "Both").out
    assert "--spread 2d: use at most 1d" in cluster("set", "--topic", "Both", "--spread", "2d").err
    assert "give --overdue as well" in cluster("set", "--topic", "Both", "--overdue-after", "1h").err
    assert "use deliver, spread=DURATION" in cluster("set", "--topic", "Both", "--overdue", "wait").err
    assert "spread=30m), shift, drop" in cluster("set", "--topic", "Both", "--overdue", "wait").err
    assert "spread=30m), drop" in cluster("resume", "--overdue", "shift").err
    for row in cluster.json("set", "--topic", "Both", "--overdue", "shift"):
        assert row["settings"]["overdue"] == {"treatment": "shift", "afterMs": 3_600_000}
    for row in cluster.json("set", "--topic", "Both", "--overdue", "drop"):
        assert row["settings"]["overdue"] == {"treatment": "drop", "afterMs": 3_600_000}
    assert "drop after 1h" in cluster("settings", "--topic", "Both").out
    removed_rates = ("--max-per-second", "none", "--spread", "none", "--overdue", "none")
    cluster.json("set", "--topic", "Both", "--max-delay", "none", "--when-topic-is-gone", "deadLetter", *removed_rates)
    rows = cluster.json("settings")
    assert [(row["broker"], row["topic"], row["pending"]) for row in rows] == [
        ("broker-a", "Both", 3),
        ("broker-b", "Both", 3),
    ]
    for row in rows:
        assert sorted(row["settings"]) == ["latenessObjective", "maxPendingMessages", "whenTopicIsGone"]
    shown = cluster("settings", "--topic", "Both").out
    assert "99.5%/5s" in shown
    assert "deadLetter" in shown
    removed = ("--max-pending-messages", "none", "--when-topic-is-gone", "none", "--lateness-objective", "none")
    cluster("set", "--topic", "Both", *removed)
    assert cluster.json("settings") == []
    assert "no topic" in cluster("set", "--topic", "Unknown", "--max-delay", "1d").err
    assert "aclEnable=true" in cluster("set", "--account", "web", "--max-pending-bytes", "1").err


def groups_are_changed_at_both_brokers(cluster: Cluster) -> None:
    for number in range(5):
        at = (cluster.first, cluster.second)[number % 2]
        cluster.send(at, f"g{number}", "3600000", "delayGroup", "spring" if number < 4 else "summer")
    assert cluster("groups", "Both").lines[-1] == "5 pending messages in groups"
    [counts] = cluster.json("groups", "Both")
    assert counts["groups"] == [
        {"group": "spring", "pending": 4, "paused": False}, {"group": "summer", "pending": 1, "paused": False}
    ]  # fmt: skip
    assert [row["group"] for row in cluster.json("list", "--topic", "Both", "--group", "spring")] == ["spring"] * 4
    assert cluster("count", "--topic", "Both", "--group", "spring").lines[-1] == "4 pending"
    assert cluster("pause", "--topic", "Both", "--group", "spring").out == (
        "group spring of topic Both is paused: 4 pending messages\n"
    )
    assert "4 messages made due now" in cluster("fire", "Both", "--group", "spring").out
    status = cluster("status").out
    assert "group spring of topic Both is paused since" in status
    wait_for(lambda: cluster("count", "--held", "--topic", "Both").lines[-1] == "4 pending")
    assert cluster("count", "--held", "--topic", "Both", "--group", "spring").lines[-1] == "4 pending"
    assert "4 messages moved, due at" in cluster("move", "Both", "--group", "spring", "--after", "1h").out
    assert cluster("resume", "--topic", "Both", "--group", "spring").out == (
        "group spring of topic Both is resumed: 4 pending messages\n"
    )
    assert sum(each["changed"] for each in cluster.json("cancel", "Both", "--group", "spring")) == 4
    assert cluster("cancel", "Both", "--group", "spring").out == "the messages had been cancelled before\n"
    assert cluster("pause", "--topic", "Both", "--http", cluster.second.environment["DELAYMQ_HTTP"]).code == 0
    assert cluster("resume", "--topic", "Both").code == 0
    assert cluster("cancel", "Both", "--group", "summer").out == "1 message cancelled\n"
    for wrong, reason in (
        (("pause", "--group", "g"), "--group needs --topic"),
        (("list", "--group", "g"), "--group needs --topic"),
        (("cancel", "Both", "--group", "g", "--key", "k"), "or give --group"),
        (("resume", "--topic", "Both", "--overdue", "drop"), "cannot be combined with --topic"),
    ):
        done = cluster(*wrong)
        assert (done.code, done.out) == (EXIT_USAGE, ""), wrong
        assert reason in done.err


def other_cluster_with_a_broker_of_the_same_name_is_not_changed(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Standalone(tmp_path / "other")
    with other.running():
        cluster.send(other, "elsewhere", "3600000", "delayKey", "order 2")
        cluster.send(cluster.first, "here", "3600000", "delayKey", "order 2")
        # As with DELAYMQ_HTTP of one cluster, and --namesrv of another.
        mixed = {**cluster.first.environment, "DELAYMQ_HTTP": other.environment["DELAYMQ_HTTP"]}
        done = called("delay", "cancel", "Both", "--key", "order 2", "--json", environment=mixed)
        assert (done.code, json.loads(done.out)["changed"]) == (0, 1)
        assert cluster("count", "--topic", "Both", "--key", "order 2").out.endswith("\n0 pending\n")
        there = called("delay", "count", "--topic", "Both", "--key", "order 2", environment=other.environment)
        assert there.out == "1 pending\n"


def pending(cluster: Cluster) -> tuple[PendingList, PendingCount]:
    """Ask both brokers with the client."""

    async def ask() -> tuple[PendingList, PendingCount]:
        async with Client(cluster.first.environment["DELAYMQ_NAMESRV"]) as client, Producer(client) as producer:
            return await producer.pending("Both"), await producer.count_pending("Both", tag="T1")

    return asyncio.run(ask())


def client_merges_both_brokers(cluster: Cluster, by_due: list[str]) -> None:
    listed, counted = pending(cluster)
    assert [each.message_id for each in listed.messages] == by_due
    assert [each.broker_name for each in listed.messages] == ["broker-b", "broker-a"] * 3
    assert (listed.total, listed.missing) == (6, ())
    assert (counted.messages, counted.missing) == (2, ())


def one_broker_is_missing(cluster: Cluster, by_due: list[str]) -> None:
    listed, counted = pending(cluster)
    assert [each.message_id for each in listed.messages] == by_due[1::2]
    assert listed.missing == counted.missing == ("broker-b",)
    done = cluster("list", "--topic", "Both", "--json")
    assert done.code == EXIT_UNREACHABLE
    assert [json.loads(line)["messageId"] for line in done.lines] == by_due[1::2]
    assert "incomplete: no answer from broker broker-b (127.0.0.1:" in done.err
    done = cluster("count")
    assert (done.code, done.out) == (EXIT_UNREACHABLE, "3 pending\n")
    for text in ("pause --topic Both", "resume --topic Both", "groups Both"):
        done = cluster(*text.split())
        assert done.code == EXIT_UNREACHABLE
        assert "no answer from broker broker-b" in done.err
    # Unknown at one broker is not unknown in the cluster.
    for words in (("cancel", "Both", "--key", "order 1"), ("show", "Both", "--key", "order 1")):
        done = cluster(*words)
        assert (done.code, done.out) == (EXIT_UNREACHABLE, "")
        assert "no answer from broker broker-b" in done.err
    alone = cluster("count", "--http", cluster.first.environment["DELAYMQ_HTTP"])
    assert (alone.code, alone.out) == (0, "3 pending\n")
    nobody = cluster("count", "--namesrv", "127.0.0.1:1")
    assert nobody.code == EXIT_UNREACHABLE
    assert "To ask one broker without a NameServer, use --http." in nobody.err
