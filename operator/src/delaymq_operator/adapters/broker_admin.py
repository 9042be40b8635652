"""Implementation of the port `BrokerAdmin`: brokers' HTTP by aiohttp, remoting of brokers and NameServers by the
client.

Connections end with each call, since an address can belong to another pod the next time, and since an open connection
to a lost node reports no failure.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from delaymq.api_types.base import Refusal
from delaymq.api_types.broker import (
    About,
    Decommissioned,
    Drain,
    DrainChange,
    DrainMode,
    NoDrain,
    Refuse,
    Remaining,
    Withdraw,
)
from delaymq.api_types.delay_settings import DelaySettings, TopicDelays, TopicDelaySettings
from delaymq.api_types.replication import Detachable, DetachBody, EpochBody, NoteBody, Replication, SwitchoverBody
from delaymq.client import Admin, Client, ClientError, ClientOptions, Credentials, RefusedError, TlsOptions
from delaymq.client import TopicConfig as ClientTopicConfig

from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import AdminAccount, Endpoint, ServerTrust, TopicConfig

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT_S: Final = 2.0
TIMEOUT_S: Final = 5.0
MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of an HTTP response; 1,000 delay levels take 300 KB."""
MAX_CONCURRENT_REQUESTS: Final = 32
"""Maximum number of concurrent calls, so that hundreds of unresponsive brokers do not exhaust the process's file
descriptors.
"""

MAX_CACHED_CONTEXTS: Final = 64
"""Maximum number of CAs whose TLS contexts are kept."""

_REPLICATION: Final = "/api/v1/replication"
_NOT_FOUND: Final = 404
_PAGE: Final = 1_000
"""Topics of one response: 300 KB."""

T = TypeVar("T")


