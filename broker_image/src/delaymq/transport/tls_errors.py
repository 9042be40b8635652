"""TLS errors as sentences that state the problem from this side's view."""

import ssl
from collections.abc import Mapping
from typing import Final

_NO_TLS: Final = "the peer does not support TLS here: connect without TLS, or enable TLS at the peer (tls.server.mode)"
_CLOSED: Final = (
    "the peer closed the connection instead of completing a TLS handshake: it may not serve TLS"
    " (tls.server.mode=disabled, or no certificate)"
)
_UNTRUSTED: Final = "the issuer of the peer's certificate is not trusted: add its certificate to the trusted ones"
_WRONG_NAME: Final = (
    "the peer's certificate is for another name ({}): connect by a name in it, or configure the expected name"
)

_VERIFICATION: Final[Mapping[int, str]] = {
    9: "the peer's certificate is not valid yet: compare the clocks",
    10: "the peer's certificate has expired: renew it",
    18: f"the peer's certificate is self-signed; {_UNTRUSTED}",
    19: _UNTRUSTED,
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    26: "the peer's certificate is not valid for this purpose (extended key usage): use another certificate",
    62: _WRONG_NAME,
    64: _WRONG_NAME,
}
"""OpenSSL's error codes of the verification on this side."""
_REASONS: Final[Mapping[str, str]] = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "HTTP_REQUEST": "the peer sent an HTTP request: use the HTTP port (httpPort)",
    "UNEXPECTED_EOF_WHILE_READING": _CLOSED,
    "UNSUPPORTED_PROTOCOL": "the peer supports only TLS versions below 1.2: enable TLS 1.2 or 1.3 at the peer",
    "NO_PROTOCOLS_AVAILABLE": "no version of TLS is enabled on both sides",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer and this side have no version of TLS in common (this side: 1.2 and 1.3)",
    "NO_SHARED_CIPHER": "the peer and this side have no cipher in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer rejected the handshake: no cipher in common, or no certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the client presented no certificate, but one is required (tls.server.need.client.auth=require)"
    ),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a certificate from this side: configure one and its key",
    "TLSV1_ALERT_UNKNOWN_CA": (
        "the peer does not trust the issuer of this side's certificate: add the issuer to the peer's trusted ones"
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer does not accept this side's certificate (issuer, name or date)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer does not accept this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer reports that this side's certificate has expired: renew it",
    "TLSV1_ALERT_DECRYPT_ERROR": "the peer could not verify the signature of this side's certificate",
}
"""Texts for OpenSSL's reasons; an ALERT was sent by the peer."""
MAX_CHARACTERS: Final = 200
"""Maximum length of a text from OpenSSL, which may contain data from the peer."""


def sentence(error: BaseException) -> str:
    """Return the meaning of `error`, including errors of sockets during a handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        known = _VERIFICATION.get(error.verify_code)
        return (known or "the peer's certificate is not accepted: {}").format(_shown(error.verify_message))
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", f"TLS failed: {_shown(error.reason or str(error))}")
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return "the TLS handshake timed out"
    if isinstance(error, ConnectionError):
        return _CLOSED
    return _shown(str(error)) or type(error).__name__


def _shown(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:MAX_CHARACTERS])
