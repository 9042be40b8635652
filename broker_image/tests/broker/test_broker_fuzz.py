"""Fuzzed frames, fields and bodies: the broker has an intended response to each."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.processors.table import PROCESSORS, PROCESSORS_OF_ACCESS
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, encode_response
from delaymq.protocol.signatures import Signer
from delaymq_testing.broker.fuzzed import answers_of, play
from delaymq_testing.broker.harness import Harness, made
from delaymq_testing.hostile.frames import signed
from delaymq_testing.hostile.requests import HostileRequests, Pairs
from delaymq_testing.hostile.words import GROUPS, TOPICS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

pytestmark = pytest.mark.timeout(120 + FUZZ_INPUTS // 100)

WEIGHTS = (
    dict.fromkeys((10, 11, 310, 320), 8.0) | dict.fromkeys((324, 325), 6.0) | {215: 0.2, 202: 0.3, 208: 0.3, 317: 0.3}
)
"""Mostly what moves messages; a topic is deleted rarely, so that there is something to find, and statistics take long.
"""
RULES = """
accounts:
- {accessKey: hostile-key, secretKey: hostile-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,
   topicPerms: [Honest=DENY, HonestLater=DENY, "%DLQ%honest=DENY"], groupPerms: [honest=DENY]}
- {accessKey: honest-key, secretKey: honest-secret, topicPerms: [Honest=PUB|SUB, HonestLater=PUB|SUB],
   groupPerms: [honest=SUB]}
"""
ADMINISTRATOR = """
accounts:
- {accessKey: hostile-key, secretKey: hostile-secret, admin: true}
- {accessKey: honest-key, secretKey: honest-secret, topicPerms: [Honest=PUB|SUB, HonestLater=PUB|SUB],
   groupPerms: [honest=SUB]}
"""
NEED_ACCESS_CONTROL = {50, 51, 52, 53}
"""The only codes that cannot succeed on every broker: they ask about rules and change them."""
PROPERTIES = ["", "DELAY\x011", "REAL_TOPIC\x01Honest\x02REAL_QID\x010", "RETRY_TOPIC\x01Honest"]
VICTIMS = {
    **{name: [*TOPICS, *["Honest", "HonestLater", "%RETRY%honest"] * 2] for name in ("topic", "b", "originTopic")},
    **{name: [*GROUPS, *["honest"] * 3] for name in ("consumerGroup", "group", "groupName", "srcGroup", "destGroup")},
    **{name: ["c", "honest-client"] for name in ("clientId", "clientAddr")},
    **dict.fromkeys(("properties", "i"), PROPERTIES),
}


def by_hostile(fields: Pairs, body: bytes) -> Pairs:
    return signed("hostile-key", "hostile-secret", fields, body)


def by_honest(command: Command) -> None:
    Signer("honest-secret").sign(command, "honest-key")


def without_success(served: Counter[int], codes: Iterable[int]) -> list[int]:
    """Codes behind whose first check no input got; with fewer inputs than CI has, chance decides that."""
    if FUZZ_INPUTS < 20_000:
        return []
    # Messages between members arrive here only on connections without a proof.
    return [int(code) for code in codes if not served[code] and code != RequestCode.REPLICATE]


@pytest.fixture(autouse=True)
def surprises_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker would log as unexpected fails the test."""

    def fail(self: Any, text: str, *args: object, error: BaseException | None = None, **about: object) -> None:
        if error is not None:
            raise AssertionError(text % args) from error

    monkeypatch.setattr("delaymq.throttled_log.ThrottledLogger.warning", fail)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_every_request_gets_an_intended_response(tmp_path: Path, flush: str) -> None:
    requests = HostileRequests(f"{SEED} {flush}", PROCESSORS, WEIGHTS)
    served = play(tmp_path / "round", requests, FUZZ_INPUTS // 2, flush_disk_type=flush)
    assert without_success(served, PROCESSORS.keys() - NEED_ACCESS_CONTROL) == []
    assert served[-1]


def test_administrators_requests_get_intended_responses_and_rules_stay_readable(tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(ADMINISTRATOR)
    codes = PROCESSORS | PROCESSORS_OF_ACCESS
    requests = HostileRequests(
        f"{SEED} administrator",
        codes,
        WEIGHTS,
        texts={"accessKey": ["new-account", "x", "", "a=b"]},  # neither its own nor the honest client's
        sign=by_hostile,
    )
    served = play(
        tmp_path / "round",
        requests,
        FUZZ_INPUTS // 2,
        sign=by_honest,
        acl_enable=True,
        acl_config_path=str(rules),
    )
    assert without_success(served, codes) == []


def test_account_without_permission_neither_reads_nor_changes_others_data(tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    requests = HostileRequests(
        f"{SEED} accounts",
        PROCESSORS,
        WEIGHTS | dict.fromkeys((15, 33, 36, 37, 309, 314), 3.0),
        texts=VICTIMS,
        sign=by_hostile,
    )
    served = play(
        tmp_path / "round",
        requests,
        FUZZ_INPUTS // 2,
        sign=by_honest,
        keeps_secrets=True,
        acl_enable=True,
        acl_config_path=str(rules),
    )
    assert served[310]
    assert served[33]
    administrators_only = (17, 25, 50, 51, 53, 200, 207, 215, 306, 316, 323, 329)
    assert [code for code in administrators_only if served[code]] == []
    assert rules.read_text() == RULES


def test_request_without_fields_gets_an_intended_response(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    for code in PROCESSORS:
        for answer in answers_of(made(harness.broker, int(code), harness.ask(int(code)))):
            assert encode_response(Command(int(code)), answer)
    harness.broker.close()
