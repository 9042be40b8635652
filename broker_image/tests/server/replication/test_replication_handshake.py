"""Proofs of both sides of a link: what they cover, and what each failure states. Pure: no sockets."""

from typing import Any

import pytest
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, request_command
from delaymq.server.replication import handshake as module
from delaymq.server.replication.handshake import Accepting, Connecting, Identity, LinkError, Peer

SECRET = b"sixteen characters"
A = Identity("C", "g", "a", "process-a")
B = Identity("C", "g", "b", "process-b")


def accepting(identity: Identity = B, *, secrets: tuple[bytes, ...] = (SECRET,)) -> Accepting:
    return Accepting(identity, lambda name: name in ("a", "b", "c"), lambda: secrets)


def answer(response: Response) -> Command:
    return Command(response.code, fields=response.fields, remark=response.remark)


def perform(one: Connecting, other: Accepting, certificate: bytes = b"", seen: bytes = b"") -> tuple[Peer, Peer]:
    first = other.linked(1, one.hello(), certificate)
    second = one.answered(answer(first), seen)
    response, peer = other.proven(1, second)
    return one.proven(answer(response)), peer


def failure(action: Any, *args: Any) -> LinkError:
    with pytest.raises(LinkError) as caught:
        action(*args)
    return caught.value


def test_both_sides_prove_the_secret_and_state_their_names() -> None:
    other = accepting()
    assert perform(Connecting(A, "b", SECRET), other) == (Peer("b", "process-b", 1), Peer("a", "process-a", 1))
    assert len(other) == 0


def test_proof_covers_each_part_of_the_exchange_and_the_role() -> None:
    exchange = module.Exchange(1, 1, 1, "C", "g", "a", "p", "b", "q", bytes(32), bytes(32), b"")
    proofs = {exchange.proof(SECRET, "connecting"), exchange.proof(SECRET, "accepting")}
    for name in exchange._fields:
        value = getattr(exchange, name)
        changed = exchange._replace(**{name: value + type(value)(b"x" if isinstance(value, bytes) else "1")})
        proofs.add(changed.proof(SECRET, "connecting"))
    # Neighbouring names are not simply joined.
    proofs.add(exchange._replace(cluster="", group="Cg").proof(SECRET, "connecting"))
    assert len(proofs) == 2 + len(exchange._fields) + 1


@pytest.mark.parametrize("secret", [b"another secret of 27 characters", SECRET + b"\n", b""])
def test_wrong_secret_is_rejected_by_the_accepting_side(secret: bytes) -> None:
    error = failure(perform, Connecting(A, "b", secret), accepting())
    assert error.reason == "proof"
    assert "the proof of member a is wrong: compare the secrets" in str(error)
    assert error.code == ResponseCode.NO_PERMISSION


def test_accepting_side_without_the_secret_is_rejected() -> None:
    one, other = Connecting(A, "b", SECRET), accepting(secrets=(b"another secret",))
    one.answered(answer(other.linked(1, one.hello(), b"")), b"")
    for proof in (bytes(32), b"x" * 32):
        forged = Response(fields={"proof": module._text(proof)})
        assert "could not prove" in str(failure(one.proven, answer(forged)))


def test_reflected_proof_is_rejected() -> None:
    # An accepting side without the secret returns the proof of the connecting side, or has it checked elsewhere.
    one, other = Connecting(A, "b", SECRET), accepting()
    second = one.answered(answer(other.linked(1, one.hello(), b"")), b"")
    assert failure(one.proven, answer(Response(fields=second.fields))).reason == "proof"


def test_proof_is_valid_for_one_connection_and_one_attempt() -> None:
    one, other = Connecting(A, "b", SECRET), accepting()
    second = one.answered(answer(other.linked(1, one.hello(), b"")), b"")
    other.linked(2, one.hello(), b"")  # the captured request, on another connection
    assert failure(other.proven, 2, second).reason == "proof"
    other.proven(1, second)
    for connection_id in (1, 2, 3):
        assert failure(other.proven, connection_id, second).reason == "form"


def test_peer_in_the_middle_of_tls_cannot_relay_the_handshake() -> None:
    error = failure(perform, Connecting(A, "b", SECRET), accepting(), b"certificate of b", b"another certificate")
    assert error.reason == "proof"
    assert perform(Connecting(A, "b", SECRET), accepting(), b"certificate", b"certificate")[0].member == "b"


def test_second_secret_of_the_file_is_accepted() -> None:
    old, new = b"the secret until now", b"the secret from now on"
    for first, secrets in ((old, (old, new)), (new, (old, new)), (old, (new, old))):
        assert perform(Connecting(A, "b", first), accepting(secrets=secrets))[1].member == "a"


