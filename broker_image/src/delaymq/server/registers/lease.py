"""Register in a Lease of Kubernetes, which the operator creates. To be imported lazily.

`resourceVersion` is the precondition of each write, together with the object's uid. The API server decides by these
only, not by the times in the Lease.

A write is a PATCH, and not a PUT: PUT is idempotent in HTTP, so libraries and proxies may repeat it after a lost
response, and the repetition would be rejected with a conflict although the first one took place.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Final

from delaymq.replication import Record
from delaymq.server.registers.api_server import ApiObject, Status
from delaymq.server.registers.http_requests import Reply, RequestError
from delaymq.server.registers.lease_object import LeaseError, LeaseObject
from delaymq.server.registers.register import (
    Conflict,
    Content,
    Outcome,
    RegisterError,
    Unknown,
    Written,
)
from delaymq.server.registers.service_account import ServiceAccount

LEASES: Final = "coordination.k8s.io/v1/leases"


class LeaseRegister:
    """Register in one Lease."""

    def __init__(
        self,
        url: str,
        namespace: str,
        name: str,
        account: ServiceAccount,
        *,
        lease_s: int,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        """`url` is that of the API server. `lease_s` and `now` are only shown to people."""
        self._object = ApiObject(url, LEASES, namespace, name, account)
        self._lease_s = lease_s
        self._now = now
        self._seen: LeaseObject | None = None

    async def read(self, timeout_s: float) -> Content:
        """See Register."""
        try:
            reply = await self._object.read(timeout_s)
            if reply.status != 200:
                raise self._rejection(reply, "get")
            lease = self._lease(reply)
        except RequestError as error:
            raise RegisterError(f"cannot read {self._title}: {error}") from error
        self._seen = lease
        return Content(lease.version, lease.record)

    async def write(self, record: Record, expected: str, timeout_s: float) -> Outcome:
        """See Register."""
        seen = self._seen
        if seen is None or seen.version != expected:
            # Not sent: a version that is not the newest one seen is outdated.
            return Conflict()
        patch = seen.patch(record, lease_s=self._lease_s, now=self._now())
        try:
            reply = await self._object.patch(patch, timeout_s)
            if reply.status == 409 and Status.of(reply).reason == "Conflict":
                return Conflict()
            if reply.status != 200:
                raise self._rejection(reply, "patch")
            written = self._lease(reply)
            if written.record != record or written.version == expected:
                raise RequestError("the API server stored another record: is there an admission webhook for Leases?")
        except (RequestError, RegisterError) as error:
            return Unknown(f"{self._title}: {error}")
        if self._seen is seen:
            self._seen = written
        return Written(written.version)

    async def close(self) -> None:
        """See Register."""
        await self._object.close()

    @property
    def _title(self) -> str:
        return f"the Lease {self._object.namespace}/{self._object.name}"

    def _lease(self, reply: Reply) -> LeaseObject:
        try:
            return LeaseObject(reply.json(), self._object.namespace, self._object.name)
        except LeaseError as error:
            raise RequestError(str(error)) from error

    def _rejection(self, reply: Reply, verb: str) -> Exception:
        status = Status.of(reply)
        if (reply.status, status.reason) == (404, "NotFound") and status.is_about(self._object.name):
            what = "does not exist" if self._seen is None else "was deleted"
            return RegisterError(
                f"{self._title} {what}: the operator creates it for a group with replicas; do not create it by hand"
            )
        return self._object.rejection(reply, verb)
