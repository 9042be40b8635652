"""An API server with a single endpoint: it records each request and returns a scripted response over TLS."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from delaymq_spark.command.publish import ApiServer

TOKEN = "eyJhbGciOi.test.token"


@dataclass
class Request:
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def patch(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class FakeApiServer:
    """Returns the responses `answers` (code, headers, body) in order, and repeats the last one."""

    folder: Path
    answers: list[tuple[int, dict[str, str], str]] = field(default_factory=lambda: [(200, {}, "{}")])
    host: str = "127.0.0.1"
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> FakeApiServer:
        key, certificate = self.folder / "tls.key", self.folder / "ca.crt"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=kubernetes", "-days", "2"]
        command += ["-addext", f"subjectAltName=IP:{self.host}"]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
        (self.folder / "token").write_text(f"{TOKEN}\n")
        self._server = ThreadingHTTPServer((self.host, 0), self._handler(), bind_and_activate=False)
        if ":" in self.host:
            import socket

            self._server.socket.close()
            self._server.address_family = socket.AF_INET6
            self._server.socket = socket.socket(socket.AF_INET6)
        self._server.server_bind()
        self._server.server_activate()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> ApiServer:
        """The address, as determined in a pod."""
        return ApiServer(self.host, self._server.server_address[1], self.folder)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fake.requests.append(Request(self.command, self.path, dict(self.headers.items()), body))
                code, headers, text = fake.answers.pop(0) if len(fake.answers) > 1 else fake.answers[0]
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        return Handler
