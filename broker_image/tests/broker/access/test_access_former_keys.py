"""The former secret key of an account: valid in addition to the current one, until it is removed."""

import logging
from typing import Any

import pytest
from delaymq.access.errors import AccessError
from delaymq.access.plain_acl import parse, to_text
from delaymq.broker.access.access import Access
from delaymq.protocol.bodies import HeartbeatData, ProducerData
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.second_signature import ConnectionKey, ConnectionSigner, challenge_in, challenge_request
from delaymq.protocol.signatures import Signer
from delaymq_testing.broker.guarded import RULES, Guarded
from delaymq_testing.broker.harness import FakeSession, made, send_fields

OLD, NEW = "application-secret", "another-secret"
BOTH = RULES.replace(f"secretKey: {OLD}", f"secretKey: {NEW}\n  formerSecretKey: {OLD}")
ONLY_NEW = RULES.replace(f"secretKey: {OLD}", f"secretKey: {NEW}")
PULL = {"topic": "Orders", "consumerGroup": "mine"}
NOW_MS = 1_700_000_000_000


def changed(guarded: Guarded, text: str) -> None:
    beside = guarded.path.with_name("new.tmp")
    beside.write_text(text)
    beside.rename(guarded.path)
    guarded.reload()


def signer_on(guarded: Guarded, session: FakeSession, secret: str) -> ConnectionSigner:
    """A signer with the second signature, for the challenge of a session."""
    nonce = bytes(range(16))
    request = challenge_request(nonce)
    answer = made(guarded.broker, request.code, guarded.broker.handle(session, request))
    told = challenge_in(Command(answer.code, fields=answer.fields))
    assert told is not None
    return ConnectionSigner(ConnectionKey("application", secret, told[0], nonce, told[1]), "application")


def second(guarded: Guarded, session: FakeSession, signer: ConnectionSigner) -> str:
    """The refusal of a send with the second signature."""
    command = request_command(310, {name: str(value) for name, value in send_fields("Orders").items()}, b"x")
    signer.sign(command)
    return str(made(guarded.broker, 310, guarded.broker.handle(session, command)).remark or "")


def sent(guarded: Guarded, secret: str) -> str:
    return guarded.refusal(310, send_fields("Orders"), secret=secret)


def test_both_keys_are_valid_until_the_former_one_is_removed(guarded: Guarded) -> None:
    assert (sent(guarded, OLD), "compare the secret keys" in sent(guarded, NEW)) == ("", True)
    changed(guarded, BOTH)
    assert (sent(guarded, OLD), sent(guarded, NEW)) == ("", "")
    assert "compare the secret keys" in sent(guarded, "third-secret")
    changed(guarded, ONLY_NEW)
    assert ("compare the secret keys" in sent(guarded, OLD), sent(guarded, NEW)) == (True, "")


def test_connections_with_the_second_signature_continue_with_either_key(guarded: Guarded) -> None:
    former, current = FakeSession(101), FakeSession(102)
    by_former = signer_on(guarded, former, OLD)
    assert second(guarded, former, by_former) == ""
    changed(guarded, BOTH)
    by_current = signer_on(guarded, current, NEW)
    for _ in range(3):
        assert second(guarded, former, by_former) == ""
        assert second(guarded, current, by_current) == ""
    later = FakeSession(103)
    assert second(guarded, later, signer_on(guarded, later, OLD)) == ""
    changed(guarded, ONLY_NEW)
    assert "compare the secret keys" in second(guarded, former, by_former)
    assert second(guarded, current, by_current) == ""


def test_request_with_the_second_signature_counts_once_with_either_key(guarded: Guarded) -> None:
    changed(guarded, BOTH)
    session = FakeSession(101)
    command = request_command(310, {name: str(value) for name, value in send_fields("Orders").items()}, b"x")
    signer_on(guarded, session, OLD).sign(command)

    def answer() -> str:
        return str(made(guarded.broker, 310, guarded.broker.handle(session, command)).remark or "")

    assert answer() == ""
    assert "the request was sent before" in answer()


def held(guarded: Guarded, secret: str, *, by_second: bool, session: FakeSession) -> tuple[Command, Any]:
    """A pull that was admitted, and the account that admitted it."""
    command = request_command(11, dict(PULL))
    if by_second:
        signer_on(guarded, session, secret).sign(command)
    else:
        Signer(secret).sign(command, "application")
    guarded.access.check(session, command)
    return command, guarded.access.signer_of(session, command)


