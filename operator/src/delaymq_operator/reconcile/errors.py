"""Errors of the ports; adapters turn their libraries' errors into these."""

from __future__ import annotations


class KubeError(Exception):
    """The API server said no, or could not be reached (then `status` is 0).

    `reason` is Kubernetes' word for it (Conflict, Invalid, Forbidden …), `message` its sentence.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason or 'Kubernetes'} ({status}): {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def conflict(self) -> bool:
        """Somebody else was faster: read again, decide again."""
        return self.status == 409

    @property
    def forbidden(self) -> bool:
        """Not allowed: by access rules, a quota, or because a field may not be changed."""
        return self.status == 403

    @property
    def invalid(self) -> bool:
        """The object itself is wrong; sending it again is of no use."""
        return self.status in (400, 422)

    @property
    def absent(self) -> bool:
        """There is no such object."""
        return self.status == 404


class BrokerUnreachable(Exception):  # noqa: N818  (a state, and said so)
    """A broker or NameServer did not answer, or not in time; `address` is host:port."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(f"{address}: {problem}")
        self.address = address
        self.problem = problem


class BrokerRefused(Exception):  # noqa: N818
    """A broker or NameServer answered with an error; `code` is its word or number for it."""

    def __init__(self, address: str, code: str, message: str) -> None:
        super().__init__(f"{address}: {message} ({code})")
        self.address = address
        self.code = code
        self.message = message
