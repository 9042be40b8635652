"""Certificate of the server of a TLS connection, as either side knows it.

Both sides can include its hash in a proof. A peer in the middle, which has another certificate, cannot relay the proof
then, even if the client verifies no certificates (RFC 5929, tls-server-end-point).
"""

import asyncio
import hashlib
import ssl


class ServerContext(ssl.SSLContext):
    """Context of a server that knows its own certificate, which Python's contexts do not reveal."""

    certificate_hash: bytes = b""
    """SHA-256 of the certificate in DER."""

    def set_certificate(self, pem: bytes) -> None:
        """Set the certificate from the first one of a PEM file. ValueError if there is none."""
        _, begin, rest = pem.partition(b"-----BEGIN CERTIFICATE-----")
        body, end, _ = rest.partition(b"-----END CERTIFICATE-----")
        self.certificate_hash = hashlib.sha256(ssl.PEM_cert_to_DER_cert((begin + body + end).decode("ascii"))).digest()


class ClientContext(ssl.SSLContext):
    """Context of a client that expects the same name in the certificates of all servers."""

    server_name: str = ""
    """The expected name; empty: the host of the server's address."""


def common_name(transport: asyncio.BaseTransport) -> str:
    """Return the common name of the peer's verified certificate.

    Empty without TLS, without a certificate, and if the certificate does not have exactly one common name.
    """
    certificate = transport.get_extra_info("peercert") or {}
    found = [value for part in certificate.get("subject", ()) for attribute, value in part if attribute == "commonName"]
    return found[0] if len(found) == 1 else ""


def server_certificate_hash(transport: asyncio.BaseTransport) -> bytes:
    """Return the SHA-256 of the server's certificate; empty without TLS.

    RuntimeError if it is unknown, so that no proof omits it.
    """
    tls = transport.get_extra_info("ssl_object")
    if tls is None:
        return b""
    if tls.server_side:
        found: bytes = getattr(tls.context, "certificate_hash", b"")
    else:
        certificate = tls.getpeercert(binary_form=True)
        found = hashlib.sha256(certificate).digest() if certificate else b""
    if not found:
        raise RuntimeError("the certificate of a TLS connection is unknown")
    return found