@pytest.mark.parametrize("by_second", [False, True])
def test_held_pulls_end_with_the_key_that_signed_them(guarded: Guarded, by_second: bool) -> None:
    def refused(pull: tuple[Command, Any], session: FakeSession) -> bool:
        return guarded.access.still_refusal(session, *pull) is not None

    sessions = [FakeSession(number) for number in (101, 102, 103)]
    early = held(guarded, OLD, by_second=by_second, session=sessions[0])
    changed(guarded, BOTH)
    late = held(guarded, OLD, by_second=by_second, session=sessions[1])
    current = held(guarded, NEW, by_second=by_second, session=sessions[2])
    pulls = list(zip((early, late, current), sessions, strict=True))
    assert [refused(*each) for each in pulls] == [False, False, False]
    changed(guarded, ONLY_NEW)
    assert [refused(*each) for each in pulls] == [True, True, False]


def beat(guarded: Guarded, session: FakeSession, secret: str) -> None:
    body = HeartbeatData(f"client-{session.id}", [ProducerData("p")], []).encode()
    assert guarded.ask(34, body=body, secret=secret, session=session).code == 0


def test_connections_are_closed_with_the_key_that_signed_their_heartbeat(guarded: Guarded) -> None:
    access: Access = guarded.access
    early, late, current = FakeSession(101), FakeSession(102), FakeSession(103)
    beat(guarded, early, OLD)
    changed(guarded, BOTH)
    beat(guarded, late, OLD)
    beat(guarded, current, NEW)
    assert access.orphans() == []
    changed(guarded, ONLY_NEW)
    assert access.orphans() == [early.id, late.id]


def test_file_with_a_former_key_reads_back_and_shows_no_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    file = parse(BOTH, NOW_MS)
    assert file.notes == ()
    again = parse(to_text(file), NOW_MS)
    assert [each.entry for each in again.accounts] == [each.entry for each in file.accounts]
    account = again.account("application")
    assert account is not None
    assert account.entry.secret_keys == (NEW, OLD)
    assert NEW not in repr(again) + caplog.text
    assert OLD not in repr(again) + caplog.text


def test_useless_and_invalid_former_keys_are_reported_without_them() -> None:
    same = parse(RULES.replace(f"secretKey: {OLD}", f"secretKey: {OLD}\n  formerSecretKey: {OLD}"), NOW_MS)
    assert same.notes == ("account application: formerSecretKey has no effect, because it is the same as secretKey",)
    account = same.account("application")
    assert account is not None
    assert account.entry.secret_keys == (OLD,)
    assert account.former is None
    with pytest.raises(AccessError, match=r"accessKey=application and formerSecretKey=\(not shown\)"):
        parse(RULES.replace(f"secretKey: {OLD}", f"secretKey: {OLD}\n  formerSecretKey: short"), NOW_MS)


def put(guarded: Guarded, secret: str, **fields: str) -> Any:
    stated = {"accessKey": "application", "secretKey": secret, "admin": "false"} | fields
    return guarded.ask(50, stated, key="operators")


def test_request_keeps_or_drops_the_former_key(guarded: Guarded) -> None:
    def keys() -> tuple[str, ...]:
        return guarded.access.rules.accounts["application"].entry.secret_keys

    assert put(guarded, NEW, formerSecretKey="keep").code == 0
    assert keys() == (NEW, OLD)
    assert put(guarded, NEW, formerSecretKey="keep").code == 0  # repeated after a lost response
    assert put(guarded, NEW).code == 0
    assert keys() == (NEW, OLD)
    assert put(guarded, NEW, formerSecretKey="drop").code == 0
    assert keys() == (NEW,)
    assert put(guarded, OLD, formerSecretKey="keep").code == 0
    assert keys() == (OLD, NEW)
    assert put(guarded, "third-secret").code == 0  # as by mqadmin: only the new key is valid
    assert keys() == ("third-secret",)
    refused = put(guarded, NEW, formerSecretKey=OLD)
    assert (refused.code, refused.remark) == (209, "formerSecretKey must be keep or drop")
    assert keys() == ("third-secret",)
