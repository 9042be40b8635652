"""Requests of a pod to the API server, with its service account, and the errors in its responses. Import lazily."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from delaymq.server.registers.http_requests import HttpRequests, Reply, RequestError
from delaymq.server.registers.service_account import ServiceAccount

FIELD_MANAGER: Final = "delaymq-broker"
_MAX_MESSAGE_CHARS: Final = 300


class _Details(msgspec.Struct):
    name: str = ""
    kind: str = ""


class Status(msgspec.Struct):
    """An error of the API server."""

    kind: str
    reason: str = ""
    message: str = ""
    details: _Details | None = None

    @classmethod
    def of(cls, reply: Reply) -> Status:
        """Return the error of the API server; an empty one for other responses, such as those of proxies."""
        try:
            status = msgspec.json.decode(reply.body, type=cls)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return cls("")
        return status if status.kind == "Status" else cls("")

    def is_about(self, name: str) -> bool:
        """Return whether it names this object."""
        return self.details is not None and self.details.name == name


class ApiObject:
    """One object of the API server. Requests are sent once, with the token and the CA of the service account."""

    def __init__(self, url: str, path: str, namespace: str, name: str, account: ServiceAccount) -> None:
        """`url` is that of the API server, `path` the group, version and plural: coordination.k8s.io/v1/leases."""
        self.namespace = namespace
        self.name = name
        self._group, version, self._plural = path.split("/")
        self._url = f"{url}/apis/{self._group}/{version}/namespaces/{namespace}/{self._plural}/{name}"
        self._account = account
        self._requests = HttpRequests()

    async def read(self, timeout_s: float) -> Reply:
        """Return the response to a GET, which is a quorum read without `resourceVersion`.

        Raises RequestError or RegisterError.
        """
        return await self._send("GET", self._url, timeout_s, None)

    async def patch(self, patch: object, timeout_s: float) -> Reply:
        """Return the response to a JSON merge patch. Raises RequestError or RegisterError."""
        return await self._send("PATCH", f"{self._url}?fieldManager={FIELD_MANAGER}", timeout_s, patch)

    async def close(self) -> None:
        """Close all connections."""
        await self._requests.close()

    def rejection(self, reply: Reply, verb: str) -> RequestError:
        """Return the error for a response other than 200."""
        status = Status.of(reply)
        said = f"status {reply.status}" + (f": {status.message[:_MAX_MESSAGE_CHARS]}" if status.message else "")
        match reply.status, status.reason:
            case 401, _:
                return RequestError(f"{said}: the API server rejects the token of the pod's service account")
            case 403, "Forbidden":
                return RequestError(
                    f"{said}: a Role in the namespace {self.namespace} has to allow the verb {verb} of {self._plural}"
                    f" in the API group {self._group} with the name {self.name}, and a RoleBinding has to bind it"
                )
            case _:
                return RequestError(said)

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
