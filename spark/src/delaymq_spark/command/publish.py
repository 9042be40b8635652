"""Publishing of results to a ConfigMap: one merge patch, with the service account of the pod.

Uses the standard library: a single request does not justify a client library in the image and its pins.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import os
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from delaymq_spark.command.status import MAX_STATUS_BYTES

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
STATUS, SUMMARY, REPORT = "status.json", "summary.json.gz", "report.html.gz"
MAX_OBJECT_BYTES: Final = 1_000_000
"""Size limit: etcd accepts 1.5 MB and the API server 1 MiB of values; the request as sent stays below both."""
_METADATA_BYTES: Final = 24 << 10
"""Space reserved for existing metadata: names, owners, managed fields."""
PATIENCE_SECONDS: Final = 60.0
"""Time to wait for a ConfigMap that does not exist yet, or for a busy API server."""
_PAUSE_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 10.0
_REQUEST_SECONDS: Final = 10.0
_MAX_RESPONSE_BYTES: Final = 1 << 20
_MAX_TOKEN_BYTES: Final = 64 << 10
_TARGET: Final = re.compile(
    r"configmap/(?P<namespace>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)/(?P<name>[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?)\Z"
)


class PublishError(Exception):
    """Publishing failed; the message states the cause and what to do."""


@dataclass(frozen=True, slots=True)
class ConfigMapName:
    """Namespace and name of a ConfigMap."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"configmap/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Address of the API server, and the directory with `token` and `ca.crt`."""

    host: str
    port: int
    account: Path = SERVICE_ACCOUNT


@dataclass(frozen=True, slots=True)
class Packed:
    """Data published in addition to the status."""

    binary: dict[str, str | None]
    """Name to base64 of gzip; None deletes data of an earlier run."""
    omitted: str | None
    """What was omitted, and why."""


def parse_target(text: str) -> ConfigMapName:
    """Parse `configmap/NAMESPACE/NAME`. ValueError."""
    match = _TARGET.match(text)
    if match is None:
        raise ValueError(f"{text[:120]!r} is not a valid target: use configmap/NAMESPACE/NAME")
    return ConfigMapName(match["namespace"], match["name"])


def in_cluster(environ: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT) -> ApiServer:
    """Return the API server of the current pod. PublishError outside a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise PublishError(
            "--publish works only in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
        )
    if not (account / "token").exists():
        raise PublishError(f"--publish requires the pod's service account: {account}/token does not exist")
    return ApiServer(host.strip("[]"), int(port), account)


def pack(summary_text: str, page: str | None) -> Packed:
    """Pack the summary and the report: if they are too large, the report is omitted first, then the summary."""
    room = MAX_OBJECT_BYTES - MAX_STATUS_BYTES - _METADATA_BYTES
    summary, report = _packed(summary_text), None if page is None else _packed(page)
    if len(summary) + len(report or "") <= room:
        return Packed({SUMMARY: summary, REPORT: report}, None)
    limit = f"a ConfigMap holds {room:,}"
    if len(summary) <= room:
        return Packed(
            {SUMMARY: summary, REPORT: None},
            f"the report takes {len(report or ''):,} bytes in addition to {len(summary):,} of the summary, and "
            f"{limit}: write it to a volume with --out",
        )
    return Packed(
        {SUMMARY: None, REPORT: None},
        f"the summary alone takes {len(summary):,} bytes, and {limit}: write it and the report to a volume with --out",
    )


def publish(
    server: ApiServer,
    target: ConfigMapName,
    status_text: str,
    packed: Packed | None,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
    pause_seconds: float = _PAUSE_SECONDS,
) -> None:
    """Patch the ConfigMap. Without `packed`, publish the status only and delete data of an earlier run.
    PublishError.
    """
    binary = {SUMMARY: None, REPORT: None} if packed is None else packed.binary
    # The status is JSON within JSON, so its quotes are escaped again: the size limit of `pack` allows for that.
    body = json.dumps({"data": {STATUS: status_text}, "binaryData": binary}).encode()
    until = time.monotonic() + patience_seconds
    while True:
        problem, pause = _attempt(server, target, body, pause_seconds)
        if problem is None:
            return
        if time.monotonic() + pause > until:
            raise PublishError(f"{target} was not published within {patience_seconds:g} s: {problem}")
        time.sleep(pause)


def _attempt(server: ApiServer, target: ConfigMapName, body: bytes, pause: float) -> tuple[str | None, float]:
    """Try to publish; return the obstacle (None on success) and the time to wait. PublishError if it is permanent."""
    token, context = _credentials(server.account)
    connection = http.client.HTTPSConnection(server.host, server.port, timeout=_REQUEST_SECONDS, context=context)
    try:
        connection.request(
            "PATCH",
            f"/api/v1/namespaces/{target.namespace}/configmaps/{target.name}?fieldManager=delaymq-spark",
            body,
            {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/merge-patch+json",
                "Accept": "application/json",
                "User-Agent": "delaymq-spark",
            },
        )
        answer = connection.getresponse()
        code, retry_after = answer.status, answer.headers.get("Retry-After", "")
        said = "" if code == 200 else _message(answer.read(_MAX_RESPONSE_BYTES))
    except ssl.SSLCertVerificationError as error:
        raise PublishError(f"the API server at {_place(server)} is not trusted: {error.verify_message}") from error
    except (OSError, http.client.HTTPException) as error:
        return f"the API server at {_place(server)} did not respond: {error or type(error).__name__}", pause
    finally:
        connection.close()
    if code == 200:
        return None, 0
    if code == 404:
        return f"it does not exist in its namespace ({said}): create it before starting the run", pause
    # 409: another client patched it concurrently. 401: the token has just been replaced.
    if code in (401, 409, 429) or code >= 500:
        seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else pause
        return f"the API server responded with status {code} ({said})", max(pause, min(seconds, _MAX_PAUSE_SECONDS))
    hint = ": grant the service account the verb patch on configmaps" if code == 403 else ""
    raise PublishError(f"{target} was not published: the API server responded with status {code} ({said}){hint}")


def _credentials(account: Path) -> tuple[str, ssl.SSLContext]:
    # Read again for each attempt: tokens are replaced during a long run.
    try:
        with open(account / "token", "rb") as file:
            token = file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
        if not token or not token.isprintable() or " " in token:
            raise ValueError("the bearer token is malformed")
        return token, ssl.create_default_context(cafile=str(account / "ca.crt"))
    except (OSError, ValueError) as error:
        raise PublishError(f"the service account's files in {account} cannot be used: {error}") from error


def _message(answer: bytes) -> str:
    """Return the message of the API server's Status object."""
    try:
        parsed: Any = json.loads(answer)
        return str(parsed["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return answer[:100].decode("ascii", "replace")


def _place(server: ApiServer) -> str:
    return f"[{server.host}]:{server.port}" if ":" in server.host else f"{server.host}:{server.port}"


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
