"""Register in a Lease of Kubernetes, which the operator creates. To be imported lazily.

`resourceVersion` is the precondition of each write, together with the object's uid. The API server decides by these
only, not by the times in the Lease.

A write is a PATCH, and not a PUT: PUT is idempotent in HTTP, so libraries and proxies may repeat it after a lost
response, and the repetition would be rejected with a conflict although the first one took place.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Final

import msgspec

from delaymq.replication import Record
from delaymq.server.registers.http_requests import HttpRequests, Reply, RequestError
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

FIELD_MANAGER: Final = "delaymq-broker"


class _Details(msgspec.Struct):
    name: str = ""
    kind: str = ""


class _Status(msgspec.Struct):
    """An error of the API server."""

    kind: str
    reason: str = ""
    message: str = ""
    details: _Details | None = None


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
        self._url = f"{url}/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        self._namespace = namespace
        self._name = name
        self._account = account
        self._lease_s = lease_s
        self._now = now
        self._seen: LeaseObject | None = None
        self._requests = HttpRequests()

    async def read(self, timeout_s: float) -> Content:
        """See Register. Without `resourceVersion`, a GET is a quorum read."""
        try:
            reply = await self._send("GET", self._url, timeout_s, None)
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
            reply = await self._send("PATCH", f"{self._url}?fieldManager={FIELD_MANAGER}", timeout_s, patch)
            if reply.status == 409 and self._status(reply).reason == "Conflict":
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
        await self._requests.close()

    @property
    def _title(self) -> str:
        return f"the Lease {self._namespace}/{self._name}"

    async def _send(self, method: str, url: str, timeout_s: float, patch: object) -> Reply:
        loop = asyncio.get_running_loop()
        started = loop.time()
        # Threads may all wait for a slow disk, so they are used only after a change.
        access = self._account.current()
        if access is None:
            try:
                async with asyncio.timeout(timeout_s):
                    access = await loop.run_in_executor(None, self._account.refresh)
            except TimeoutError as error:
                raise RequestError(f"the service account was not read within {timeout_s:.1f} s") from error
        token, tls = access
        reply = await self._requests.send(
            method,
            url,
            timeout_s=max(0.0, timeout_s - (loop.time() - started)),
            tls=tls,
            body=None if patch is None else msgspec.json.encode(patch),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
            is_read=method == "GET",
        )
        if reply.status == 401:
            self._account.forget_token()
        return reply

    def _lease(self, reply: Reply) -> LeaseObject:
        try:
            return LeaseObject(reply.json(), self._namespace, self._name)
        except LeaseError as error:
            raise RequestError(str(error)) from error

    @staticmethod
    def _status(reply: Reply) -> _Status:
        """Return the error of the API server; an empty one for other responses, such as those of proxies."""
        try:
            status = msgspec.json.decode(reply.body, type=_Status)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _Status("")
        return status if status.kind == "Status" else _Status("")

    def _rejection(self, reply: Reply, verb: str) -> Exception:
        status = self._status(reply)
        said = f"status {reply.status}" + (f": {status.message[:300]}" if status.message else "")
        match reply.status, status.reason:
            case 401, _:
                return RequestError(f"{said}: the API server rejects the token of the pod's service account")
            case 403, "Forbidden":
                return RequestError(
                    f"{said}: a Role in the namespace {self._namespace} has to allow the verb {verb} of leases in the"
                    f" API group coordination.k8s.io with the name {self._name}, and a RoleBinding has to bind it"
                )
            case 404, "NotFound" if status.details is not None and status.details.name == self._name:
                what = "does not exist" if self._seen is None else "was deleted"
                return RegisterError(
                    f"{self._title} {what}: the operator creates it for a group with replicas; do not create it by hand"
                )
            case _:
                return RequestError(said)
