"""X.509 certificates: creation of CAs and of certificates that they issue, and interpretation of PEM texts.

Keys are ECDSA with the curve P-256. The library is imported on first use: it takes a tenth of a second and 17 MB, which
an operator without certificates does not need.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

DAY_MS: Final = 86_400_000
BACKDATED_MS: Final = 3_600_000
"""Time by which certificates are valid before their creation, since clocks differ."""
MAX_BUNDLE_CHARS: Final = 262_144
"""Maximum length of a text with certificates: far more than a few CAs, less than a Secret may contain."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A certificate and its private key, both as PEM."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Contents of a certificate. Times are ms since the epoch."""

    created_ms: int
    """Start of its validity, without the time by which it was backdated."""
    ends_ms: int
    names: tuple[str, ...]
    """DNS names and IP addresses, in its order."""

    @property
    def due_ms(self) -> int:
        """Time of its renewal: after two thirds of its lifetime."""
        return self.created_ms + (self.ends_ms - self.created_ms) * 2 // 3


def new_authority(common_name: str, now_ms: int, days: int) -> Pair:
    """Return a CA that issues certificates of servers only."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(common_name)
    builder = _builder(subject, subject, key, now_ms, now_ms + days * DAY_MS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(is_authority=True), critical=True)
    own_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return _signed(builder.add_extension(own_id, critical=False), key, key)


def issue(authority: Pair, names: Sequence[str], now_ms: int, days: int) -> Pair:
    """Return a certificate of a server with a new key. It ends with its CA at the latest."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer, issuer_key = _parse(authority.certificate), _parse_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    ends_ms = min(now_ms + days * DAY_MS, _ms(issuer.not_valid_after_utc))
    builder = _builder(_subject(names[0]), issuer.subject, key, now_ms, ends_ms)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(is_authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    subject_names = x509.SubjectAlternativeName([_general_name(name) for name in names])
    builder = builder.add_extension(subject_names, critical=False)
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return _signed(builder.add_extension(issuer_id, critical=False), key, issuer_key)


def facts_of(certificate: str) -> Facts:
    """Return the contents of the first certificate of a text. ValueError if there is none."""
    from cryptography import x509

    found = _parse(certificate)
    try:
        alternatives = list(found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        alternatives = []
    names = [str(each.value) for each in alternatives if isinstance(each, x509.DNSName | x509.IPAddress)]
    return Facts(
        created_ms=_ms(found.not_valid_before_utc) + BACKDATED_MS,
        ends_ms=_ms(found.not_valid_after_utc),
        names=tuple(names),
    )


def verification_name(names: Sequence[str]) -> str:
    """Return a name that identifies a certificate with these names; empty: it has none.

    It is the first DNS name without a wildcard, else one that a wildcard matches, else an address.
    """
    hosts = [name for name in names if not _is_address(name)]
    plain = [name for name in hosts if "*" not in name]
    matched = [f"delaymq{name[1:]}" for name in hosts if name.startswith("*.")]
    return next(iter([*plain, *matched, *(name for name in names if _is_address(name))]), "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def belong_together(pair: Pair) -> bool:
    """Return whether a certificate and a key are readable and match."""
    try:
        return bool(_parse(pair.certificate).public_key() == _parse_key(pair.key).public_key())
    except ValueError:
        return False


def is_issued_by_one_of(certificate: str, authorities: Iterable[str]) -> bool:
    """Return whether one of the CAs signed a readable certificate; its validity is not checked."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        found = _parse(certificate)
    except ValueError:
        return False
    for each in authorities:
        try:
            found.verify_directly_issued_by(_parse(each))
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            continue
        return True
    return False


def split_bundle(text: str) -> tuple[str, ...]:
    """Return the readable certificates of a text with several of them, each once, as PEM."""
    from cryptography import x509

    found: dict[str, None] = {}
    end = "-----END CERTIFICATE-----"
    for part in text[:MAX_BUNDLE_CHARS].split(end)[:-1]:
        try:
            certificate = x509.load_pem_x509_certificate((part + end).encode())
            found[_pem(certificate)] = None
        except ValueError:
            continue
    return tuple(found)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now_ms: int, ends_ms: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now_ms - BACKDATED_MS))
        .not_valid_after(_time(ends_ms))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey
) -> Pair:
    from cryptography.hazmat.primitives import hashes, serialization

    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate=_pem(builder.sign(issuer_key, hashes.SHA256())), key=pem.decode("ascii"))


def _subject(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:_MAX_COMMON_NAME])])


_MAX_COMMON_NAME: Final = 64
"""Bound of RFC 5280."""


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    return x509.IPAddress(ipaddress.ip_address(name)) if _is_address(name) else x509.DNSName(name)


def _parse(certificate: str) -> x509.Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificate(certificate[:MAX_BUNDLE_CHARS].encode())


def _parse_key(key: str) -> ec.EllipticCurvePrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        found = serialization.load_pem_private_key(key.encode(), password=None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError("the private key is encrypted or of an unknown kind") from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError("the private key is not ECDSA")
    return found


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _time(at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms // 1000, datetime.UTC)


def _ms(time: datetime.datetime) -> int:
    return int(time.timestamp()) * 1000
