"""Register in etcd 3.4 or newer, over its JSON gateway. To be imported lazily.

The key's `mod_revision` is the version; 0 states that the key does not exist. Leases of etcd are not used.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from delaymq.replication import Record
from delaymq.server.registers.http_requests import HttpRequests, Reply, RequestError
from delaymq.server.registers.record_text import decode, encode
from delaymq.server.registers.register import (
    Conflict,
    Content,
    Outcome,
    RegisterError,
    Unknown,
    Written,
)

NO_KEY: Final = "0"
TXN: Final = "kv/txn"
_NO_HEADERS: Final[Mapping[str, str]] = {}
_OLD_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
_ADVICE: Final = {
    "user name is empty": "set replicaRegisterUser and replicaRegisterPasswordFile",
    "authentication failed": "check replicaRegisterUser and its password",
    "CommonName of client": "with accounts, use a client certificate whose subject has no common name",
    "permission denied": "grant the user the permission `readwrite` for the key",
}


class _Header(msgspec.Struct):
    """Every response of etcd has one, also those whose other members have default values and are omitted."""

    cluster_id: str
    revision: str


class _KeyValue(msgspec.Struct):
    key: str
    mod_revision: str
    value: str = ""


class _Range(msgspec.Struct):
    kvs: list[_KeyValue] = []


class _RangeReply(msgspec.Struct):
    header: _Header
    kvs: list[_KeyValue] = []


class _Operation(msgspec.Struct):
    response_put: dict[str, object] | None = None
    response_range: _Range | None = None


class _TxnReply(msgspec.Struct):
    header: _Header
    responses: list[_Operation]
    succeeded: bool = False


Shape = TypeVar("Shape")
Framed = TypeVar("Framed", _RangeReply, _TxnReply)


class _TokenReply(msgspec.Struct):
    token: str


class _Problem(msgspec.Struct):
    message: str = ""
    error: str = ""


class _RejectedError(RequestError):
    """An error response."""

    def __init__(self, status: int, message: str) -> None:
        text = f"status {status}: {message}" if message else f"status {status}"
        advice = next((f": {advice}" for known, advice in _ADVICE.items() if known in message), "")
        super().__init__(text + advice)
        self.is_token_invalid = status == 401 or any(text in message for text in _OLD_TOKEN)


class EtcdRegister:
    """Register in one key of etcd.

    A read tries each endpoint until one responds. A write is sent to one endpoint only: that of the last success.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        key: str,
        *,
        tls: ssl.SSLContext | None = None,
        user: str = "",
        password: Callable[[], str] = str,
    ) -> None:
        """`endpoints` are URLs without a path. `password` may raise RegisterError; it is called in a thread."""
        self._endpoints = endpoints
        self._name = key
        self._key = b64encode(key.encode()).decode()
        self._tls = tls
        self._user = user
        self._password = password
        self._token = ""
        self._preferred = 0
        """Index of the endpoint for the next request."""
        self._cluster_id = ""
        self._requests = HttpRequests()

    async def read(self, timeout_s: float) -> Content:
        """See Register."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        problems = []
        count = len(self._endpoints)
        first = self._preferred
        for tried in range(count):
            index = (first + tried) % count
            try:
                # An endpoint that does not respond leaves time for the others.
                reply = await self._range(self._endpoints[index], (deadline - loop.time()) / (count - tried))
                content = self._content(reply.kvs)
            except RequestError as error:
                problems.append(f"{self._endpoints[index]}: {error}")
            else:
                self._preferred = index
                return content
        raise RegisterError(f"cannot read etcd: {'; '.join(problems)}")

    async def write(self, record: Record, expected: str, timeout_s: float) -> Outcome:
        """See Register."""
        value = b64encode(encode(record).encode()).decode()
        put = {"request_put": {"key": self._key, "value": value}}
        get = {"request_range": {"key": self._key}}
        body = {
            "compare": [{"key": self._key, "target": "MOD", "result": "EQUAL", "mod_revision": expected}],
            # The range states the new version, and is the evidence that etcd rejected the write.
            "success": [put, get],
            "failure": [get],
        }
        index = self._preferred
        try:
            return self._outcome(await self._call(self._endpoints[index], TXN, body, timeout_s, _TxnReply))
        except (RequestError, RegisterError) as error:
            self._preferred = (index + 1) % len(self._endpoints)
            return Unknown(f"{self._endpoints[index]}: {error}")

    async def close(self) -> None:
        """See Register."""
        await self._requests.close()

    async def _range(self, endpoint: str, timeout_s: float) -> _RangeReply:
        body = {"key": self._key, "serializable": False}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            return await self._call(endpoint, "kv/range", body, timeout_s, _RangeReply)
        except _RejectedError as error:
            if not (self._user and error.is_token_invalid):
                raise
        return await self._call(endpoint, "kv/range", body, deadline - loop.time(), _RangeReply)

    def _content(self, kvs: Sequence[_KeyValue]) -> Content:
        if not kvs:
            return Content(NO_KEY, None)
        try:
            record = decode(b64decode(kvs[0].value, validate=True))
        except ValueError as error:
            raise RegisterError(f"the value of {self._name} in etcd is invalid: {error}") from error
        return Content(self._version(kvs), record)

    def _version(self, kvs: Sequence[_KeyValue]) -> str:
        if len(kvs) != 1 or kvs[0].key != self._key:
            raise RequestError("the response concerns another key")
        version = kvs[0].mod_revision
        if not (version.isascii() and version.isdigit() and len(version) < 20 and version[0] != "0"):
            raise RequestError(f"{version[:40]!r} is no revision")
        return version

    def _outcome(self, reply: _TxnReply) -> Outcome:
        match reply.succeeded, reply.responses:
            case True, [_Operation(response_put=dict()), _Operation(response_range=_Range(kvs))]:
                return Written(self._version(kvs))
            case False, [_Operation(response_put=None, response_range=_Range())]:
                return Conflict()
        raise RequestError("the response is not that of the transaction")

    async def _call(self, endpoint: str, path: str, body: object, timeout_s: float, shape: type[Framed]) -> Framed:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if self._user and not self._token:
            try:
                async with asyncio.timeout(timeout_s):
                    password = await loop.run_in_executor(None, self._password)
            except TimeoutError as error:
                raise RequestError(f"the password was not read within {timeout_s:.1f} s") from error
            account = {"name": self._user, "password": password}
            reply = await self._post(endpoint, "auth/authenticate", account, deadline - loop.time(), _NO_HEADERS)
            self._token = _decoded(reply, _TokenReply).token
        headers = {"Authorization": self._token} if self._token else _NO_HEADERS
        try:
            decoded = _decoded(await self._post(endpoint, path, body, deadline - loop.time(), headers), shape)
        except _RejectedError as error:
            if error.is_token_invalid:
                self._token = ""
            raise
        self._check_cluster(decoded.header.cluster_id)
        return decoded

    def _check_cluster(self, cluster_id: str) -> None:
        """Reject a member of another cluster, whose revisions have another meaning."""
        self._cluster_id = self._cluster_id or cluster_id
        if cluster_id != self._cluster_id:
            raise RequestError(
                f"the member belongs to the etcd cluster {cluster_id[:20]}, and others to {self._cluster_id[:20]}:"
                " correct replicaRegister; after a restore of etcd, restart the broker"
            )

    async def _post(
        self, endpoint: str, path: str, body: object, timeout_s: float, headers: Mapping[str, str]
    ) -> Reply:
        url = f"{endpoint}/v3/{path}"
        data = msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", **headers}
        reply = await self._requests.send(
            "POST", url, timeout_s=timeout_s, tls=self._tls, body=data, headers=headers, is_read=path != TXN
        )
        if reply.status != 200:
            raise _RejectedError(reply.status, _problem(reply))
        return reply


def _decoded(reply: Reply, shape: type[Shape]) -> Shape:
    try:
        return msgspec.convert(reply.json(), shape)
    except msgspec.ValidationError as error:
        raise RequestError(f"the response is not etcd's: {error}") from error


def _problem(reply: Reply) -> str:
    if reply.content_type == "text/plain":
        return reply.body[:200].decode("ascii", errors="replace").strip()
    try:
        problem = msgspec.json.decode(reply.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    return (problem.message or problem.error)[:200]
