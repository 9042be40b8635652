"""The kernel stores signed sends only as far as rules permit them, with the effects of single requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delaymq.access.accounts import MAX_KNOWN_TOPICS, Entry, prepare
from delaymq.api_types.delay_settings import AccountDelaySettings
from delaymq.broker.quotas.names import LOOP
from delaymq.message import names
from delaymq.server.requests.client_session import ClientSession
from delaymq.store.reader import StoreReader
from delaymq_testing.broker.guarded import rewrite_rules
from delaymq_testing.broker.plain_sends.lanes import World, answers, counted, fixed, is_sound, pieces
from delaymq_testing.broker.plain_sends.sends import (
    end_frame,
    half_fields_of,
    java_frame,
    random_body,
    random_frame,
    send_fields_of,
)
from delaymq_testing.broker.plain_sends.signing import Keys, signed
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.transport.memory_transport import run

pytestmark = NEEDS_KERNELS
SHARE = 10
"""Frames of the streams are one in this number of FUZZ_INPUTS."""
PRODUCERS = Keys("producers", "producers-secret")
OPERATORS = Keys("operators", "operators-secret")
CHANGED = Keys("producers", "changed-secret")
RULES = "defaultTopicPerm: PUB, topicPerms: [Bills=PUB|SUB]"
OTHER_RULES: dict[str, str] = {
    "without a permission": "defaultTopicPerm: PUB, topicPerms: [Orders=SUB]",
    "without any permission": "defaultTopicPerm: DENY",
    "with quotas": f"{RULES}, quotas: {{connections: 100, sendRequestsPerSecond: 100000, eventLoopPercent: 50}}",
    "with other quotas": f"{RULES}, quotas: {{requestsPerSecond: 100000, sendBytesPerSecond: 1000000000}}",
    "with another secret": f"{RULES}, secretKey: changed-secret",
    "with a second signature": f"{RULES}, requireSecondSignature: true",
    "with an admitted address": f"{RULES}, whiteRemoteAddress: 10.0.0.2",
    "deleted": "",
}


def rules_of(text: str, white_list: str = "") -> str:
    """A file of rules; `text` are those of the producers' account, without which it does not exist."""
    secret = "" if "secretKey" in text else "secretKey: producers-secret, "
    account = f"- {{accessKey: producers, {secret}{text}}}\n" if text else ""
    return (
        f"globalWhiteRemoteAddresses: [{white_list}]\n"
        "accounts:\n- {accessKey: operators, secretKey: operators-secret, admin: true}\n" + account
    )


class Guarded:
    """A server without sockets that has access control."""

    def __init__(self, path: Path, *, has_lane: bool = True, **changes: Any) -> None:
        self._rules = path / "plain_acl.yml"
        path.mkdir(exist_ok=True)
        self._rules.write_text(rules_of(RULES))
        settings = {"acl_enable": True, "acl_config_path": str(self._rules)}
        self.world = World(path, has_lane=has_lane, **settings | changes)
        self.broker = self.world.broker
        assert self.broker.access is not None
        self.broker.access.usages.clock = lambda: self.broker.now_ms() / 1_000
        self._read = 0

    def reload(self, text: str, white_list: str = "") -> None:
        assert self.broker.access is not None
        rewrite_rules(self.broker.access.rules, self._rules, rules_of(text, white_list))

    async def codes(self, *frames: bytes) -> list[int]:
        """Return the codes of the responses to requests that arrive together."""
        await self.world.receive(b"".join(frames))
        written = bytes(self.world.producer.written)
        found = [each.code for each in answers(written[self._read :])]
        self._read = len(written)
        return found

    def outcome(self) -> dict[str, object]:
        access, session = self.broker.access, self.world.connection.session
        assert access is not None
        usages = {
            key: (each.requests, each.sends, each.send_bytes, each.refused, each.counts, each.loop_s > 0, each.delays)
            for key, each in access.usages.by_account.items()
        }
        partitions = self.broker.delivery.timeline.partitions
        pending = {key: partitions.of_account(key) for key in ("producers", "operators", "")}
        signer = getattr(session, "signer", None)
        balances = {
            (key, quota): bucket._balance
            for key, each in access.usages.by_account.items()
            for quota, bucket in each._buckets.items()
            if quota != LOOP
        }
        return self.world.outcome() | {
            "usages": usages,
            "balances": balances,
            "rejections": access.refused,
            "pending by account": pending,
            "signer": (signer, self.world.connection.share),
        }


