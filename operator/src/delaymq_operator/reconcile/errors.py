"""Errors of the ports; adapters turn their libraries' errors into these."""

from __future__ import annotations


class KubeError(Exception):
    """The API server rejected a request, or could not be reached (then `status` is 0).

    `reason` is Kubernetes' reason (Conflict, Invalid, Forbidden …), `message` its sentence.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason or 'Kubernetes'} ({status}): {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def conflict(self) -> bool:
        """Whether the object was changed concurrently: read it and decide again."""
        return self.status == 409

    @property
    def forbidden(self) -> bool:
        """Whether the request is not permitted: by RBAC, a quota, or an immutable field."""
        return self.status == 403

    @property
    def invalid(self) -> bool:
        """Whether the object itself is invalid, so that a retry is useless."""
        return self.status in (400, 422)

    @property
    def absent(self) -> bool:
        """Whether the object does not exist."""
        return self.status == 404


class BrokerUnreachable(Exception):  # noqa: N818  (a state, and said so)
    """A broker or NameServer did not respond, or not in time; `address` is host:port."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(f"{address}: {problem}")
        self.address = address
        self.problem = problem


class BrokerRefused(Exception):  # noqa: N818
    """A broker or NameServer responded with an error; `code` is its response code."""

    def __init__(self, address: str, code: str, message: str, *, absent: bool = False) -> None:
        super().__init__(f"{address}: {message} ({code})")
        self.address = address
        self.absent = absent
        """Whether it does not have what was requested (HTTP status 404)."""
        self.code = code
        self.message = message
