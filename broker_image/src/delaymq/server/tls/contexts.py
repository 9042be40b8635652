"""TLS contexts from configured files, with errors that name the key and the file."""

import os
import ssl
from pathlib import Path
from typing import Final, TypeVar

from delaymq.config import BrokerConfig
from delaymq.config.register_keys import RegisterKeys
from delaymq.config.tls_keys import ADDRESS_HOST, TlsServerKeys
from delaymq.server.errors import ServerError
from delaymq.server.tls.certificate import CertificateError, ends_at_s
from delaymq.transport.tls_certificate import ClientContext, ServerContext

MAX_FILE_BYTES: Final = 1 << 20
"""A chain takes some KiB, all CAs of a system 250 KiB; a wrong file must not exhaust the memory."""

_Context = TypeVar("_Context", bound=ssl.SSLContext)


def server_context(settings: TlsServerKeys, *, asks_clients: bool = True) -> tuple[ssl.SSLContext, int]:
    """Return the server context and the certificate's expiry time (s since 1970); raise ServerError.

    Without `asks_clients`, it never requests client certificates.
    """
    context = _plain_server_context()
    certificate = settings.tls_server_cert_path
    _load_pair(context, "tls.server", certificate, settings.tls_server_key_path, settings.tls_server_key_password)
    if asks_clients and settings.tls_server_auth_client and settings.tls_server_need_client_auth != "none":
        _trust(context, "tls.server.trustCertPath", settings.tls_server_trust_cert_path, ssl.Purpose.CLIENT_AUTH)
        required = settings.tls_server_need_client_auth == "require"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    try:
        pem = _read("tls.server.certPath", certificate)
        ends = ends_at_s(pem)
        context.set_certificate(pem)
        return context, ends
    except CertificateError as error:
        raise ServerError(f"tls.server.certPath: {certificate}: {error}") from error


def client_context(config: BrokerConfig) -> ssl.SSLContext:
    """Return the context for connections to NameServers and members; raise ServerError.

    As in RocketMQ, names are not verified unless one is configured.
    """
    context = _strict(ClientContext(ssl.PROTOCOL_TLS_CLIENT))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if config.tls_client_auth_server:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, "tls.client.trustCertPath", config.tls_client_trust_cert_path, ssl.Purpose.SERVER_AUTH)
        context.check_hostname = bool(config.tls_client_server_name)
        context.server_name = "" if config.tls_client_server_name == ADDRESS_HOST else config.tls_client_server_name
    certificate, key = config.tls_client_cert_path, config.tls_client_key_path
    if bool(certificate) != bool(key):
        raise ServerError("set both tls.client.certPath and tls.client.keyPath, or neither")
    if certificate:
        _load_pair(context, "tls.client", certificate, key, config.tls_client_key_password)
    return context


def register_context(keys: RegisterKeys) -> ssl.SSLContext:
    """Return the context for connections to etcd, whose certificates are verified. Raises ServerError."""
    context = _strict(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    _trust(context, "tls.register.trustCertPath", keys.tls_register_trust_cert_path, ssl.Purpose.SERVER_AUTH)
    certificate, key = keys.tls_register_cert_path, keys.tls_register_key_path
    if certificate:
        _load_pair(context, "tls.register", certificate, key, keys.tls_register_key_password)
    return context


def context_of_pem(pem: bytes) -> ssl.SSLContext:
    """Return a server context from a key and a certificate in memory."""
    context = _plain_server_context()
    context.set_certificate(pem)
    descriptor = os.memfd_create("certificate")
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context


def _plain_server_context() -> ServerContext:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    # Client connections are long-lived; each ticket would cost a write and some KiB.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return _strict(context)


def _strict(context: _Context) -> _Context:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def _load_pair(context: ssl.SSLContext, prefix: str, certificate: str, key: str, password: str) -> None:
    for name, path in (("certPath", certificate), ("keyPath", key)):
        _read(f"{prefix}.{name}", path)
    asked = False

    def give_password() -> str:
        # Without this callback, OpenSSL would prompt at the terminal.
        nonlocal asked
        asked = True
        return password

    try:
        context.load_cert_chain(certificate, key, give_password)
    except (ssl.SSLError, ValueError) as error:
        raise ServerError(_pair_problem(prefix, certificate, key, bool(password), asked, error)) from error
    except OSError as error:
        raise ServerError(f"{prefix}.certPath, {prefix}.keyPath: {error.strerror}") from error


def _pair_problem(prefix: str, certificate: str, key: str, has_password: bool, asked: bool, error: Exception) -> str:
    if asked:
        what = "does not match the encrypted key" if has_password else "is not set, but the key is encrypted"
        return f"{prefix}.keyPassword {what} ({prefix}.keyPath: {key})"
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return f"{prefix}.keyPath: {key} does not match the certificate {certificate}"
    return (
        f"{prefix}.certPath, {prefix}.keyPath: {certificate} and {key} are not a usable certificate and key"
        f" in PEM ({getattr(error, 'reason', None) or error})"
    )


def _trust(context: ssl.SSLContext, key: str, path: str, purpose: ssl.Purpose) -> None:
    if not path:
        context.load_default_certs(purpose)
        return
    _read(key, path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise ServerError(f"{key}: {path} contains no PEM certificates") from error


def _read(key: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ServerError(f"{key}: cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ServerError(f"{key}: {path} exceeds {MAX_FILE_BYTES} bytes: is it a PEM file?")
    return data
