"""An etcd cluster of one or three members, with TLS and accounts on request."""

from __future__ import annotations

import json
import ssl
import urllib.request
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from delaymq_testing.certificates import Authority
from harness.ports import free_port
from harness.processes import ServerProcess

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 10.0


class EtcdCluster:
    """Members as child processes, as a context manager."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        *,
        members: int = 1,
        with_tls: bool = False,
        host: str = HOST,
        launcher: Sequence[str] = (),
    ) -> None:
        """`launcher` precedes the commands of the members, which have the address `host`."""
        self._folder = folder
        self.authority = Authority(folder / "tls") if with_tls else None
        scheme = "https" if with_tls else "http"
        self.urls = [f"{scheme}://{host}:{free_port()}" for _ in range(members)]
        peers = [f"http://{host}:{free_port()}" for _ in range(members)]
        self._tls: ssl.SSLContext | None = None
        more: list[str] = []
        if self.authority is not None:
            pair = self.authority.issue(host)
            more = [f"--cert-file={pair.certificate}", f"--key-file={pair.key}", "--client-cert-auth"]
            more.append(f"--trusted-ca-file={self.authority.certificate}")
            self._tls = ssl.create_default_context(cafile=str(self.authority.certificate))
            client = self.authority.issue("client", has_subject=False)
            self._tls.load_cert_chain(client.certificate, client.key)
        self.processes = [
            ServerProcess(
                f"etcd-{index}",
                [
                    *launcher,
                    str(program),
                    f"--name=member-{index}",
                    f"--data-dir={folder / f'etcd-{index}'}",
                    f"--listen-client-urls={url}",
                    f"--advertise-client-urls={url}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster={','.join(f'member-{n}={each}' for n, each in enumerate(peers))}",
                    "--log-level=error",
                    "--bcrypt-cost=4",  # an authentication takes a millisecond instead of a tenth of a second
                    *more,
                ],
                folder / f"etcd-{index}.log",
                environment={},
            )
            for index, (url, peer) in enumerate(zip(self.urls, peers, strict=True))
        ]

    def __enter__(self) -> Self:
        try:
            for process in self.processes:
                process.start()
            for process, url in zip(self.processes, self.urls, strict=True):
                process.wait_until(lambda url=url: self._is_ready(url), timeout_s=START_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()

    def crash(self, index: int) -> None:
        """Kill a member with SIGKILL, and start it again without waiting."""
        self.processes[index].kill()
        self.processes[index].start()

    def call(self, path: str, body: Mapping[str, Any], token: str = "", url: str = "") -> dict[str, Any]:
        """Send a request to the JSON gateway, and return its response."""
        request = urllib.request.Request(f"{url or self.urls[0]}/v3/{path}", json.dumps(body).encode())
        if token:
            request.add_header("Authorization", token)
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=self._tls) as answer:
            decoded = json.load(answer)
            assert isinstance(decoded, dict)
            return decoded

    def enable_accounts(self, user: str, password: str, prefix: str) -> None:
        """Create a user who may read and write the keys that begin with `prefix`, and require authentication."""
        for name, word, role in (("root", "root", "root"), (user, password, user)):
            self.call("auth/user/add", {"name": name, "password": word})
            self.call("auth/role/add", {"name": role})
            self.call("auth/user/grant", {"user": name, "role": role})
        permission = {"permType": "READWRITE", "key": _base64(prefix), "range_end": _base64(_after(prefix))}
        self.call("auth/role/grant", {"name": user, "perm": permission})
        self.call("auth/enable", {})

    def _is_ready(self, url: str) -> bool:
        try:
            self.call("kv/range", {"key": _base64("ready")}, url=url)
        except OSError:
            return False
        return True


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _after(prefix: str) -> str:
    """Return the end of the range of keys with a prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
