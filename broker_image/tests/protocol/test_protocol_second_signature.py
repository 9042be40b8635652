"""The second signature: coverage of every bit of a frame, and the lifetime of a challenge."""

import hmac
from base64 import b64encode

import msgspec
import pytest
from delaymq.protocol.command import Command, Response, decode_command, encode_command, request_command
from delaymq.protocol.credential_fields import broker_server, is_broker
from delaymq.protocol.errors import ProtocolError, RequestError
from delaymq.protocol.second_signature import (
    Channels,
    ConnectionKey,
    ConnectionSigner,
    challenge_in,
    challenge_request,
)
from delaymq.protocol.signatures import Signer

NONCE = bytes(range(16))
SERVER = broker_server("DefaultCluster", "broker-a", 0, "10.0.0.1:10911")
KEY, SECRET = "operators", "operators-secret"


def answered(channels: Channels, connection_id: int = 1) -> Command:
    told = channels.challenge(connection_id, SERVER, challenge_request(NONCE))
    return Command(told.code, fields=told.fields)


def signer_on(channels: Channels, connection_id: int = 1) -> ConnectionSigner:
    told = challenge_in(answered(channels, connection_id))
    assert told is not None
    return ConnectionSigner(ConnectionKey(KEY, SECRET, told[0], NONCE, told[1]), KEY)


def request() -> Command:
    command = request_command(17, {"topic": "Größe", "perm": "6", "empty": ""}, b"body")
    command.opaque = 7
    return command


def test_signature_is_as_documented() -> None:
    signer = ConnectionSigner(ConnectionKey(KEY, SECRET, b"c" * 16, NONCE, SERVER), KEY)
    command = request()
    signer.sign(command)
    pack = msgspec.msgpack.encode
    key = hmac.digest(SECRET.encode(), pack(["DelayMQ connection", 1, b"c" * 16, NONCE, SERVER, KEY]), "sha256")
    fields = ["AccessKey", KEY, "DmqCounter", "1", "empty", "", "perm", "6", "topic", "Größe"]
    head = pack([1, 17, 0, 7, command.version, "PYTHON", None, fields, 4])
    assert command.fields["DmqSignature"] == b64encode(hmac.digest(key, head + b"body", "sha256")).decode()


@pytest.mark.parametrize("binary", [False, True])
def test_every_significant_bit_is_covered(binary: bool) -> None:
    channels = Channels()
    signer = signer_on(channels)
    command = request()
    command.binary = binary
    signer.sign(command)
    frame = encode_command(command)[4:]
    sent = decode_command(frame)
    changed = unread = 0
    for bit in range(len(frame) * 8):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            read = decode_command(flipped)
        except ProtocolError:
            unread += 1
            continue
        if read != sent:
            changed += 1
            assert channels.verdict(1, KEY, (SECRET,), read) in ("second", "replay"), read
    assert changed > 800
    assert unread > 0
    assert channels.verdict(1, KEY, (SECRET,), sent) == ""
    assert channels.verdict(1, KEY, (SECRET,), sent) == "replay"


def test_field_boundaries_are_covered() -> None:
    channels = Channels()
    signer = signer_on(channels)
    command = request_command(202, {"a": "bc", "d": "e"})
    signer.sign(command)
    for other in ({"a": "b", "d": "ce"}, {"a": "bcde"}, {"a": "bc", "d": "e", "f": ""}, {"a": "bc", "de": ""}):
        credentials = {name: value for name, value in command.fields.items() if name[0].isupper()}
        cut = request_command(202, other | credentials)
        assert channels.verdict(1, KEY, (SECRET,), cut) == "second"


def test_unencodable_text_is_signed_as_sent() -> None:
    channels = Channels()
    signer = signer_on(channels)
    command = request_command(17, {"topic": "a\udcff"})
    signer.sign(command)
    read = decode_command(encode_command(command)[4:])
    assert read.fields["topic"] == "a?"
    read.fields["topic"] = "a\udcff"
    assert channels.verdict(1, KEY, (SECRET,), read) == "second"
    read.fields["topic"] = "a?"
    assert channels.verdict(1, KEY, (SECRET,), read) == ""


def test_command_is_signed_again_in_either_way() -> None:
    channels = Channels()
    command = request()
    signer_on(channels).sign(command)
    Signer(SECRET).sign(command, KEY)
    assert sorted(command.fields) == ["AccessKey", "Signature", "empty", "perm", "topic"]
    assert Signer(SECRET).signed(command.fields, command.body)
    signer_on(channels).sign(command)
    assert "Signature" not in command.fields
    assert channels.verdict(1, KEY, (SECRET,), command) == ""


def test_challenge_ends_with_silence_and_with_the_connection() -> None:
    now = [0.0]
    channels = Channels(max_silence_s=300, clock=lambda: now[0])
    signer, held, later = signer_on(channels), request(), request()
    for _ in range(3):
        now[0] += 299
        signer.sign(later)
        assert channels.verdict(1, KEY, (SECRET,), later) == ""
    signer.sign(held)
    now[0] += 301
    assert channels.verdict(1, KEY, (SECRET,), held) == "silence"
    assert len(channels) == 1
    channels.closed(1)
    assert len(channels) == 0
    assert channels.verdict(1, KEY, (SECRET,), held) == "second"


def test_challenge_needs_a_nonce() -> None:
    for nonce in (None, "", "AAAA", "not base64 at all!!!!!!", "é" * 22):
        command = challenge_request(NONCE)
        command.fields = {name: value for name, value in command.fields.items() if name != "nonce"}
        if nonce is not None:
            command.fields["nonce"] = nonce
        with pytest.raises(RequestError, match="nonce"):
            Channels().challenge(1, SERVER, command)


def test_only_servers_without_challenges_get_rocketmqs_signature() -> None:
    accident = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    for told in (Response(3), Response(22), Response(1, accident), Response(0, None, {"value": "AAAA"})):
        assert challenge_in(Command(told.code, remark=told.remark, fields=told.fields)) is None
    # What anybody may have stored in RocketMQ's NameServer.
    assert challenge_in(Command(0, fields={"value": b64encode(NONCE).decode()})) is None
    for told in (Response(2, "[OVERLOAD]"), Response(1, "starting"), Response(14)):
        with pytest.raises(RequestError, match="cannot obtain a challenge"):
            challenge_in(Command(told.code, remark=told.remark))


def test_broker_is_identified_by_name_and_address() -> None:
    assert is_broker(SERVER, "broker-a", "10.0.0.1:10911")
    assert not is_broker(SERVER, "broker-b", "10.0.0.1:10911")
    assert not is_broker(SERVER, "broker-a", "10.0.0.2:10911")
    assert not is_broker("namesrv", "broker-a", "10.0.0.1:10911")
