"""TLS to brokers and NameServers: which certificates are trusted, and which one this side shows."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from delaymq.client.errors import ClientError


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """Files are read at each new connection: what was renewed counts from then on."""

    ca_path: Path | None = None
    """Issuers that are trusted, PEM; None: those of the system."""
    certificate_path: Path | None = None
    """The certificate that servers are shown which ask for one, PEM, with those that issued it."""
    key_path: Path | None = None
    """Its private key, PEM; None: in the certificate's file."""
    key_password: str = field(default="", repr=False)
    """What the key is encrypted with."""
    server_name: str = ""
    """The name that servers' certificates must have; empty: the host of the address that is connected to. Brokers are
    connected to by the addresses that NameServers tell, mostly numbers: name here what their certificates have."""
    insecure: bool = False
    """Whatever certificate the server has is taken, as by RocketMQ's clients unless tls.client.authServer=true: nobody
    can listen, but somebody could pass for the server."""

    def context(self) -> ssl.SSLContext:
        """For connections from now on. Raises TlsFilesError; reading the system's issuers takes some ms."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca_path is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        else:
            _read(self.ca_path)
            try:
                context.load_verify_locations(self.ca_path)
            except (ssl.SSLError, OSError) as error:
                raise TlsFilesError(f"{self.ca_path} has no certificates in PEM") from error
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
                raise TlsFilesError(f"{key} is encrypted, with another password than key_password") from error
            why = getattr(error, "reason", None) or error
            raise TlsFilesError(f"{certificate} and {key} are no certificate with its key in PEM ({why})") from error


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
