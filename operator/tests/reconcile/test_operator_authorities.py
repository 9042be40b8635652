"""CAs of a Broker and their certificates: contents, verification by clients, replacement of a CA with a fake clock."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from delaymq_operator.reconcile.authorities import OVERLAP_MS, Authorities, advance, read_authorities
from delaymq_operator.reconcile.certificates import (
    DAY_MS,
    Pair,
    belong_together,
    facts_of,
    is_issued_by_one_of,
    issue,
    new_authority,
    split_bundle,
)

NOW_MS = 1_790_000_000_000
DAYS = 1_825
NAMES = ("demo-broker-pods.ns.svc", "demo-namesrv", "*.demo-broker-pods.ns.svc", "10.96.0.7", "2001:db8::1")


def first() -> Authorities:
    return advance(None, (), "demo.ns CA", NOW_MS, DAYS)


def test_certificate_contains_names_addresses_and_lifetime() -> None:
    pair = issue(first().active, NAMES, NOW_MS, 90)
    facts = facts_of(pair.certificate)
    assert facts.names == NAMES
    assert (facts.created_ms, facts.ends_ms) == (NOW_MS, NOW_MS + 90 * DAY_MS)
    assert facts.due_ms == NOW_MS + 60 * DAY_MS
    assert belong_together(pair)
    assert pair.key not in repr(pair)


def test_certificate_does_not_outlive_its_ca() -> None:
    authority = new_authority("a", NOW_MS, 30)
    assert facts_of(issue(authority, NAMES, NOW_MS, 90).certificate).ends_ms == facts_of(authority.certificate).ends_ms


def test_client_with_strict_verification_accepts_certificate(tmp_path: Path) -> None:
    authorities = advance(None, (), "demo.ns CA", now_ms(), DAYS)
    pair = issue(authorities.active, NAMES, now_ms(), 90)
    for name in ("demo-namesrv", "demo-broker-0-0.demo-broker-pods.ns.svc", "10.96.0.7", "2001:db8::1"):
        assert handshake(authorities.bundle, pair, name, tmp_path) == ""
    assert "mismatch" in handshake(authorities.bundle, pair, "other", tmp_path)
    stranger = new_authority("demo.ns CA", now_ms(), DAYS)
    assert "verify failed" in handshake(stranger.certificate, pair, "demo-namesrv", tmp_path)


def test_next_ca_is_published_before_it_issues_certificates() -> None:
    before = first()
    due_ms = facts_of(before.active.certificate).due_ms
    assert advance(before, before.certificates, "a", due_ms - 1, DAYS) == before
    published = advance(before, before.certificates, "a", due_ms, DAYS)
    assert published.active == before.active
    assert published.next is not None
    assert published.certificates == (before.active.certificate, published.next.certificate)
    waiting = advance(published, published.certificates, "a", due_ms + OVERLAP_MS - 1, DAYS)
    assert waiting == published
    active = advance(published, published.certificates, "a", due_ms + OVERLAP_MS, DAYS)
    assert active == Authorities(active=published.next, former=(before.active.certificate,))
    ended_ms = facts_of(before.active.certificate).ends_ms
    assert advance(active, active.certificates, "a", ended_ms - 1, DAYS) == active
    assert advance(active, active.certificates, "a", ended_ms, DAYS).former == ()


def test_every_issued_certificate_is_trusted_during_a_replacement() -> None:
    """Old certificates by the new bundle, and new certificates by the bundle that clients had 30 days before."""
    found, bundles, pairs = first(), [], []
    for day in range(0, 2 * DAYS, 10):
        at_ms = NOW_MS + day * DAY_MS
        found = advance(found, found.certificates, "a", at_ms, DAYS)
        pairs.append((day, issue(found.active, NAMES, at_ms, 90)))
        bundles.append((day, found.certificates))
    for day, pair in pairs:
        for of_day, bundle in bundles:
            if day - 20 <= of_day <= day + 90:
                assert is_issued_by_one_of(pair.certificate, bundle), (day, of_day)
    assert len({pair.certificate for _, pair in pairs}) == len(pairs)
    assert len({bundle[0] for _, bundle in bundles}) == 3


def test_ca_that_was_never_published_is_replaced() -> None:
    """The operator was killed after it had written the CA, and returned after the overlap."""
    before = first()
    due_ms = facts_of(before.active.certificate).due_ms
    unpublished = advance(before, before.certificates, "a", due_ms, DAYS)
    later = advance(unpublished, before.certificates, "a", due_ms + 2 * OVERLAP_MS, DAYS)
    assert later.active == before.active
    assert later.next not in (None, unpublished.next)


def test_lost_ca_is_replaced_and_its_certificates_stay_trusted() -> None:
    before = first()
    pair = issue(before.active, NAMES, NOW_MS, 90)
    after = advance(None, before.certificates, "a", NOW_MS + DAY_MS, DAYS)
    assert after.active != before.active
    assert is_issued_by_one_of(pair.certificate, after.certificates)


def test_expired_ca_is_replaced_immediately() -> None:
    before = first()
    at_ms = facts_of(before.active.certificate).ends_ms + DAY_MS
    after = advance(before, before.certificates, "a", at_ms, DAYS)
    assert facts_of(after.active.certificate).ends_ms > at_ms
    assert (after.next, after.former) == (None, ())


def test_clock_that_was_set_back_changes_nothing() -> None:
    before = first()
    published = advance(before, before.certificates, "a", facts_of(before.active.certificate).due_ms, DAYS)
    assert advance(published, published.certificates, "a", NOW_MS - 100 * DAY_MS, DAYS) == published


def test_stored_cas_are_read_unchanged() -> None:
    before = first()
    following = new_authority("b", NOW_MS, DAYS)
    former = tuple(new_authority(name, NOW_MS, DAYS).certificate for name in ("c", "d"))
    for found in (before, replace(before, next=following), replace(before, next=following, former=former)):
        assert read_authorities(found.texts) == found


@pytest.mark.parametrize(
    "change",
    [
        {"ca.key": ""},
        {"ca.crt": "garbage"},
        {"ca.key": "garbage"},
        {"ca.key": new_authority("other", NOW_MS, 30).key},
        {"ca.crt": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
    ],
)
def test_unusable_stored_ca_counts_as_lost(change: dict[str, str]) -> None:
    assert read_authorities(first().texts | change) is None


def test_bundle_with_garbage_yields_its_readable_certificates() -> None:
    one, two = (new_authority(name, NOW_MS, 30).certificate for name in ("a", "b"))
    broken = one.replace("M", "!", 1)
    assert split_bundle(f"# comment\n{one}{broken}é{two}{one}-----BEGIN CERTIFICATE-----") == (one, two)
    assert split_bundle("x" * 1_000_000) == ()


def test_ca_may_not_sign_further_cas() -> None:
    certificate = x509.load_pem_x509_certificate(first().active.certificate.encode())
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)


def now_ms() -> int:
    import time

    return int(time.time() * 1000)


def handshake(bundle: str, pair: Pair, name: str, folder: Path) -> str:
    """Return the error of a client that verifies a server by `name`; empty: there was none."""
    (folder / "chain").write_text(pair.certificate + pair.key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "chain")
    connecting = ssl.create_default_context(cadata=bundle)
    connecting.verify_flags |= ssl.VERIFY_X509_STRICT
    sides = [(ssl.MemoryBIO(), ssl.MemoryBIO())]
    to_server, to_client = sides[0]
    client = connecting.wrap_bio(to_client, to_server, server_hostname=name)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return str(error)
    return ""
