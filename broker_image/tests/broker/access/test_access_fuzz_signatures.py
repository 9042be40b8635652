"""A signature is accepted exactly when the rule of docs/formats/wire.md holds, for any tampering."""

from base64 import b64decode
from collections import Counter
from pathlib import Path

import pytest
from delaymq.broker.access.access import Access
from delaymq.broker.access.rules import Rules
from delaymq.broker.processors.table import PROCESSORS, PROCESSORS_OF_ACCESS
from delaymq.protocol.command import Command
from delaymq.protocol.errors import ProtocolError, RequestError
from delaymq.protocol.frame import FrameReceiver
from delaymq.protocol.second_signature import Channels, challenge_in, requests_challenge
from delaymq_testing.broker.harness import START_MS, FakeSession
from delaymq_testing.hostile.requests import HostileRequests
from delaymq_testing.hostile.second_signatures import Owner, Rule
from delaymq_testing.hostile.signature_tricks import SignatureTricks
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

INPUTS = FUZZ_INPUTS // 2
SERVER = "broker/C/b/0/10.0.0.1:10911"
MAX_SILENCE_S = 300.0
RULES = """
accounts:
- {accessKey: careful-key, secretKey: careful-secret, requireSecondSignature: true, defaultTopicPerm: PUB|SUB}
- {accessKey: easy-key, secretKey: easy-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: another-key, secretKey: easy-secret}
"""
OWNERS = {
    "careful-key": Owner("careful-secret", requires_second=True),
    "easy-key": Owner("easy-secret"),
    "another-key": Owner("easy-secret"),
}
OF_SIGNATURES = {"unsigned", "unknown_key", "signature", "second", "replay", "silence", "second_required"}
"""Reasons of refusals that are about who sent a request."""
WITH_A_FORM = {17, 25, 50, 51, 53, 200, 207, 215, 222, 306, 314, 316, 323, 329}
"""Administrative requests, whose form is checked before any signature (decision 38)."""

pytestmark = pytest.mark.timeout(120 + FUZZ_INPUTS // 100)


class Server:
    """Access control without a broker, and its connections."""

    def __init__(self, path: Path) -> None:
        rules = path / "plain_acl.yml"
        rules.write_text(RULES)
        self.now_s = 0.0
        self.access = Access(
            Rules(rules, lambda: START_MS), lambda: START_MS, topic_at=lambda offset: None, reply_topic=""
        )
        self.access.channels = Channels(MAX_SILENCE_S, clock=lambda: self.now_s)

    def reason(self, session: FakeSession, command: Command) -> str:
        """Why a request is refused; empty for one whose sender is known and may do it."""
        before = dict(self.access.refused)
        try:
            self.access.check(session, command)
        except RequestError:
            return next((reason for reason, count in self.access.refused.items() if count > before[reason]), "")
        return ""


def test_signature_is_accepted_exactly_by_the_rule(tmp_path: Path) -> None:
    server = Server(tmp_path)
    rule = Rule(OWNERS, MAX_SILENCE_S, lambda: server.now_s)
    requests = HostileRequests(f"{SEED} to be signed", PROCESSORS | PROCESSORS_OF_ACCESS)
    chance = requests.random
    tricks = SignatureTricks(f"{SEED} signatures", lambda: requests.drawn(number, chance.randrange(60)), rule)
    sessions = [FakeSession(port) for port in (1, 2, 3)]
    found = Counter[str]()
    second = 0
    for number in range(INPUTS):
        session = chance.choice(sessions)
        if not chance.randrange(20):
            server.now_s += chance.choice((MAX_SILENCE_S + 1, *[MAX_SILENCE_S / 3] * 20))
        frame = tricks.next(session.id).frame()
        try:
            (command,) = FrameReceiver().feed(frame)
        except ProtocolError:
            found["no frame"] += 1
            continue
        reason = server.reason(session, command)
        found[reason] += 1
        if reason == "form":
            assert command.code in WITH_A_FORM
            continue
        counts = rule.accepts(session.id, command)
        assert (reason not in OF_SIGNATURES) == counts, f"input {number} of DELAYMQ_SEED={SEED}: {reason}: {frame!r}"
        second += counts and "DmqSignature" in command.fields
        if counts and requests_challenge(command):
            issue_challenge(server, rule, session, command)
    assert found.keys() >= OF_SIGNATURES | {"", "form", "admin", "permission"}
    assert second > INPUTS // 4, found  # otherwise the tricks are useless
    assert min(tricks.tried.values()) > INPUTS // 200, tricks.tried


def issue_challenge(server: Server, rule: Rule, session: FakeSession, command: Command) -> None:
    """Answers as the broker does; what has no nonce changes nothing."""
    try:
        response = server.access.channels.challenge(session.id, SERVER, command)
    except RequestError:
        return
    told = challenge_in(Command(response.code, fields=response.fields))
    assert told is not None
    rule.challenged(session.id, b64decode(command.fields["nonce"]), *told)
