"""TLS of one server, with certificates that are reloaded when their files change.

Existing connections keep their certificate; new handshakes use the latest valid pair of files.
"""

import asyncio
import logging
import os
import ssl
import subprocess
import sys
from typing import Final

from delaymq.clock import iso_time
from delaymq.config.file_signature import FileSignature
from delaymq.config.tls_keys import DISABLED, ENFORCING, TlsServerKeys
from delaymq.server.errors import ServerError
from delaymq.server.tls.certificate import ends_at_s
from delaymq.server.tls.contexts import context_of_pem, server_context
from delaymq.throttled_log import fields
from delaymq.transport.tls_acceptor import TlsAcceptor

CHECK_INTERVAL_S: Final = 2.0
"""Interval between checks for changed files."""
MAKE_TIMEOUT_S: Final = 20.0
RETRY_S: Final = 60.0
"""Pause after a failed creation of a self-signed certificate, regardless of further TLS clients."""

TRIM_INTERVAL_S: Final = 10.0
TRIM_CONNECTIONS: Final = 50
"""Number of closed TLS connections after which their memory is returned to the system."""

_logger = logging.getLogger(__name__)

Signatures = tuple[FileSignature | None, ...]
"""Signatures of all files; None for an inaccessible one."""


class ServerTls:
    """Create it before the server listens; raises ServerError for unusable files. Call `start` within the loop."""

    def __init__(self, settings: TlsServerKeys, own_names: tuple[str, ...] = ()) -> None:
        self.mode = settings.tls_server_mode
        self.ends_at_s: int | None = None
        """Expiry time of the current certificate; None without one."""
        self.reloads = 0
        self.failed_reloads = 0
        self.accepting: TlsAcceptor | None = None
        """None if TLS is disabled."""
        self.for_http: TlsAcceptor | None = None
        """TLS of the HTTP port, which the HTTP server closes; None if it is served without TLS."""
        self._settings = settings
        self._own_names = dict.fromkeys(("localhost", "127.0.0.1", *own_names))
        self._context: ssl.SSLContext | None = None
        self._http_context: ssl.SSLContext | None = None
        self._making: asyncio.Task[None] | None = None
        self._make_again_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._seen: Signatures = ()
        self._suspect: Signatures = ()
        self._trimming: asyncio.Task[None] | None = None
        serves = self.mode != DISABLED
        has_files = bool(settings.tls_server_cert_path)
        if has_files and (serves or settings.http_tls):
            self._seen = self._signatures()
            self._context, self._http_context, self.ends_at_s = self._loaded()
        if settings.http_tls:
            self.for_http = TlsAcceptor(self._current_for_http, enforcing=True)
        if serves and (has_files or settings.tls_test_mode_enable):
            self.accepting = TlsAcceptor(self._current, enforcing=self.mode == ENFORCING)

    @property
    def about(self) -> str:
        """Description for the startup log line; may be empty."""
        if self.ends_at_s is None:
            return "" if self.mode != ENFORCING else ", TLS enforcing with a self-signed certificate"
        return f", TLS {self.mode} with a certificate valid until {iso_time(self.ends_at_s * 1_000)}"

    def start(self) -> None:
        """Start checking for changed files."""
        if self._context is not None:
            self._looking = asyncio.create_task(self._watch_files(), name="TLS files")

    def stop(self) -> None:
        """Stop; connections are not closed here."""
        for task in (self._looking, self._making, self._trimming):
            if task is not None:
                task.cancel()
        if self.accepting is not None:
            self.accepting.close()

    def handshakes(self) -> dict[str, int]:
        """Return the number of handshakes on all ports, by result."""
        both = [each for each in (self.accepting, self.for_http) if each is not None]
        return {
            "done": sum(each.done for each in both),
            "failed": sum(each.failed for each in both),
            "plain_refused": sum(each.plain_refused for each in both),
        }

    async def _current_for_http(self) -> ssl.SSLContext:
        self._trim_from_now_on()
        if self._http_context is None:
            raise OSError("there is no certificate")
        return self._http_context

    async def _current(self) -> ssl.SSLContext:
        self._trim_from_now_on()
        if self._context is None:
            await self._generate_once()
        if self._context is None:
            raise OSError("there is no certificate; see the log for the reason")
        return self._context

    # Changed files.

    async def _watch_files(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await loop.run_in_executor(None, self.reload)

    def reload(self) -> None:
        """Reload the files if they changed and are valid; in any thread, one at a time."""
        signatures = self._signatures()
        if signatures == self._seen:
            return
        try:
            loaded = self._loaded()
        except ServerError as error:
            # Two files are never written at the same time, so only a persistent error is reported.
            if signatures == self._suspect and signatures == self._signatures():
                self._seen = signatures
                self.failed_reloads += 1
                _logger.error("cannot reload the TLS certificate, the previous one is kept: %s", error)
            self._suspect = signatures
            return
        if signatures != self._signatures():
            return  # they are being written
        self._seen, (self._context, self._http_context, self.ends_at_s) = signatures, loaded
        self.reloads += 1
        until = iso_time(loaded[2] * 1_000)
        _logger.info("the TLS certificate was reloaded: valid until %s", until, extra=fields(until=until))

    def _loaded(self) -> tuple[ssl.SSLContext, ssl.SSLContext | None, int]:
        """Return the contexts of the remoting ports and of the HTTP port, and the certificate's expiry time."""
        context, ends = server_context(self._settings)
        # Probes cannot present certificates, and HTTP has other means of access control.
        for_http = server_context(self._settings, asks_clients=False)[0] if self._settings.http_tls else None
        return context, for_http, ends

    def _signatures(self) -> Signatures:
        settings = self._settings
        paths = (settings.tls_server_cert_path, settings.tls_server_key_path, settings.tls_server_trust_cert_path)
        return tuple(_signature_of(path) for path in paths)

    # Memory.

    def _trim_from_now_on(self) -> None:
        if self._trimming is None:
            self._trimming = asyncio.create_task(self._trim_periodically(), name="memory of TLS")

    async def _trim_periodically(self) -> None:
        """Return memory of closed connections to the system.

        Each connection has a buffer of 256 KiB from the event loop, of which few pages are used. glibc allocates them
        on its heap, where new connections touch different pages each time: a thousand of them occupied 240 MB.
        """
        import ctypes  # only needed with TLS clients

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        loop = asyncio.get_running_loop()
        seen = 0
        while trim is not None:
            await asyncio.sleep(TRIM_INTERVAL_S)
            ended = sum(each.ended for each in (self.accepting, self.for_http) if each is not None)
            if ended - seen >= TRIM_CONNECTIONS:
                seen = ended
                await loop.run_in_executor(None, trim, 0)

    # Self-signed certificate.

    async def _generate_once(self) -> None:
        loop = asyncio.get_running_loop()
        if self._making is None or (self._making.done() and loop.time() > self._make_again_at):
            self._make_again_at = loop.time() + RETRY_S
            self._making = asyncio.create_task(self._generate(), name="self-signed certificate")
        await asyncio.shield(self._making)

    async def _generate(self) -> None:
        command = [sys.executable, "-m", "delaymq.server.tls.self_signed", *self._own_names]
        try:
            async with asyncio.timeout(MAKE_TIMEOUT_S):
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
                try:
                    pem, errors = await process.communicate()
                finally:
                    if process.returncode is None:
                        process.kill()
            if process.returncode:
                last = (errors.decode(errors="replace").strip().splitlines() or ["unknown error"])[-1]
                raise OSError(last)
            self._context, self.ends_at_s = context_of_pem(pem), ends_at_s(pem)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            _logger.error(
                "a TLS client connected, but a self-signed certificate could not be created (%s): configure one"
                " (tls.server.certPath, tls.server.keyPath)",
                error or type(error).__name__,
            )
        else:
            _logger.warning(
                "a TLS client connected, but no certificate is configured (tls.server.certPath): created a self-signed"
                " one, which clients cannot verify"
            )


def _signature_of(path: str) -> FileSignature | None:
    try:
        return FileSignature.of(os.stat(path))
    except OSError:
        return None
