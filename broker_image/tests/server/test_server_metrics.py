"""/metrics: read by Prometheus' own parser, named by its conventions, with bounded cardinality."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from delaymq.broker.delivery.level_entries import UNKNOWN_TOPIC
from delaymq.broker.statistics.metric_labels import OTHER, LabelLimiter
from delaymq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.store.disk.files import disk_space
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone, until
from prometheus_client.parser import text_string_to_metric_families

TOPICS = 10_000
MAX_SERIES = 200 * (3 + 5 + 16) + 200 * 3 + 1_200
"""Of 200 topics: three sums, five counts by due time, a histogram of 14 buckets, count and sum; of 200 groups three
numbers; and the rest."""
_BASE_UNITS = re.compile(r"_(milliseconds|ms|kilobytes|kb|minutes|percent)(_|$)")


async def scrape(port: int | None) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{port}/metrics") as answer:
        assert answer.status == 200
        assert answer.content_type == "text/plain"
        return await answer.text()


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} stands there twice"
            found[key] = sample.value
    return found


def test_names_and_help_follow_prometheus_conventions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, message_delay_level="1s 1h") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T", DELAY="1")
            await peer.pull("T", 0)
            families = list(text_string_to_metric_families(await scrape(server.broker.http_port)))
            assert len({family.name for family in families}) == len(families) > 40
            for family in families:
                assert re.fullmatch(r"(delaymq|process)_[a-z0-9_]+", family.name)
                assert family.documentation.endswith(".")
                assert family.type in ("counter", "gauge", "histogram")
                assert not _BASE_UNITS.search(family.name)
                assert not re.search(r"_(counter|gauge|histogram|count|sum|bucket|total)$", family.name)
                for sample in family.samples:
                    assert sample.name.endswith("_total") is (family.type == "counter")
                    assert re.fullmatch(r"[a-z_]+", "".join(sample.labels) or "x")

    run(scenario)


def test_received_delivered_and_rejected_messages_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(
            tmp_path,
            http=True,
            message_delay_level="1s 1h",
            max_message_size=2_000,
            reject_transaction_message=True,
        ) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            before = values(await scrape(server.broker.http_port))
            await peer.send("T")
            await peer.send("T", DELAY="1")
            await peer.send("T", DELAY="2")
            assert (await peer.send("T", b"x" * 3_000)).code == 13
            assert (await peer.send("T", b"x", TRAN_MSG="true")).code == 16
            assert (await peer.pull("T", 0)).code == 0
            assert (await peer.pull("T", 1)).code == 0
            after = values(await scrape(server.broker.http_port))

            def grown(name: str, **labels: str) -> float:
                key = name, tuple(sorted(labels.items()))
                return after[key] - before.get(key, 0)

            assert grown("delaymq_messages_sent_total") == 3
            assert grown("delaymq_messages_stored_total", topic="T") == 3
            assert grown("delaymq_messages_delivered_total", topic="T") == 1
            assert grown("delaymq_topic_delay_pending", topic="T") == 1
            assert grown("delaymq_topic_delay_lateness_seconds_count", topic="T") == 1
            assert grown("delaymq_delay_lateness_seconds_count", level="1") == 1
            assert grown("delaymq_sends_refused_total", reason="message_illegal") == 1
            assert grown("delaymq_sends_refused_total", reason="no_permission") == 1
            assert grown("delaymq_pulls_total", result="found") == 2
            assert grown("delaymq_messages_pulled_total") == 2
            assert grown("delaymq_stored_bytes_total") > grown("delaymq_pulled_bytes_total") * 0.9 > 0
            assert grown("process_cpu_seconds_total") > 0
            assert after[("process_resident_memory_bytes", ())] > after[("delaymq_anonymous_memory_bytes", ())] > 1e6
            assert after[("process_open_fds", ())] > 5
            assert after[("delaymq_disk_free_bytes", ())] > 0
            assert after[("delaymq_delay_held", (("mode", "paused"),))] == 0

    run(scenario)


def test_disk_usage_is_measured_consistently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Much of it is reserved for root: 30 % are used of what others may use, and 28 % of the whole is free.
    blocks, free, available = 1_000_000, 880_000, 280_000
    seen = os.statvfs_result((4096, 4096, blocks, free, available, 1, 1, 1, 0, 255))

    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            monkeypatch.setattr(os, "statvfs", lambda path: seen)
            port = server.broker.http_port
            samples = values(await scrape(port))
            async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{port}/api/v1/totals") as answer:
                disk = (await answer.json())["disk"]
            ratio = disk_space(str(tmp_path)).used_ratio
            assert ratio == pytest.approx(0.3)
            assert disk["usedRatio"] == pytest.approx(ratio)
            assert samples[("delaymq_disk_free_bytes", ())] == disk["freeBytes"] == available * 4096
            size = samples[("delaymq_disk_size_bytes", ())]
            assert 1 - disk["freeBytes"] / size == pytest.approx(ratio)

    run(scenario)


def test_ten_thousand_topics_and_groups_have_a_bounded_number_of_series(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            broker = server.broker.broker
            partitions = broker.delivery.timeline.partitions
            for number in range(TOPICS):
                name = f"T{number}"
                broker.topics.table[name] = TopicConfig(name, 8, 8, 6)
                broker.stats.put(name, 1)
                broker.delivery.counters.delivered[name] = 1
                broker.delivery.topic_lateness.add(name, number)
                partitions.count(partitions.number(name, level=1), 0, 1, 100)
                broker.groups.table[f"G{number}"] = SubscriptionGroupConfig(f"G{number}")
                broker.offsets.table[f"{name}@G{number}"] = dict.fromkeys(range(8), 0)
            slices = await _turns_during(scrape(server.broker.http_port))
            # The walks yield: a scrape that blocked the loop would leave it only a few iterations.
            assert slices > 20
            text = await scrape(server.broker.http_port)
            found = values(text)
            assert len(found) <= MAX_SERIES
            assert len(text) < 1_000_000
            for name in ("delaymq_messages_stored_total", "delaymq_topic_delay_pending"):
                rows = {labels[0][1]: value for (each, labels), value in found.items() if each == name}
                assert len(rows) == 201
                assert rows[OTHER] == TOPICS - 200
                assert sum(rows.values()) == TOPICS
            buckets = [
                value
                for (each, labels), value in found.items()
                if each == "delaymq_topic_delay_lateness_seconds_bucket" and ("le", "+Inf") in labels
            ]
            assert sum(buckets) == TOPICS
            groups = {labels for each, labels in found if each == "delaymq_group_lag_messages"}
            assert len(groups) == 200
            # A name keeps its series even when busier names come.
            kept = {labels for each, labels in found if each == "delaymq_messages_stored_total"}
            broker.stats.put_batch("A-new-one", 10**4, 10**4)
            again = values(await scrape(server.broker.http_port))
            assert {labels for each, labels in again if each == "delaymq_messages_stored_total"} == kept

    run(scenario)


async def _turns_during(scraping: Any) -> int:
    """How many turns of the loop others got meanwhile."""
    task = asyncio.ensure_future(scraping)
    slices = 0
    while not task.done():
        await asyncio.sleep(0)
        slices += 1
    await task
    return slices


def test_changed_limit_applies_immediately(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, metrics_max_topics=2) as server:
            import dataclasses

            peer = await BrokerPeer.connect(server.broker.port)
            broker = server.broker.broker
            for topic in ("A", "B", "C"):
                await peer.send(topic)

            async def topics() -> set[str]:
                found = values(await scrape(server.broker.http_port))
                return {labels[0][1] for name, labels in found if name == "delaymq_messages_stored_total"}

            assert await topics() == {"A", "B", OTHER}
            for limit, expected in ((3, {"A", "B", "C"}), (1, {"A", OTHER}), (0, {OTHER})):
                broker.apply(dataclasses.replace(broker.config, metrics_max_topics=limit))
                assert await topics() == expected

    run(scenario)


def _named(text: str, name: str, label: str = "topic") -> dict[str, float]:
    return {dict(labels)[label]: value for (each, labels), value in values(text).items() if each == name}


async def _delete_topic(peer: BrokerPeer, topic: str) -> None:
    answer = await peer.connection.request(request_command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))
    assert answer.code == 0, answer.remark


def test_series_of_a_topic_end_with_its_deletion_and_free_capacity(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, metrics_max_topics=2, message_delay_level="1s 1h") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            port, broker = server.broker.http_port, server.broker.broker
            for topic in ("A", "B", "C"):
                await peer.send(topic)
                await peer.send(topic, DELAY="1")
            await until(lambda: broker.stats.copies == 3)
            text = await scrape(port)
            for name in ("messages_stored_total", "messages_delivered_total", "topic_delay_lateness_seconds_count"):
                assert sorted(_named(text, f"delaymq_{name}")) == [OTHER, "A", "B"]
            await _delete_topic(peer, "A")
            text = await scrape(port)
            assert 'topic="A"' not in text
            assert sorted(_named(text, "delaymq_messages_stored_total")) == [OTHER, "B"]
            # What shares a name stays there, so that its sum never goes back; a new topic takes the room.
            await peer.send("D")
            stored = {"B": 2, "D": 1, OTHER: 2}
            assert _named(await scrape(port), "delaymq_messages_stored_total") == stored
            await _delete_topic(peer, "C")
            text = await scrape(port)
            assert _named(text, "delaymq_messages_stored_total") == stored
            assert _named(text, "delaymq_messages_delivered_total") == {"B": 1, OTHER: 1}
            assert _named(text, "delaymq_topic_delay_lateness_seconds_count") == {"B": 1, OTHER: 1}
            # A topic of that name is another one.
            await _delete_topic(peer, "B")
            await peer.send("A")
            assert _named(await scrape(port), "delaymq_messages_stored_total") == {"A": 1, "D": 1, OTHER: 2}
            assert sum(broker.delivery.counters.delivered.values()) < broker.stats.copies == 3

    run(scenario)


def test_many_short_lived_topics_leave_no_series(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, metrics_max_topics=2) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            broker = server.broker.broker
            for number in range(20):
                await peer.send(f"T{number}")
                assert f'topic="T{number}"' in await scrape(server.broker.http_port)
                await _delete_topic(peer, f"T{number}")
            assert len(broker.topic_series) == 0
            assert 'topic="' not in await scrape(server.broker.http_port)

    run(scenario)


def test_deleted_topic_with_pending_messages_is_exported_until_none_remain(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, message_delay_level="1h") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            broker = server.broker.broker
            await peer.send("T", DELAY="1")
            await _delete_topic(peer, "T")
            assert _named(await scrape(server.broker.http_port), "delaymq_topic_delay_pending") == {"T": 1}
            broker.delivery.timeline.settle([each[2] for each in broker.delivery.timeline.take(1 << 60, 9)])
            assert 'topic="T"' not in await scrape(server.broker.http_port)
            assert len(broker.topic_series) == 0

    run(scenario)


def test_deleted_group_frees_its_series(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, metrics_max_topics=1) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")

            async def commit(group: str) -> None:
                server.broker.broker.groups.find(group)
                fields = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "0"}
                await peer.connection.request(request_command(RequestCode.UPDATE_CONSUMER_OFFSET, fields))

            await commit("G1")
            port = server.broker.http_port
            assert _named(await scrape(port), "delaymq_group_lag_messages", "group") == {"G1": 1}
            fields = {"groupName": "G1", "removeOffset": "true"}
            await peer.connection.request(request_command(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields))
            await commit("G2")
            assert _named(await scrape(port), "delaymq_group_lag_messages", "group") == {"G2": 1}

    run(scenario)


def test_names_get_series_in_order_of_activity_and_keep_them() -> None:
    names = LabelLimiter(2)
    assert [names.label(each) for each in ("a", "b", "c", "a", "c")] == ["a", "b", OTHER, "a", OTHER]
    names.set_limit(1)
    assert [names.label(each) for each in ("a", "b")] == ["a", OTHER]


def test_name_sharing_a_series_keeps_sharing_it() -> None:
    names = LabelLimiter(1)
    assert [names.label(each) for each in ("a", "b", "c", OTHER)] == ["a", OTHER, OTHER, OTHER]
    assert (names.forget("a"), names.forget("b"), names.forget("b"), names.names()) == (False, True, False, [])
    assert [names.label(each) for each in ("c", "b", "d")] == [OTHER, "b", OTHER]
    names.set_limit(2)
    assert [names.label(each) for each in ("c", "d")] == ["c", OTHER]


def test_pending_messages_by_topic_are_omitted_while_topics_are_unknown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, message_delay_level="1h") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T", DELAY="1")
        async with standalone(tmp_path, message_delay_level="1h", http=True) as server:
            found = values(await scrape(server.broker.http_port))
            assert found[("delaymq_topic_delay_pending", (("topic", "T"),))] == 1
            partitions = server.broker.broker.delivery.timeline.partitions
            partitions.count(partitions.number(UNKNOWN_TOPIC, level=1), 0, 1, 100)
            found = values(await scrape(server.broker.http_port))
            assert ("delaymq_topic_delay_pending", (("topic", "T"),)) not in found
            assert found[("delaymq_delay_pending", (("level", "1"),))] == 2

    run(scenario)


def test_offsets_under_invalid_group_names_get_no_series(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, metrics_max_topics=2) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            for group in ("<made-up>", "DELETED-BEFORE", "G"):
                fields = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "0"}
                await peer.connection.request(request_command(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
            server.broker.broker.groups.find("G")
            found = values(await scrape(server.broker.http_port))
            lag = {
                labels[0][1]: value for (name, labels), value in found.items() if name == "delaymq_group_lag_messages"
            }
            assert lag == {"G": 1}

    run(scenario)


def test_invalid_utf8_name_in_the_log_breaks_no_response(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, message_delay_level="1h") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T-XX", DELAY="1")
        # As another program, or a damaged disk, may have left it; the checksum covers the body only.
        # The next one may be there already.
        segment = min((tmp_path / "store/commitlog").iterdir())
        with segment.open("r+b") as log:
            data = log.read(1 << 16)
            log.seek(data.index(b"REAL_TOPIC\x01T-XX") + len(b"REAL_TOPIC\x01T-"))
            log.write(b"\xff\xfe")
        (tmp_path / "store/delaymq/snapshot.json").unlink()
        async with standalone(tmp_path, message_delay_level="1h", http=True) as server:
            found = values(await scrape(server.broker.http_port))
            assert found[("delaymq_topic_delay_pending", (("topic", "T-\ufffd\ufffd"),))] == 1

    run(scenario)
