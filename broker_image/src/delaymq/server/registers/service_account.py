"""Access of a pod to the API server: address from the environment, token and CA from files that change.

The kubelet replaces the token before it expires, and the CA when it is rotated.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from delaymq.config.file_signature import FileSignature
from delaymq.server.registers.register import RegisterError

MAX_TOKEN_BYTES: Final = 64 << 10


def api_server_url(environment: Mapping[str, str]) -> str:
    """Return the URL of the API server. Raises RegisterError outside of a cluster."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT_HTTPS") or environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise RegisterError(
            "the variables KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: a Lease can be the register"
            " only in a pod"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class ServiceAccount:
    """Files `token` and `ca.crt` of a projected volume, as last read."""

    def __init__(self, folder: Path) -> None:
        self._token_path = folder / "token"
        self._ca_path = folder / "ca.crt"
        self._token_signature: FileSignature | None = None
        self._ca_signature: FileSignature | None = None
        self._token = ""
        self._tls: ssl.SSLContext | None = None

    def current(self) -> tuple[str, ssl.SSLContext] | None:
        """Return token and TLS context, or None if the files changed. The files of a volume in memory do not block."""
        try:
            signatures = (FileSignature.of(self._token_path.stat()), FileSignature.of(self._ca_path.stat()))
        except OSError:
            return None
        if self._tls is None or signatures != (self._token_signature, self._ca_signature):
            return None
        return self._token, self._tls

    def refresh(self) -> tuple[str, ssl.SSLContext]:
        """Read the files again if they changed, and return token and TLS context. Blocks. Raises RegisterError."""
        try:
            signature = FileSignature.of(self._token_path.stat())
            if signature != self._token_signature:
                self._token = self._read_token()
                self._token_signature = signature
        except OSError as error:
            raise RegisterError(f"cannot read the token {self._token_path}: {error.strerror}") from error
        try:
            signature = FileSignature.of(self._ca_path.stat())
            if self._tls is None or signature != self._ca_signature:
                self._tls = ssl.create_default_context(cafile=str(self._ca_path))
                self._ca_signature = signature
        except ssl.SSLError as error:
            raise RegisterError(f"{self._ca_path} contains no PEM certificates") from error
        except OSError as error:
            raise RegisterError(f"cannot read the CA {self._ca_path}: {error.strerror}") from error
        return self._token, self._tls

    def forget_token(self) -> None:
        """Read the token again before the next request."""
        self._token_signature = None

    def _read_token(self) -> str:
        with self._token_path.open("rb") as file:
            data = file.read(MAX_TOKEN_BYTES + 1)
        token = data.decode("ascii", errors="replace").strip()
        if not token or len(data) > MAX_TOKEN_BYTES or not (token.isascii() and token.isprintable()):
            raise RegisterError(f"{self._token_path} contains no token")
        return token