def change(guarded: Guarded, kind: int) -> None:
    """Change rules, or change them back."""
    texts = [*OTHER_RULES.values()]
    broker: Any = guarded.broker
    if kind < len(texts):
        guarded.reload(texts[kind])
    elif kind == len(texts):
        guarded.reload(RULES, white_list="10.0.0.2")
    else:
        broker.delivery.limits.settings.accounts["producers"] = AccountDelaySettings(max_pending_messages=10)


def change_back(guarded: Guarded) -> None:
    broker: Any = guarded.broker
    broker.delivery.limits.settings.accounts.pop("producers", None)
    guarded.reload(RULES)


class Halves:
    """Half messages that the producers may end, found by the opaques of their requests."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int, str]] = []
        self._requests: set[int] = set()

    def request(self, opaque: int) -> int:
        self._requests.add(opaque)
        return opaque

    def one(self, chance: Random) -> tuple[int, int, str]:
        """Return a half message, most of them only once."""
        at = chance.randrange(len(self.places))
        return self.places[at] if chance.random() < 0.2 else self.places.pop(at)

    def read(self, written: bytes) -> None:
        for answer in answers(written):
            if answer.opaque in self._requests and "msgId" in answer.fields:
                place = int(answer.fields["msgId"][16:32], 16)
                self.places.append((int(answer.fields["queueOffset"]), place, "producers"))


def frames(chance: Random, halves: Halves, count: int, unusual: float) -> list[bytes]:
    """Frames of sends, half messages and ends, most of them signed by the producers."""
    made = []
    for _ in range(count):
        keys = PRODUCERS if chance.random() >= unusual else chance.choice([OPERATORS, CHANGED, None])
        opaque, kind = chance.randrange(2**31), chance.randrange(5)
        if kind < 3:
            made.append(random_frame(chance, opaque, unusual, keys))
        elif kind == 3 or not halves.places:
            body = random_body(chance)
            fields = signed(chance, half_fields_of(chance, unusual=unusual), body, keys, unusual)
            made.append(java_frame(fields, halves.request(opaque), body))
        else:
            made.append(end_frame(chance, opaque, halves.one(chance), unusual, keys))
    return [frame for frame in made if is_sound(frame)]


@pytest.mark.parametrize("metadata", ["all", "own"])
def test_signed_streams_have_the_effects_of_single_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str
) -> None:
    counting = counted(monkeypatch, 1_000.0)
    chance = Random(f"{SEED} {metadata}")

    async def scenario() -> None:
        with fixed(monkeypatch) as now:
            both = [Guarded(tmp_path / str(has), has_lane=has, acl_metadata=metadata) for has in (True, False)]
            halves, read = Halves(), 0
            for round_number in range(FUZZ_INPUTS // SHARE // 20):
                is_changed = round_number % 4 == 3
                kind = chance.randrange(len(OTHER_RULES) + 2)
                for guarded in both if is_changed else ():
                    change(guarded, kind)
                stream = b"".join(frames(chance, halves, 20, chance.choice([0, 0, 0.02, 0.2])))
                for piece in pieces(stream, chance):
                    is_open = [await guarded.world.receive(piece) for guarded in both]
                    now.advance(chance.choice([0, 0, 1]))
                    assert is_open[0] == is_open[1]
                    if not is_open[0]:
                        read = 0
                        break
                for guarded in both if is_changed else ():
                    change_back(guarded)
                written = [bytes(guarded.world.producer.written) for guarded in both]
                assert written[0] == written[1]
                halves.read(written[0][read:])
                read = len(written[0])
                handed = [guarded.broker.hand_over(now(), 64) for guarded in both]
                assert handed[0] == handed[1]
            outcomes = [guarded.outcome() for guarded in both]
            for part in outcomes[0]:
                assert outcomes[0][part] == outcomes[1][part], part
            assert counting.encoded > outcomes[0]["messages"][0] / 20  # type: ignore[index]
            assert min(counting.delayed, counting.timed, counting.halves, counting.ended) > 0
            files = [guarded.world.closed_files() for guarded in both]
            assert files[0] == files[1]

    run(scenario)


@pytest.mark.parametrize("metadata", ["all", "own"])
@pytest.mark.parametrize("waits_for", ["replicas", "disk"])
def test_ends_of_unconfirmed_half_messages_have_the_effects_of_single_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_for: str, metadata: str
) -> None:
    changes = {"acl_metadata": metadata} | ({"flush_disk_type": "SYNC_FLUSH"} if waits_for == "disk" else {})
    body = b"body"

    async def scenario() -> None:
        with fixed(monkeypatch):
            both = [Guarded(tmp_path / str(has), has_lane=has, **changes) for has in (True, False)]
            for guarded in both:
                chance = Random(1)
                half = half_fields_of(chance, ("Orders",), 0) | {"i": "TRAN_MSG\x01true\x02PGROUP\x01producers"}
                sent = java_frame(signed(chance, half, body, PRODUCERS, 0), 1, body)
                store, places = guarded.broker.store, []
                for round_number in range(3):
                    if waits_for == "replicas" and round_number == 1:
                        guarded.world.wait_for_replicas()
                    guarded.world.producer.receive(sent)
                    places.append((round_number, store.last_offset, "producers"))
                    if round_number < 2 and (task := store.flush_task()) is not None:
                        task.run()
                        task.finish()
                for place in places[1:]:
                    for keys in (OPERATORS, PRODUCERS):
                        guarded.world.producer.receive(end_frame(chance, 2, place, 0, keys))
            outcomes = [guarded.outcome() for guarded in both]
            for part in outcomes[0]:
                assert outcomes[0][part] == outcomes[1][part], part
            totals = both[0].broker.transactions.totals()
            assert totals.pending == (2 if waits_for == "disk" else 1)
            for guarded in both:
                guarded.world.closed_files()

    run(scenario)


def test_sends_of_admitted_addresses_with_a_certificate_belong_to_its_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(lane: Lane) -> None:
        access, session = lane.guarded.broker.access, lane.guarded.world.connection.session
        assert access is not None
        assert isinstance(session, ClientSession)
        lane.guarded.reload(RULES, white_list="10.0.0.2")
        assert await lane.takes(send(2, None))
        session._certificate_name = "producers"
        assert await lane.takes(send(3, None))
        access._certificate_accounts = True
        assert not await lane.takes(send(4, None, i="DELAY\x011"))
        assert lane.guarded.broker.delivery.timeline.partitions.of_account("producers").messages == 1

    run_lane(tmp_path, monkeypatch, test)


def send(number: int = 1, keys: Keys | None = PRODUCERS, body: bytes = b"body", **fields: str) -> bytes:
    usual = send_fields_of(Random(number), ("Orders",), 0)
    usual |= {"e": "0", "i": f"UNIQ_KEY\x01{number}"}
    return java_frame(signed(Random(1), {**usual, **fields}, body, keys, 0), number, body)


class Lane:
    """A server whose kernel takes the producers' sends to Orders and Bills, until something changes."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self.counting = counted(monkeypatch)
        self.guarded = Guarded(path, **changes)
        assert self.guarded.broker.access is not None
        self.guarded.broker.access.usages.clock = lambda: 0.0

    async def open(self) -> None:
        for queue_id in ("0", "1", "2", "3"):
            assert await self.guarded.codes(send(e=queue_id), send(b="Bills", e=queue_id)) == [0, 0]
        assert await self.takes(send())

    async def takes(self, *frames: bytes, code: int = 0) -> bool:
        """Return whether the kernel stores all of the sends; none otherwise."""
        before = self.counting.encoded
        assert await self.guarded.codes(*frames) == [code] * len(frames)
        taken = self.counting.encoded - before
        assert taken in (0, len(frames))
        return taken > 0


