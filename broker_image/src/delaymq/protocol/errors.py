"""The two ways in which a peer's bytes can be wrong."""


class ProtocolError(Exception):
    """The bytes are no frame: nothing behind them can be trusted, so the connection is closed."""


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
