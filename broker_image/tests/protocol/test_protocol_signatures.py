"""RocketMQ's request signatures: its own frames, and invalid signatures."""

import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest
from delaymq.protocol.command import decode_command, encode_command, request_command
from delaymq.protocol.credential_fields import ACCESS_KEY, SIGNATURE
from delaymq.protocol.signatures import Signer
from hypothesis import given
from hypothesis import strategies as st

GOLDEN = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "signed.jsonl").read_text().splitlines()]
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
fields_of = st.dictionaries(st.text("abcXYZ_09", min_size=1, max_size=8), texts, max_size=8)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_frames_signed_by_rocketmqs_hook_verify_and_signatures_are_equal(golden: dict[str, str]) -> None:
    signer = Signer(golden["secretKey"])
    theirs = decode_command(base64.b64decode(golden["frame"])[4:])
    assert signer.signed(theirs.fields, theirs.body)
    assert not Signer(golden["secretKey"] + "x").signed(theirs.fields, theirs.body)
    own = {name: text for name, text in theirs.fields.items() if name not in (ACCESS_KEY, SIGNATURE, "SecurityToken")}
    ours = request_command(theirs.code, own, theirs.body)
    signer.sign(ours, theirs.fields[ACCESS_KEY], theirs.fields.get("SecurityToken"))
    assert ours.fields == theirs.fields


@given(fields_of, st.binary(max_size=100), st.booleans(), st.text(min_size=1, max_size=20))
def test_signed_request_verifies_after_the_wire_and_a_modified_one_does_not(
    fields: dict[str, str], body: bytes, binary: bool, secret: str
) -> None:
    command = request_command(10, dict(fields), body)
    signer = Signer(secret)
    signer.sign(command, "account")
    command.binary = binary
    read = decode_command(encode_command(command)[4:])
    assert signer.signed(read.fields, read.body)
    assert not signer.signed(read.fields, read.body + b"x")
    assert not signer.signed({**read.fields, "added": "y"}, read.body)
    assert not signer.signed({**read.fields, SIGNATURE: read.fields[SIGNATURE][:-2]}, read.body)
    assert not Signer(secret + "x").signed(read.fields, read.body)


@given(fields_of, st.binary(max_size=100), st.text(min_size=1, max_size=100))
def test_signature_equals_the_standard_librarys_hmac(fields: dict[str, str], body: bytes, secret: str) -> None:
    content = "".join(fields[name] for name in sorted(fields)).encode(errors="replace") + body
    expected = base64.b64encode(hmac.new(secret.encode(errors="replace"), content, hashlib.sha1).digest())
    assert Signer(secret).signature(fields, body) == expected


def test_signing_again_replaces_the_signature_and_keeps_the_callers_fields() -> None:
    fields = {"topic": "T"}
    command = request_command(11, fields)
    Signer("secret-one").sign(command, "account")
    first = command.fields[SIGNATURE]
    Signer("secret-two").sign(command, "account")
    assert command.fields[SIGNATURE] != first
    assert Signer("secret-two").signed(command.fields, b"")
    assert fields == {"topic": "T"}


def test_malformed_signature_is_invalid() -> None:
    signer = Signer("secret")
    for stated in ("", "é", "\udcff", "x" * 100_000, " "):
        assert not signer.signed({SIGNATURE: stated}, b"")
    assert not signer.signed({}, b"")