LaneTest = Callable[[Lane], Any]


def run_lane(path: Path, monkeypatch: pytest.MonkeyPatch, test: LaneTest, **changes: Any) -> None:
    async def scenario() -> None:
        lane = Lane(path, monkeypatch, **changes)
        await lane.open()
        await test(lane)
        lane.guarded.world.closed_files()

    run(scenario)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("without a permission", 1),
        ("without any permission", 1),
        ("with another secret", 1),
        ("with a second signature", 1),
        ("with an admitted address", 0),
        ("deleted", 1),
    ],
)
def test_sends_under_changed_rules_are_left_to_their_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    async def test(lane: Lane) -> None:
        lane.guarded.reload(OTHER_RULES[state])
        assert not await lane.takes(send(2), send(3), code=code)
        lane.guarded.reload(RULES)
        assert not await lane.takes(send(4))
        assert await lane.takes(send(5))

    run_lane(tmp_path, monkeypatch, test)


@pytest.mark.parametrize(
    "frame",
    [
        send(keys=None),
        send(keys=Keys("producers", "wrong-secret")),
        send(keys=Keys("nobodys", "producers-secret")),
        send()[:-1] + b"x",
        send().replace(b'"e":"0"', b'"e":"1"'),
        send(b="%RETRY%readers"),
    ],
    ids=["unsigned", "another secret", "another key", "another body", "another field", "another group's topic"],
)
def test_rejected_sends_are_rejected_by_their_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    async def test(lane: Lane) -> None:
        end = lane.guarded.broker.store.end_offset
        assert not await lane.takes(frame, code=1)
        assert lane.guarded.broker.store.end_offset == end
        assert await lane.takes(send(2))

    run_lane(tmp_path, monkeypatch, test)


