"""The BrokerAdmin port against a real broker and NameServer with TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delaymq.http_client import HttpClient, NotSentError, Reply
from delaymq_operator.adapters.broker_admin import HttpBrokerAdmin
from delaymq_operator.reconcile.certificates import issue, new_authority
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Endpoint, ServerTrust, TopicConfig
from delaymq_testing.running_server import HOST, run, standalone

TOKEN = "secret"
NAME = "demo-broker-pods.ns.svc"
NOW_MS = int(time.time() * 1000)
AUTHORITY = new_authority("demo", NOW_MS, 30)
TRUST = ServerTrust(secret_name="demo-tls", ca=AUTHORITY.certificate, name=NAME)


@asynccontextmanager
async def secured(path: Path, **changes: Any) -> AsyncIterator[tuple[HttpBrokerAdmin, Endpoint, str]]:
    """Start a broker with a certificate of AUTHORITY; yield an admin, its endpoint and its NameServer's address."""
    pair = issue(AUTHORITY, [NAME], NOW_MS, 7)
    files = {"tls_server_cert_path": path / "tls.crt", "tls_server_key_path": path / "tls.key"}
    for file, text in zip(files.values(), (pair.certificate, pair.key), strict=True):
        file.write_text(text)
    settings = {key: str(file) for key, file in files.items()} | changes
    settings |= {f"namesrv_{key}": value for key, value in settings.items()}
    async with standalone(path / "store", http=True, http_token=TOKEN, **settings) as server:
        assert server.broker.http_port is not None
        endpoint = Endpoint(
            host=HOST, broker_port=server.broker.port, http_port=server.broker.http_port, token=TOKEN, tls=TRUST
        )
        admin = HttpBrokerAdmin(timeout_s=5)
        try:
            yield admin, endpoint, f"{HOST}:{server.namesrv.port}"
        finally:
            await admin.close()


STRANGER = replace(TRUST, ca=new_authority("demo", NOW_MS, 30).certificate)
OTHER_NAME = replace(TRUST, name="other.ns.svc")


def test_enforcing_servers_are_reached_and_verified(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with secured(tmp_path, tls_server_mode="enforcing") as (admin, endpoint, name_server):
            await admin.put_topic(endpoint, TopicConfig(topic="orders", read_queues=4, write_queues=4))
            assert "orders" in await admin.topics(endpoint)
            await admin.put_order((name_server,), "orders", "demo-0:4", tls=TRUST)
            assert await admin.orders(name_server, tls=TRUST) == {"orders": "demo-0:4"}
            await admin.delete_route((name_server,), "orders", cluster="demo", tls=TRUST)
            with pytest.raises(BrokerUnreachable, match="accepts only TLS"):
                await admin.topics(replace(endpoint, tls=None))
            with pytest.raises(BrokerUnreachable, match="accepts only TLS"):
                await admin.orders(name_server)

    run(scenario)


@pytest.mark.parametrize(("trust", "why"), [(STRANGER, "not trusted"), (OTHER_NAME, "for another name")])
def test_servers_with_other_certificates_are_not_trusted(tmp_path: Path, trust: ServerTrust, why: str) -> None:
    async def scenario() -> None:
        async with secured(tmp_path) as (admin, endpoint, name_server):
            calls = (
                lambda: admin.topics(replace(endpoint, tls=trust)),
                lambda: admin.orders(name_server, tls=trust),
            )
            for call in calls:
                with pytest.raises(BrokerUnreachable, match=why):
                    await call()

    run(scenario)


HTTPS: dict[str, Any] = {"tls_server_mode": "enforcing", "http_tls": True}


def test_https_is_verified_by_the_name_in_the_certificate(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with secured(tmp_path, **HTTPS) as (admin, endpoint, _):
            endpoint = replace(endpoint, https=True)
            info = await admin.info(endpoint)
            assert info.settings["httpTls"] == "true"
            await admin.drain(endpoint, "withdraw", 1_000)
            for trust in (STRANGER, OTHER_NAME):
                with pytest.raises(BrokerUnreachable, match="its certificate is not accepted"):
                    await admin.info(replace(endpoint, tls=trust))
            with pytest.raises((BrokerUnreachable, BrokerRefused)):
                await admin.info(replace(endpoint, https=False))

    run(scenario)


def test_programs_of_analytics_verify_brokers_by_the_file_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Spark pods have SSL_CERT_FILE, which Python's default context reads."""

    async def scenario() -> None:
        async with secured(tmp_path, **HTTPS) as (_, endpoint, _):
            # The certificate of this test has no other name.
            monkeypatch.setattr("socket.getaddrinfo", _at_loopback(socket.getaddrinfo))
            client = HttpClient(f"https://{NAME}:{endpoint.http_port}", TOKEN, timeout_s=5, max_answer_bytes=1 << 20)

            async def reply() -> Reply:
                return await asyncio.to_thread(client.request, "GET", "/api/v1/broker")

            with pytest.raises(ssl.SSLCertVerificationError):
                await _unwrapped(reply)
            (tmp_path / "ca.crt").write_text(AUTHORITY.certificate)
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
            assert (await reply()).status == 200

    run(scenario)


async def _unwrapped(reply: Callable[[], Awaitable[object]]) -> None:
    try:
        await reply()
    except NotSentError as error:
        raise error.reason from None


def _at_loopback(resolve: Callable[..., Any]) -> Callable[..., Any]:
    def resolved(host: str, *arguments: Any, **options: Any) -> Any:
        return resolve(HOST if host == NAME else host, *arguments, **options)

    return resolved


def test_https_without_known_ca_is_not_attempted(tmp_path: Path) -> None:
    async def scenario() -> None:
        admin = HttpBrokerAdmin(timeout_s=5)
        endpoint = Endpoint(host=HOST, broker_port=1, http_port=1, token=TOKEN, https=True)
        with pytest.raises(BrokerUnreachable, match="no CA certificate is known"):
            await admin.info(endpoint)
        await admin.close()

    asyncio.run(scenario())
