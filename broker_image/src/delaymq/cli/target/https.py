"""TLS of the commands' HTTP requests: the options of `delaymq --tls…`, and errors that name them."""

from __future__ import annotations

import ssl
from typing import Final

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.target.contexts import Target
from delaymq.http_client import HttpsOptions, Reply

_NO_HTTPS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING"})
"""OpenSSL's reasons if the server does not use TLS."""

_ONLY_HTTPS: Final = b"this port serves only HTTPS"
"""Start of the response of a port with `httpTls` to a plaintext request."""


def https_options(target: Target) -> HttpsOptions:
    """Return the options for https:// addresses; without TLS options, the system's CAs are trusted."""

    def context() -> ssl.SSLContext:
        from delaymq.cli.target.connection import tls_options_of  # most addresses are http://
        from delaymq.client.tls import TlsFilesError

        try:
            return tls_options_of(target.https).context()
        except TlsFilesError as error:
            raise CommandError(str(error), EXIT_USAGE) from error

    return HttpsOptions(context, target.https.get("tls-server-name", ""))


def https_problem(url: str, error: ssl.SSLError) -> str:
    """Return a sentence on a failed TLS handshake or connection."""
    if error.reason in _NO_HTTPS:
        plain = url.replace("https://", "http://", 1)
        return f"{url} does not serve HTTPS: use {plain}, or set httpTls=true at the broker"
    from delaymq.transport.tls_errors import sentence  # loads asyncio

    text = f"cannot connect to {url} with TLS: {sentence(error)}"
    if isinstance(error, ssl.SSLCertVerificationError):
        text += ". Options before the command: `delaymq --tls-ca FILE --tls-server-name NAME …`"
    return text


def needs_https(reply: Reply) -> bool:
    """Return whether a request without TLS was sent to a port that serves only HTTPS."""
    return reply.status == 400 and reply.data.startswith(_ONLY_HTTPS)


def needs_https_text(url: str) -> str:
    """Return the error for such a request."""
    return f"{url} serves only HTTPS (httpTls=true): use {url.replace('http://', 'https://', 1)}"
