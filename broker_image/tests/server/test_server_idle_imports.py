"""An idle broker has loaded only the modules that it needs."""

import os
import subprocess
import sys
from pathlib import Path

from delaymq_testing.certificates import Authority

PROGRAM = """
import asyncio, sys
import delaymq.cli.main, delaymq.cli.servers.serve, delaymq.server.main, uvloop
from delaymq.config import BrokerConfig
from delaymq.server.broker_server import BrokerServer

async def idle():
    small = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1_000, "max_index_num": 4_000}
    ports = {"listen_port": 0, "http_port": 0, "fast_port_enable": False}
    server = BrokerServer.open(BrokerConfig(store_path_root_dir=sys.argv[1], **small, **ports))
    await server.start()
    print(*sys.modules)
    await server.stop()

asyncio.Runner(loop_factory=uvloop.new_event_loop).run(idle())
"""
LOADING = """
import asyncio, ssl
from delaymq.server.http.loader import load

def trusted():
    return len(ssl.create_default_context().get_ca_certs())

before = trusted()
module = asyncio.run(load("delaymq.server.http.http_server"))
from aiohttp import connector
unused = (connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED)
print(before, *(len(context.get_ca_certs()) for context in unused), trusted(), module.__name__)
"""
TYPES = """
import asyncio, mimetypes, sys
from delaymq.server.http.loader import load

mimetypes.knownfiles.append(sys.argv[1])
asyncio.run(load("delaymq.server.http.http_server"))
print("aiohttp" in sys.modules, mimetypes.guess_type("x.waves")[0])
"""
NOT_LOADED = {
    "ctypes",
    "delaymq.broker.access.access",
    "delaymq.access.accounts",
    "delaymq.access.addresses",
    "delaymq.access.plain_acl",
    "delaymq.broker.access.rules",
    "delaymq.access.yaml_tree",
    "delaymq.broker.filters.sql.codegen",
    "delaymq.broker.filters.sql.parser",
    "delaymq.client",
    "delaymq.namesrv",
    "delaymq.protocol.signatures",
    "delaymq.server.metrics.exposition",
    "delaymq.server.tls.self_signed",
    "delaymq.store.backup.backup",
    "delaymq.store.tools.verify",
    "difflib",
    "prometheus_client",
    "rich",
    "typer",
}
"""Rules, NameServer, SQL92, certificates, metrics, commands: each is loaded when it is configured or asked for."""


def test_idle_broker_has_loaded_only_required_modules(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert "delaymq.server.api.app" in loaded
    assert sorted(NOT_LOADED & loaded) == []


def test_http_server_loads_no_ca_store_until_a_client_context_needs_it(tmp_path: Path) -> None:
    issuers = Authority(tmp_path).certificate
    run = subprocess.run(
        [sys.executable, "-c", LOADING],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "SSL_CERT_FILE": str(issuers)},
    )  # fmt: skip
    assert run.stdout.split() == ["1", "0", "0", "1", "delaymq.server.http.http_server"], run.stderr


def test_http_server_does_not_read_mime_types_of_the_system(tmp_path: Path) -> None:
    types = tmp_path / "mime.types"
    types.write_text("audio/waves waves\n")
    run = subprocess.run(
        [sys.executable, "-c", TYPES, str(types)], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.stdout.split() == ["True", "None"], run.stderr