def test_sends_that_may_exceed_a_quota_are_left_to_their_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(lane: Lane) -> None:
        access = lane.guarded.broker.access
        assert access is not None
        lane.guarded.reload(f"{RULES}, quotas: {{sendBytesPerSecond: 2000}}")
        assert not await lane.takes(send(2))
        assert not await lane.takes(*[send(3)] * 8)
        assert await lane.takes(send(7))
        lane.guarded.reload(f"{RULES}, quotas: {{sendRequestsPerSecond: 20}}")
        assert not await lane.takes(send(8))
        assert await lane.takes(send(9))
        assert not await lane.takes(*[send(10)] * 8)
        assert await lane.takes(send(11))
        assert not await lane.takes(*[send(12)] * 9)
        usage = access.usages.by_account["producers"]
        assert usage._buckets["sendRequestsPerSecond"]._balance == 0
        assert usage.delays == {}
        assert not await lane.takes(send(13))
        assert usage.delays == {"sendRequestsPerSecond": 1}

    run_lane(tmp_path, monkeypatch, test)


def test_former_secret_is_left_to_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(lane: Lane) -> None:
        lane.guarded.reload(f"{RULES}, secretKey: changed-secret, formerSecretKey: producers-secret")
        assert not await lane.takes(send(2))
        assert not await lane.takes(send(3))
        assert await lane.takes(send(4, CHANGED))

    run_lane(tmp_path, monkeypatch, test)


def test_accounts_on_one_connection_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(lane: Lane) -> None:
        assert not await lane.takes(send(2, OPERATORS))
        assert await lane.takes(send(3, OPERATORS))
        assert not await lane.takes(send(4))
        assert await lane.takes(send(5))
        access = lane.guarded.broker.access
        assert access is not None
        sends = {key: (each.sends, each.requests) for key, each in access.usages.by_account.items()}
        assert sends == {"operators": (2, 2), "producers": (11, 11)}

    run_lane(tmp_path, monkeypatch, test)


def test_unsigned_sends_of_an_admitted_address_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(lane: Lane) -> None:
        lane.guarded.reload(RULES, white_list="10.0.0.2")
        assert await lane.takes(send(2, None))
        assert not await lane.takes(send(3))
        lane.guarded.reload(RULES, white_list="10.0.0.3")
        assert not await lane.takes(send(4, None), code=1)

    run_lane(tmp_path, monkeypatch, test)


@pytest.mark.parametrize("metadata", ["all", "own"])
def test_unusual_default_topic_is_left_to_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metadata: str
) -> None:
    async def test(lane: Lane) -> None:
        lane.guarded.reload("defaultTopicPerm: DENY, topicPerms: [Orders=PUB]")
        await lane.guarded.codes(send(2))
        assert await lane.takes(send(3))
        assert not await lane.takes(send(4, c="Bills"), code=1 if metadata == "own" else 0)

    run_lane(tmp_path, monkeypatch, test, acl_metadata=metadata)


@pytest.mark.parametrize("request_text", ["DELAY\x011", "TIMER_DELAY_SEC\x01100"])
def test_delayed_messages_state_their_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_text: str
) -> None:
    async def test(lane: Lane) -> None:
        broker: Any = lane.guarded.broker
        assert not await lane.takes(send(2, i=request_text))
        assert await lane.takes(send(3, i=request_text), send(4, i=request_text))
        partitions = broker.delivery.timeline.partitions
        assert partitions.of_account("producers").messages == 3
        broker.delivery.limits.settings.accounts["producers"] = AccountDelaySettings(max_pending_messages=4)
        assert not await lane.takes(send(5, i=request_text))
        assert not await lane.takes(send(6, i=request_text), code=13)
        del broker.delivery.limits.settings.accounts["producers"]
        assert await lane.takes(send(7, i=request_text))
        records = list(StoreReader(broker.config.store_path).records())
        stated = [each.properties.get(names.ACCOUNT) for each in records if names.REAL_TOPIC in each.properties]
        assert stated == ["producers"] * 5

    run_lane(tmp_path, monkeypatch, test)


def test_number_of_topics_that_an_account_remembers_is_limited() -> None:
    account = prepare(Entry(access_key="producers", secret_key="producers-secret"))
    for number in range(MAX_KNOWN_TOPICS + 1):
        account.permitted_send(f"topic-{number}")
    assert account.sends == {f"topic-{MAX_KNOWN_TOPICS}"}
    for topic in ("x" * 128, "%RETRY%readers"):
        account.permitted_send(topic)
    assert len(account.sends) == 1