@pytest.mark.parametrize(
    ("identity", "member", "reason", "text"),
    [
        (
            A._replace(group="other"),
            "b",
            "group",
            "this is member b of the group g in the cluster C, not of other in C",
        ),
        (A._replace(cluster="D"), "b", "group", "not of g in D: correct haMembers"),
        (A._replace(member="b"), "b", "name", "both members have the name b: give each member"),
        (A._replace(member="x"), "b", "member", "member 'x' is not in the haMembers of member b: add it"),
        (A, "c", "name", "this is member b, not member 'c': correct haMembers"),
        (A._replace(process=""), "b", "form", "the name of the process"),
        (A._replace(process="x" * 65), "b", "form", "the name of the process"),
        (A._replace(group="g\n" * 500), "b", "group", "not of g?g?"),
    ],
)
def test_each_mismatch_has_its_own_reason(identity: Identity, member: str, reason: str, text: str) -> None:
    other = accepting()
    error = failure(other.linked, 1, Connecting(identity, member, SECRET).hello(), b"")
    assert (error.reason, error.code) == (reason, ResponseCode.NO_PERMISSION)
    assert text in str(error)
    assert len(str(error)) < 500
    assert len(other) == 0


def test_address_of_another_member_is_reported() -> None:
    one = Connecting(A, "c", SECRET)
    told = answer(Response(fields={"member": "b", "process": "p", "version": "1", "nonce": module._text(bytes(32))}))
    assert "the address of member c leads to member 'b'" in str(failure(one.answered, told, b""))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nonce", ""),
        ("nonce", "AAAA"),
        ("nonce", "é"),
        ("nonce", module._text(bytes(33))),
        ("nonce", None),
        ("oldestVersion", "x"),
        ("process", None),
    ],
)
def test_malformed_requests_are_rejected(name: str, value: str | None) -> None:
    hello = Connecting(A, "b", SECRET).hello()
    if value is None:
        del hello.fields[name]
    else:
        hello.fields[name] = value
    assert failure(accepting().linked, 1, hello, b"").reason == "form"


def test_malformed_proofs_and_responses_are_rejected() -> None:
    other = accepting()
    for proof in ("", "AAAA", "x" * 1_000):
        other.linked(1, Connecting(A, "b", SECRET).hello(), b"")
        command = request_command(RequestCode.PROVE_REPLICA, {"proof": proof})
        assert failure(other.proven, 1, command).reason == "form"
        assert len(other) == 0
    for fields in ({}, {"member": "b", "process": "p", "version": "1", "nonce": "x"}):
        assert failure(Connecting(A, "b", SECRET).answered, answer(Response(fields=fields)), b"").reason == "form"


def test_second_handshake_on_a_connection_is_rejected() -> None:
    other = accepting()
    other.linked(1, Connecting(A, "b", SECRET).hello(), b"")
    assert failure(other.linked, 1, Connecting(A, "b", SECRET).hello(), b"").reason == "form"
    other.closed(1)
    assert len(other) == 0
    other.linked(1, Connecting(A, "b", SECRET).hello(), b"")


def test_member_that_was_removed_during_the_handshake_is_rejected() -> None:
    members = {"a"}
    other = Accepting(B, members.__contains__, lambda: (SECRET,))
    one = Connecting(A, "b", SECRET)
    second = one.answered(answer(other.linked(1, one.hello(), b"")), b"")
    members.clear()
    assert failure(other.proven, 1, second).reason == "member"


def test_rejection_and_its_reason_reach_the_connecting_side() -> None:
    one = Connecting(A, "b", SECRET)
    told = answer(Response(ResponseCode.NO_PERMISSION, "correct the name\n" + "x" * 1_000))
    error = failure(one.answered, told, b"")
    assert error.reason == "rejected"
    assert "member b rejected this member: correct the name?xxx" in str(error)
    assert len(str(error)) < 300
    older = answer(Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 30002 not supported"))
    assert failure(one.answered, older, b"").reason == "unsupported"


def test_newest_common_version_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = Connecting(A, "b", SECRET)
    hello = newer.hello()
    hello.fields |= {"oldestVersion": "1", "newestVersion": "7"}
    assert accepting().linked(1, hello, b"").fields["version"] == "1"
    hello.fields |= {"oldestVersion": "2"}
    error = failure(accepting().linked, 1, hello, b"")
    assert error.code == ResponseCode.VERSION_NOT_SUPPORTED
    assert "has the versions 1 to 1 of replication, and member a has 2 to 7: upgrade the older one" in str(error)
    monkeypatch.setattr(module, "NEWEST_VERSION", 3)
    older = Connecting(A, "b", SECRET).hello()
    older.fields |= {"newestVersion": "2"}
    assert accepting().linked(1, older, b"").fields["version"] == "2"


def test_changed_versions_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    # A peer in the middle removes the newer version from the offer.
    monkeypatch.setattr(module, "NEWEST_VERSION", 2)
    one, other = Connecting(A, "b", SECRET), accepting()
    hello = one.hello()
    hello.fields |= {"newestVersion": "1"}
    second = one.answered(answer(other.linked(1, hello, b"")), b"")
    assert failure(other.proven, 1, second).reason == "proof"