class HttpBrokerAdmin:
    """Administers brokers by HTTP and remoting. Create it within a running loop, and call `close` at the end."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        timeout_ms = int(timeout_s * 1000)
        connect_ms = min(timeout_ms, int(CONNECT_TIMEOUT_S * 1000))
        self._options = ClientOptions(request_timeout_ms=timeout_ms, connect_timeout_ms=connect_ms)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    # HTTP.

    async def info(self, endpoint: Endpoint) -> About:
        """Return the state, settings and delays of a broker."""
        return await self._http(endpoint, "GET", "/api/v1/broker", About)

    async def remaining(self, endpoint: Endpoint) -> Remaining:
        """Return the numbers of undelivered and unconsumed messages."""
        return await self._http(endpoint, "GET", "/api/v1/remaining", Remaining)

    async def drain(self, endpoint: Endpoint, mode: DrainMode, lease_ms: int) -> Drain:
        """Set the drain mode: withdraw (routes declare the broker read-only), refuse (sends are rejected as well) or
        none.

        The mode ends when its lease expires.
        """
        change: DrainChange = NoDrain()
        if mode != "none":
            change = Withdraw(lease_ms=lease_ms) if mode == "withdraw" else Refuse(lease_ms=lease_ms)
        return await self._http(endpoint, "POST", "/api/v1/drain", Drain, change)

    async def decommission(self, endpoint: Endpoint) -> None:
        """Remove the broker from the routes permanently."""
        await self._http(endpoint, "POST", "/api/v1/decommission", Decommissioned)

    async def replication(self, endpoint: Endpoint) -> Replication | None:
        """Return a member's view of its group; None if the broker has no replicas."""
        try:
            return await self._http(endpoint, "GET", _REPLICATION, Replication)
        except BrokerRefused as error:
            if error.absent:
                return None
            raise

    async def switch_over(self, endpoint: Endpoint, target: str, epoch: int) -> None:
        """Let a master hand over to `target`."""
        order = SwitchoverBody(target=target, epoch=epoch)
        await self._http(endpoint, "POST", f"{_REPLICATION}/switchover", Replication, order)

    async def promote(self, endpoint: Endpoint, epoch: int) -> None:
        """Let a member become master although it may lack messages."""
        await self._http(endpoint, "POST", f"{_REPLICATION}/promote", Replication, EpochBody(epoch=epoch))

    async def detach(self, endpoint: Endpoint, master: Endpoint, member: str, epoch: int) -> None:
        """Let a member record that it is no candidate, and its master count it no longer."""
        path = f"{_REPLICATION}/prepare-detach"
        note = (await self._http(endpoint, "POST", path, Detachable, EpochBody(epoch=epoch))).note
        body = DetachBody(
            member=member, epoch=epoch, note=NoteBody(kind=note.kind, epoch=note.epoch, serial=note.serial)
        )
        await self._http(master, "POST", f"{_REPLICATION}/detach", Replication, body)

    async def delays(self, endpoint: Endpoint) -> dict[str, TopicDelays]:
        """Return delay settings and pending messages of all topics that have any, by name."""
        found: dict[str, TopicDelays] = {}
        after: str | None = ""
        while after is not None:
            query = urlencode({"pending": "true", "limit": _PAGE, "after": after})
            page = await self._http(endpoint, "GET", f"/api/v1/delay/settings?{query}", DelaySettings)
            found |= {each.topic: each for each in page.topics}
            after = page.next
        return found

    async def topic_delays(self, endpoint: Endpoint, topic: str) -> TopicDelays | None:
        """Return delay settings and pending messages of a topic; None without such a topic."""
        try:
            return await self._http(endpoint, "GET", _settings_path(topic), TopicDelays)
        except BrokerRefused as error:
            if error.code == "no_such_topic":
                return None
            raise

    async def set_topic_delays(self, endpoint: Endpoint, topic: str, settings: TopicDelaySettings) -> TopicDelays:
        """Replace the delay settings of a topic."""
        return await self._http(endpoint, "PUT", _settings_path(topic), TopicDelays, settings)

    # Remoting.

    async def set_settings(self, endpoint: Endpoint, settings: Mapping[str, str]) -> None:
        """Change settings of a running broker (request code 25)."""
        address = _address(endpoint.host, endpoint.broker_port)
        async with self._admin(address, account=endpoint.account, tls=endpoint.tls) as admin:
            await admin.update_broker_config(address, dict(settings))

    async def rule_versions(self, endpoint: Endpoint) -> Mapping[str, int]:
        """Return the version of the rules in force, by the path of each rule file on the broker or NameServer (request
        code 52).
        """
        address = _address(endpoint.host, endpoint.broker_port)
        async with self._admin(address, account=endpoint.account, tls=endpoint.tls) as admin:
            return {path: each.counter for path, each in (await admin.access_versions(address)).items()}

    async def topics(self, endpoint: Endpoint) -> dict[str, TopicConfig]:
        """Return all topics of a broker by name."""
        address = _address(endpoint.host, endpoint.broker_port)
        async with self._admin(address, account=endpoint.account, tls=endpoint.tls) as admin:
            found = await admin.topic_configs(address)
        return {name: TopicConfig(**asdict(one) | {"topic": name}) for name, one in found.items()}

    async def put_topic(self, endpoint: Endpoint, config: TopicConfig) -> None:
        """Create or change a topic on a broker."""
        address = _address(endpoint.host, endpoint.broker_port)
        async with self._admin(address, account=endpoint.account, tls=endpoint.tls) as admin:
            await admin.put_topic(address, ClientTopicConfig(**asdict(config)))

    async def delete_topic(self, endpoint: Endpoint, topic: str) -> None:
        """Delete a topic on a broker; an absent topic is not an error."""
        address = _address(endpoint.host, endpoint.broker_port)
        async with self._admin(address, account=endpoint.account, tls=endpoint.tls) as admin:
            await admin.delete_topic_on(address, topic)

    async def delete_route(
        self,
        addresses: tuple[str, ...],
        topic: str,
        *,
        cluster: str,
        account: AdminAccount | None = None,
        tls: ServerTrust | None = None,
    ) -> None:
        """Remove a topic of a cluster from the routes of all NameServers; an absent topic is not an error."""
        async with self._admin(*addresses, name_servers=addresses, account=account, tls=tls) as admin:
            await admin.delete_route(topic, cluster=cluster)

    async def orders(
        self, address: str, *, account: AdminAccount | None = None, tls: ServerTrust | None = None
    ) -> Mapping[str, str]:
        """Return the order configurations of a NameServer: topic → text."""
        async with self._admin(address, account=account, tls=tls) as admin:
            return await admin.orders(address)

    async def put_order(
        self,
        addresses: tuple[str, ...],
        topic: str,
        text: str | None,
        *,
        account: AdminAccount | None = None,
        tls: ServerTrust | None = None,
    ) -> None:
        """Set or (None) remove a topic's order configuration on all NameServers."""
        async with self._admin(*addresses, name_servers=addresses, account=account, tls=tls) as admin:
            if text is None:
                await admin.delete_order(topic)
            else:
                await admin.put_order(topic, text)

    # Implementation.

    @asynccontextmanager
    async def _admin(
        self,
        *asked: str,
        name_servers: tuple[str, ...] | None = None,
        account: AdminAccount | None = None,
        tls: ServerTrust | None = None,
    ) -> AsyncIterator[Admin]:
        address = ", ".join(asked)
        # Covers opening a connection and one concurrent request to each of `asked`.
        deadline_s = CONNECT_TIMEOUT_S + self._timeout_s
        async with self._turns:
            with _as_broker_errors(address, deadline_s):
                options = self._options if account is None else replace(self._options, credentials=_signing(account))
                if tls is not None:
                    options = replace(options, tls=TlsOptions(ca_pem=tls.ca, server_name=tls.name))
                async with asyncio.timeout(deadline_s), Client(name_servers, options) as client:
                    yield Admin(client)

    async def _http(self, endpoint: Endpoint, method: str, path: str, form: type[T], body: object = None) -> T:
        import aiohttp

        address = _address(endpoint.host, endpoint.http_port)
        headers = {"Authorization": f"Bearer {endpoint.token}"}
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._turns:
                url, tls = f"http://{address}{path}", {}
                if endpoint.https:
                    url, tls = f"https://{address}{path}", _https(endpoint, address)
                async with self._http_session().request(method, url, headers=headers, data=data, **tls) as answer:
                    content = await _read(answer, address)
        except TimeoutError as error:
            raise BrokerUnreachable(address, f"no response to {method} {path} within {self._timeout_s:g} s") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise BrokerUnreachable(address, f"its certificate is not accepted: {_why(error)}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise BrokerUnreachable(address, str(error) or type(error).__name__) from error
        if answer.status >= 300:
            raise _refusal(address, answer.status, content)
        try:
            return msgspec.json.decode(content, type=form)
        except msgspec.DecodeError as error:
            message = f"invalid response to {method} {path}: {error}"
            raise BrokerRefused(address, "bad_answer", message) from error

    def _http_session(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=MAX_CONCURRENT_REQUESTS, use_dns_cache=False),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _settings_path(topic: str) -> str:
    return f"/api/v1/delay/settings/topics/{quote(topic, safe='')}"


def _signing(account: AdminAccount) -> Credentials:
    return Credentials(account.access_key, account.secret_key)


def _https(endpoint: Endpoint, address: str) -> dict[str, Any]:
    if endpoint.tls is None:
        raise BrokerUnreachable(address, "it requires TLS, and no CA certificate is known to verify it")
    return {"ssl": _context(endpoint.tls.ca), "server_hostname": endpoint.tls.name}


@lru_cache(maxsize=MAX_CACHED_CONTEXTS)
def _context(ca: str) -> ssl.SSLContext:
    return TlsOptions(ca_pem=ca).context()


def _why(error: aiohttp.ClientConnectorCertificateError) -> str:
    found = error.certificate_error
    return str(getattr(found, "verify_message", "") or found)


async def _read(answer: aiohttp.ClientResponse, address: str) -> bytes:
    content = bytearray()
    async for chunk in answer.content.iter_chunked(64 * 1024):
        content += chunk
        if len(content) > MAX_RESPONSE_BYTES:
            raise BrokerRefused(address, "bad_answer", f"its response is longer than {MAX_RESPONSE_BYTES} bytes")
    return bytes(content)


def _refusal(address: str, status: int, content: bytes) -> BrokerRefused:
    try:
        error = msgspec.json.decode(content, type=Refusal).error
    except msgspec.DecodeError:
        return BrokerRefused(address, str(status), f"HTTP status {status}", absent=status == _NOT_FOUND)
    return BrokerRefused(address, error.code, error.message, absent=status == _NOT_FOUND)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _as_broker_errors(address: str, deadline_s: float) -> Iterator[None]:
    try:
        yield
    except RefusedError as error:
        raise BrokerRefused(error.address, str(error.code), error.remark or "no reason given") from error
    except TimeoutError as error:
        raise BrokerUnreachable(address, f"no response within {deadline_s:g} s") from error
    except ClientError as error:
        named = getattr(error, "address", address)
        raise BrokerUnreachable(named, str(error).removeprefix(f"no response from {named}: ")) from error
    except ValueError as error:
        raise BrokerRefused(address, "bad_request", str(error)) from error
