"""Address of a group's master in EndpointSlices of Kubernetes, which the operator creates. To be imported lazily.

The Service of a group with replicas has no selector: its EndpointSlice has one endpoint, the master. A new master
writes its own address. The annotation `delaymq.io/epoch` states the epoch of the writer: an older master, whose request
arrives late, never replaces a newer one. As for the Lease, a write is a PATCH with `uid` and `resourceVersion`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

import msgspec

from delaymq.server.registers.api_server import ApiObject, Status
from delaymq.server.registers.http_requests import RequestError
from delaymq.server.registers.register import RegisterError
from delaymq.server.registers.service_account import ServiceAccount
from delaymq.throttled_log import fields

ENDPOINT_SLICES: Final = "discovery.k8s.io/v1/endpointslices"
EPOCH_ANNOTATION: Final = "delaymq.io/epoch"
FIRST_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 2.0
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]

_logger = logging.getLogger(__name__)


class _Metadata(msgspec.Struct, rename="camel"):
    name: _Text
    namespace: _Text
    uid: _Text
    resource_version: _Text
    annotations: dict[str, str] | None = None


class _Endpoint(msgspec.Struct):
    addresses: list[str]


class _EndpointSlice(msgspec.Struct, rename="camel"):
    kind: str
    metadata: _Metadata
    address_type: str
    endpoints: list[_Endpoint] | None = None

    @property
    def epoch(self) -> int:
        """Epoch of the last writer; 0 if no member has written it yet, or if the annotation is no number."""
        text = (self.metadata.annotations or {}).get(EPOCH_ANNOTATION, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else 0

    @property
    def addresses(self) -> list[str]:
        return [address for endpoint in self.endpoints or () for address in endpoint.addresses]


class EndpointSlices:
    """The slices of one group's Services. Call `publish` whenever this member becomes master, and `stop` at the end."""

    def __init__(
        self,
        url: str,
        namespace: str,
        names: Sequence[str],
        address: str,
        account: ServiceAccount,
        *,
        timeout_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`url` is that of the API server, `address` the IP address of this pod."""
        self._address = str(ipaddress.ip_address(address))
        self._objects = [ApiObject(url, ENDPOINT_SLICES, namespace, name, account) for name in names]
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._problems: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        """Why clients may not reach this master by the address of its group yet; empty: they do."""
        return "; ".join(self._problems.values())

    def publish(self, epoch: int) -> None:
        """Write the address in the background, until it is written or a later epoch is found."""
        self._cancel()
        self._problems = {each.name: f"{_title(each)}: not written yet" for each in self._objects}
        self._task = asyncio.get_running_loop().create_task(self._publish_all(epoch), name="publish the address")

    async def stop(self) -> None:
        """Write no longer, and close all connections."""
        task = self._task
        self._cancel()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)
        for each in self._objects:
            await each.close()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _publish_all(self, epoch: int) -> None:
        await asyncio.gather(*(self._publish(each, epoch) for each in self._objects))

    async def _publish(self, target: ApiObject, epoch: int) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            try:
                said = await self._write(target, epoch)
            except (RequestError, RegisterError) as error:
                problem = f"{_title(target)}: {error}"
                if self._problems.get(target.name) != problem:
                    _logger.warning("the address of this master was not published: %s", problem)
                self._problems[target.name] = problem
                await self._sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
                continue
            if said:
                _logger.info("%s: %s", _title(target), said, extra=fields(epoch=epoch, address=self._address))
                self._problems.pop(target.name, None)
                return
            await self._sleep(FIRST_BACKOFF_S)

    async def _write(self, target: ApiObject, epoch: int) -> str:
        """Return the result; empty if another writer was faster. Raises RequestError or RegisterError."""
        reply = await target.read(self._timeout_s)
        if reply.status != 200:
            raise target.rejection(reply, "get")
        found = _parse(reply.json(), target)
        if found.epoch > epoch:
            return f"left to the master of epoch {found.epoch}"
        if found.epoch == epoch and found.addresses == [self._address]:
            return "has the address of this master"
        version = ipaddress.ip_address(self._address).version
        if found.address_type != f"IPv{version}":
            raise RequestError(f"it has the addressType {found.address_type}, and this pod the address {self._address}")
        reply = await target.patch(_patch(found, epoch, self._address), self._timeout_s)
        if reply.status == 409 and Status.of(reply).reason == "Conflict":
            return ""
        if reply.status != 200:
            raise target.rejection(reply, "patch")
        written = _parse(reply.json(), target)
        if written.epoch != epoch or written.addresses != [self._address]:
            raise RequestError("the API server stored another address: is there an admission webhook?")
        return "has the address of this master now"


def _patch(found: _EndpointSlice, epoch: int, address: str) -> dict[str, Any]:
    """Return a JSON merge patch that replaces the endpoints of exactly this object, and keeps its ports and labels."""
    meta = {
        "uid": found.metadata.uid,
        "resourceVersion": found.metadata.resource_version,
        "annotations": {EPOCH_ANNOTATION: str(epoch)},
    }
    return {"metadata": meta, "endpoints": [{"addresses": [address], "conditions": {"ready": True}}]}


def _parse(content: object, target: ApiObject) -> _EndpointSlice:
    try:
        found = msgspec.convert(content, _EndpointSlice)
    except msgspec.ValidationError as error:
        raise RequestError(f"the response is no EndpointSlice: {error}") from error
    meta = found.metadata
    if (found.kind, meta.namespace, meta.name) != ("EndpointSlice", target.namespace, target.name):
        raise RequestError(f"the response is the {found.kind[:100]} {meta.namespace}/{meta.name}")
    return found


def _title(target: ApiObject) -> str:
    return f"the EndpointSlice {target.namespace}/{target.name}"
