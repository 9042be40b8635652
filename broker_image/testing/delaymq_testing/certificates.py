"""Authorities and certificates for tests, on elliptic curves: made in a millisecond."""

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate's and its key's file."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        made = (
            _builder(self._name, self._name, self._key, 30)
            .add_extension(x509.BasicConstraints(True, None), True)
            .add_extension(usage, True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / f"{name}.crt"
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        days: float = 30,
        password: str = "",
        file: str = "",
        has_subject: bool = True,
        common_names: Sequence[str] | None = None,
    ) -> Pair:
        """Create a certificate for a name or address that expires in `days` days: files `file`.crt and .key.

        `common_names` are any texts, in place of the name in the subject.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = ([name] if has_subject else []) if common_names is None else common_names
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each, _validate=False) for each in names])
        made = (
            _builder(subject, self._name, key, days)
            .add_extension(x509.SubjectAlternativeName([_general_name(name)]), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(self._folder / f"{file or name}.crt", self._folder / f"{file or name}.key")
        write_pair(pair, made.public_bytes(serialization.Encoding.PEM), _pem_of(key, password))
        return pair


def write_pair(pair: Pair, certificate: bytes, key: bytes) -> None:
    """Replace each file atomically, one at a time, as a tool that renews certificates does."""
    for path, data in ((pair.certificate, certificate), (pair.key, key)):
        path.with_suffix(".new").write_bytes(data)
        path.with_suffix(".new").replace(path)


def server_context(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def client_context(authority: Authority | None) -> ssl.SSLContext:
    """One that trusts the authority, or anybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(authority.certificate)
    return context


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + days * DAY)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem_of(key: ec.EllipticCurvePrivateKey, password: str) -> bytes:
    encryption = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
