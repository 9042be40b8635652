"""Searches over several brokers: all are queried, and unavailable ones are named."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from delaymq.cli.errors import EXIT_UNREACHABLE, CommandError
from delaymq.cli.target import every_broker
from delaymq.cli.target.contexts import Target
from delaymq.cli.views import pending
from delaymq.cli.views.message_lookup import Unreachable, find_by_unique_id
from delaymq.cli.views.pending import pending_counts
from delaymq.client import Admin, UnreachableError
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Response
from delaymq_testing.client.fake_peer import FakeBroker, run, running

WHERE = Target(namesrv="", http="http://here:1", token="s3cret", context="")


def broker(name: str, *bodies: bytes) -> FakeBroker:
    made = FakeBroker(name)
    for body in bodies:
        made.add("T", body, KEYS="k")
    found = Response(body=b"".join(made.records))
    made.scripts[RequestCode.QUERY_MESSAGE] = lambda _: found
    made.scripts[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda _: Response(fields={"offset": "0"})
    return made


def test_search_names_an_unavailable_broker_and_searches_the_others() -> None:
    async def scenario() -> None:
        brokers = broker("a", b"1"), broker("b", b"2"), broker("c", b"3")
        async with running(*brokers, queues=1) as (client, _):
            await brokers[1].stop()
            admin = Admin(client)
            for search in (admin.query_by_key("T", "k"), admin.query_by_time("T", 0, 1 << 41)):
                with pytest.raises(UnreachableError):
                    await search
            missing: list[str] = []
            found = await admin.query_by_key("T", "k", on_unreachable=lambda name, _: missing.append(name))
            found += await admin.query_by_time("T", 0, 1 << 41, on_unreachable=lambda name, _: missing.append(name))
            assert sorted(each.body for each in found) == [b"1", b"1", b"3", b"3"]
            assert missing == ["b", "b"]

    run(scenario)


def test_id_is_not_reported_missing_while_a_broker_is_unavailable() -> None:
    async def scenario() -> None:
        brokers = broker("a", b"1"), broker("b")
        async with running(*brokers) as (client, name_server):
            name_server.topics["SCHEDULE_TOPIC_XXXX"] = 1
            await brokers[1].stop()
            unreachable = Unreachable()
            assert [each.body for each in await find_by_unique_id(client, "T", "ID0", unreachable)] == [b"1"]
            assert "not searched because unreachable: b (no response from 127.0.0.1:" in str(unreachable)
            with pytest.raises(CommandError, match="unreachable: b ") as caught:
                await find_by_unique_id(client, "T", "ID9", Unreachable())
            assert caught.value.exit_code == EXIT_UNREACHABLE

    run(scenario)


class Counts:
    """Stands for HttpApi: names and counts of brokers by address; keeps who was shown the token."""

    brokers: ClassVar[dict[str, tuple[str, int]]] = {}
    shown_to: ClassVar[list[str]] = []
    addresses: ClassVar[dict[str, str]] = {}

    def __init__(self, where: Target, *, timeout_s: float) -> None:
        self.url = where.http
        if where.token:
            self.shown_to.append(self.url)

    def get(self, path: str, **parameters: object) -> dict[str, object]:
        if self.url not in self.brokers:
            raise CommandError(f"no broker at {self.url}", EXIT_UNREACHABLE)
        name, total = self.brokers[self.url]
        return {"brokerName": name, "address": self.addresses.get(name)} if path == "broker" else {"total": total}


def test_pending_messages_are_counted_at_every_broker_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pending, every_broker):
        monkeypatch.setattr(module, "HttpApi", Counts)
    Counts.brokers = {
        "http://here:1": ("a", 2), "http://127.0.0.1:8082": ("b", 1), "http://127.0.0.1:8083": ("other", 9),
    }  # fmt: skip
    Counts.shown_to = []

    async def scenario() -> None:
        settings = {
            "a": "httpPort=8081", "b": "httpHost=0.0.0.0\nhttpPort=8082", "c": "httpHost=127.0.0.1\nhttpPort=8083",
            "d": "httpHost=10.0.0.4\nhttpPort=8084", "e": "httpPort=0", "f": "brokerName=f", "g": "",
        }  # fmt: skip
        brokers = [FakeBroker(name) for name in settings]
        for each in brokers:
            each.settings = settings[each.name] + "\n"
        async with running(*brokers) as (client, _):
            Counts.addresses = {each.name: each.address for each in brokers}
            await brokers[-1].stop()
            told = await pending_counts(client, WHERE, "T")
        assert told[0].startswith("2 pending delayed messages at http://here:1: ")
        assert told[1].startswith("1 pending delayed message at http://127.0.0.1:8082: ")
        assert [line.partition(" (")[0] for line in told[2:]] == [
            f"cannot count delayed messages at broker {name}" for name in ("c", "d", "e", "g")
        ]
        reasons = (
            "reaches another broker",
            "no broker at http://10.0.0.4:8084",
            "HTTP API is disabled",
            "no response from",
        )
        assert all(reason in line for line, reason in zip(told[2:], reasons, strict=True))

    run(scenario)
    assert set(Counts.shown_to) == {"http://here:1"}


def test_search_queries_a_bounded_number_of_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pending, every_broker):
        monkeypatch.setattr(module, "HttpApi", Counts)
    monkeypatch.setattr(pending, "MAX_BROKERS", 2)
    Counts.brokers = {}

    async def scenario() -> None:
        brokers = [FakeBroker(name) for name in "abc"]
        async with running(*brokers) as (client, _):
            assert await pending_counts(client, replace(WHERE, token=""), "T") == [
                "delayed messages at 1 more broker are not counted"
            ]
        assert [len(each.asked(RequestCode.GET_BROKER_CONFIG)) for each in brokers] == [1, 1, 0]

    run(scenario)
