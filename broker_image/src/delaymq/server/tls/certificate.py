"""Parser of a certificate's expiry time, which Python's ssl module returns only for certificates of peers.

A certificate (RFC 5280, 4.1) is SEQUENCE { tbs SEQUENCE { [0] version?, serial, algorithm, issuer, validity
SEQUENCE { notBefore, notAfter }, … }, … }, in DER.
"""

import datetime
import ssl
from typing import Final

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_TIME_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""Formats of UTCTime and GeneralizedTime by their tags."""
_BEFORE_VALIDITY: Final = 3
"""Number of elements before the validity: serial, algorithm, issuer."""


class CertificateError(ValueError):
    """Invalid certificate; the text states the reason."""


def ends_at_s(pem: bytes) -> int:
    """Return the expiry time (s since 1970) of the first certificate in a PEM text; raise CertificateError."""
    text = pem.decode("ascii", errors="replace")
    begin = text.find(_BEGIN)
    end = text.find(_END, begin)
    if begin < 0 or end < 0:
        raise CertificateError("no PEM certificate found")
    try:
        _, certificate, _ = _element(ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)]), _SEQUENCE)
        _, rest, _ = _element(certificate, _SEQUENCE)
        tag, _, behind = _element(rest)
        rest = behind if tag == _VERSION else rest
        for _ in range(_BEFORE_VALIDITY):
            _, _, rest = _element(rest)
        _, validity, _ = _element(rest, _SEQUENCE)
        _, _, rest = _element(validity)
        tag, not_after, _ = _element(rest)
        moment = datetime.datetime.strptime(not_after.decode("ascii"), _TIME_FORMATS[tag])
    except (IndexError, KeyError, ValueError) as error:
        raise CertificateError("cannot read the expiry time") from error
    return int(moment.replace(tzinfo=datetime.UTC).timestamp())


def _element(data: bytes, wanted: int | None = None) -> tuple[int, bytes, bytes]:
    """Return tag and content of the first element, and the remaining data."""
    tag, length, at = data[0], data[1], 2
    if wanted is not None and tag != wanted:
        raise CertificateError(f"tag {tag:#x} instead of {wanted:#x}")
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if at + length > len(data):
        raise CertificateError("the data is truncated")
    return tag, data[at : at + length], data[at + length :]
