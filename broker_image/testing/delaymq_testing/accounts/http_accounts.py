"""A broker with accounts of each role and two tenants, and requests to its HTTP interface."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from delaymq_testing.cli_running import SMALL, Standalone

TOKEN = "t0ken-of-http"
SECRETS = {name: f"{name}-secret" for name in ("tenant-a", "tenant-b", "reader-1", "operator", "manager", "admin-1")}
RULES = """
accounts:
- accessKey: tenant-a
  secretKey: tenant-a-secret
  topicPerms: [TopicA=PUB|SUB, OnlySent=PUB]
  groupPerms: [GroupA=SUB]
- {accessKey: tenant-b, secretKey: tenant-b-secret, topicPerms: [TopicB=PUB|SUB], groupPerms: [GroupB=SUB]}
- {accessKey: reader-1, secretKey: reader-1-secret, role: read}
- {accessKey: operator, secretKey: operator-secret, role: operate}
- {accessKey: manager, secretKey: manager-secret, role: administer}
- {accessKey: admin-1, secretKey: admin-1-secret, admin: true}
"""


@dataclass(frozen=True)
class Reply:
    """A response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


def ask(
    port: int,
    method: str,
    path: str,
    body: object = None,
    *,
    source: str = "127.0.0.1",
    host: str = "127.0.0.1",
    **headers: str,
) -> Reply:
    """Send a request; names of headers have `_` for `-`. `source` is the address of the client."""
    connection = http.client.HTTPConnection(host, port, timeout=20, source_address=(source, 0))
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        connection.request(method, path, data, sent)
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def sign_in(port: int, account: str, *, path: str = "/api/v1/session", **more: Any) -> Reply:
    keys = {"accessKey": account, "secretKey": SECRETS.get(account, "no-such-secret")}
    return ask(port, "POST", path, {"bearer": True, **keys, **more})


def token_of(port: int, account: str) -> str:
    reply = sign_in(port, account)
    assert reply.status == 200, reply.body
    return str(reply.json["token"])


class GuardedBroker(Standalone):
    """A standalone broker with RULES and a token."""

    def __init__(self, folder: Path, settings: str = "", rules: str = RULES) -> None:
        (folder / "plain_acl.yml").write_text(rules)
        super().__init__(folder, f"{SMALL}aclEnable=true\nhttpToken={TOKEN}\nautoCreateTopicEnable=true\n{settings}")

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        return ask(self.http_port, method, path, body, **headers)

    def as_account(self, account: str) -> dict[str, str]:
        """The headers of a new session."""
        return bearer(token_of(self.http_port, account))
