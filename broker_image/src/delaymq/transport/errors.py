"""Transport errors that callers handle."""


class TransportError(Exception):
    """Base class of transport errors; `address` is the peer's `host:port`."""

    def __init__(self, address: str, text: str) -> None:
        super().__init__(f"{address}: {text}")
        self.address = address


class ConnectError(TransportError):
    """The connection could not be established, and nothing was sent."""


class ConnectionClosedError(TransportError):
    """The connection ended. An open request may or may not have been handled."""


class RequestTimeoutError(TransportError):
    """No response arrived in time; the request may or may not have been handled."""

    def __init__(self, address: str, code: int, timeout_ms: int) -> None:
        super().__init__(address, f"no response to request {code} within {timeout_ms} ms")
        self.code = code
        self.timeout_ms = timeout_ms


class TooManyRequestsError(TransportError):
    """The peer is behind: too many requests are open, or it does not read what is sent to it. Nothing was sent."""
