"""TLS options for connections to brokers and NameServers: trusted issuers and the client certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from delaymq.client.errors import ClientError


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """TLS options. Files are read for each new connection, so renewed files take effect from then on."""

    ca_path: Path | None = None
    """Trusted issuers, PEM. None: those of the system."""
    ca_pem: str = ""
    """Text with trusted issuers, PEM, instead of a file. Empty: none."""
    certificate_path: Path | None = None
    """Client certificate for servers that request one, PEM, with the certificates of its issuers."""
    key_path: Path | None = None
    """Private key of the certificate, PEM. None: in the file of the certificate."""
    key_password: str = field(default="", repr=False)
    """Password of the encrypted private key."""
    server_name: str = ""
    """Name that the certificates of servers must have. Empty: the host of the server's address. Clients connect to
    brokers at the addresses in the routes of NameServers, mostly IP addresses: set this option to the name in the
    brokers' certificates."""
    insecure: bool = False
    """Accept any server certificate, as RocketMQ's clients do unless tls.client.authServer=true. This protects against
    eavesdropping but not against an active man in the middle."""

    def context(self) -> ssl.SSLContext:
        """Return the context of new connections. Raises TlsFilesError; reading the system's issuers takes some ms."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca_pem:
            try:
                context.load_verify_locations(cadata=self.ca_pem)
            except (ssl.SSLError, ValueError) as error:
                raise TlsFilesError("ca_pem contains no certificates in PEM format: give the trusted CAs") from error
        elif self.ca_path is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            _read(self.ca_path)
            try:
                context.load_verify_locations(self.ca_path)
            except (ssl.SSLError, OSError) as error:
                raise TlsFilesError(
                    f"{self.ca_path} contains no certificates in PEM format: specify a file with the trusted CAs"
                ) from error
        if self.certificate_path is not None:
            self._load_pair(context, self.certificate_path)
        return context

    def _load_pair(self, context: ssl.SSLContext, certificate: Path) -> None:
        key = self.key_path or certificate
        for path in (certificate, key):
            _read(path)
        asked = False

        def give_password() -> str:
            # Without this OpenSSL would ask at the terminal.
            nonlocal asked
            asked = True
            return self.key_password

        try:
            context.load_cert_chain(certificate, key, give_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            if asked:
                raise TlsFilesError(
                    f"{key} is encrypted, and its password is missing or wrong: correct key_password (commands:"
                    " DELAYMQ_TLS_KEY_PASSWORD)"
                ) from error
            why = getattr(error, "reason", None) or error
            if self.key_path is None:
                text = f"{certificate} does not contain a certificate and its private key in PEM format ({why})"
                raise TlsFilesError(f"{text}: add the key, or specify its file") from error
            text = f"{certificate} and {key} are not a certificate and its private key in PEM format ({why})"
            raise TlsFilesError(f"{text}: specify files that belong together") from error


class TlsFilesError(ClientError):
    """A file of TlsOptions cannot be used."""

    def __init__(self, text: str) -> None:
        super().__init__(f"TLS: {text}")


def _read(path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise TlsFilesError(f"{path} cannot be read: {error.strerror}") from error
