"""Errors in the bytes of a peer: an invalid stream, or an invalid request."""


class ProtocolError(Exception):
    """The bytes are not a frame; the bytes that follow cannot be trusted, so the connection is closed."""


class TlsHandshakeError(ProtocolError):
    """The peer starts a TLS handshake in place of a frame; `received` is its start, empty after other frames."""

    def __init__(self, received: bytes) -> None:
        super().__init__("the peer starts a TLS handshake, but TLS is disabled: connect without TLS")
        self.received = received


class RequestError(Exception):
    """The frame is valid but its content is not; the peer gets a response with `code` and `remark`."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"{self.remark} (response code {self.code})"


class FastJsonError(ValueError):
    """The text is neither JSON nor fastjson's dialect; the message states the position of the error."""
