"""Errors in a peer's bytes: a broken stream, or a request to be refused."""


class ProtocolError(Exception):
    """The bytes are no frame: nothing behind them can be trusted, so the connection is closed."""


class TlsHandshakeError(ProtocolError):
    """In the place of a frame the peer begins a TLS handshake; `received` is what came of it, empty behind frames."""

    def __init__(self, received: bytes) -> None:
        super().__init__("the peer starts a TLS handshake, and TLS is not on here: connect without TLS")
        self.received = received


class RequestError(Exception):
    """The frame is sound but its content is not acceptable: the peer gets `code` and `remark` as its answer."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"{self.remark} (response code {self.code})"


class FastJsonError(ValueError):
    """The text is not JSON, not even as fastjson writes it; the message says where it stops being readable."""
