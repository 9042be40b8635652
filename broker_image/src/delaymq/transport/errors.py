"""Errors between two peers, as far as callers react to them."""


class TransportError(Exception):
    """Base of all that follows; `address` is the peer's `host:port`."""

    def __init__(self, address: str, text: str) -> None:
        super().__init__(f"{address}: {text}")
        self.address = address


class ConnectError(TransportError):
    """No connection came about: nothing was sent."""


class ConnectionClosedError(TransportError):
    """The connection ended. A request that was under way may or may not have been handled."""


class RequestTimeoutError(TransportError):
    """No answer came in time; the request may or may not have been handled."""

    def __init__(self, address: str, code: int, timeout_ms: int) -> None:
        super().__init__(address, f"no answer to request {code} within {timeout_ms} ms")
        self.code = code
        self.timeout_ms = timeout_ms


class TooManyRequestsError(TransportError):
    """The peer is behind: too many requests are open, or it does not read what it is sent. Nothing was sent."""
