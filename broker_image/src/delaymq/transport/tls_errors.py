"""What went wrong with TLS, as sentences that say which side wanted what."""

import ssl
from collections.abc import Mapping
from typing import Final

_NO_TLS: Final = "the peer does not speak TLS here: connect without TLS, or have it serve TLS (tls.server.mode)"
_CLOSED: Final = (
    "the peer closed the connection instead of a TLS handshake: it may serve no TLS (tls.server.mode=disabled, or no"
    " certificate)"
)
_UNTRUSTED: Final = "who issued the peer's certificate is not trusted here: name the issuer's certificate as trusted"
_WRONG_NAME: Final = (
    "the peer's certificate is for another name ({}): connect by a name that it has, or state the expected name"
)

# OpenSSL's codes of a certificate that was looked at here.
_VERIFICATION: Final[Mapping[int, str]] = {
    9: "the peer's certificate is not valid yet: compare the clocks",
    10: "the peer's certificate has expired: have it renewed",
    18: f"the peer's certificate is self-signed; {_UNTRUSTED}",
    19: _UNTRUSTED,
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    26: "the peer's certificate is not made for this purpose (extended key usage)",
    62: _WRONG_NAME,
    64: _WRONG_NAME,
}
# OpenSSL's reasons; an ALERT is what the other side says.
_REASONS: Final[Mapping[str, str]] = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "HTTP_REQUEST": "the peer speaks HTTP, which has a port of its own",
    "UNEXPECTED_EOF_WHILE_READING": _CLOSED,
    "UNSUPPORTED_PROTOCOL": "the peer speaks only TLS older than 1.2",
    "NO_PROTOCOLS_AVAILABLE": "there is no version of TLS that both sides speak",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer and this side have no version of TLS in common (1.2 and 1.3 here)",
    "NO_SHARED_CIPHER": "the peer and this side have no cipher in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer refused the handshake: no cipher in common, or it wants a certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the client showed no certificate, and one is required (tls.server.need.client.auth=require)"
    ),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a certificate of this side: configure certificate and key",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not trust who issued the certificate of this side",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer does not accept the certificate of this side (issuer, name or date)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer does not accept the certificate of this side",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer says that the certificate of this side has expired",
    "TLSV1_ALERT_DECRYPT_ERROR": "the peer could not verify the signature of this side's certificate",
}
MAX_CHARACTERS: Final = 200
"""Of a text that OpenSSL made, perhaps of what the peer sent."""


def sentence(error: BaseException) -> str:
    """What `error` means; also for errors of sockets during a handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        known = _VERIFICATION.get(error.verify_code)
        return (known or "the peer's certificate is not accepted: {}").format(_shown(error.verify_message))
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", f"TLS failed: {_shown(error.reason or str(error))}")
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return "the TLS handshake was not done in time"
    if isinstance(error, ConnectionError):
        return _CLOSED
    return _shown(str(error)) or type(error).__name__


def _shown(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:MAX_CHARACTERS])
