"""Output format of these programs: one JSON array per line, whose first element is its type; times are ms since
1970.

    ["ready"]                                                          connected, the first message may arrive
    ["sent", key, level, began_ms, ended_ms, offset_message_id, broker]  acknowledged
    ["failed", key, level, began_ms, ended_ms, reason]
    ["got", key, broker, queue, queue_offset, due_ms | null, stored_ms, arrived_ms, level]
    ["end", {…}]                                                       the last line of a run that was not interrupted

A program that fails prints the reason on standard error and exits with a non-zero code.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from delaymq.client import ClientOptions, Credentials, TlsOptions


def say(*words: object) -> None:
    """Write one line and flush it: a reader may act on it immediately."""
    sys.stdout.write(json.dumps(words, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every program: the NameServers, and a time limit."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--name-servers", required=True, help="host:port, several joined by ;")
    made.add_argument("--at-most-s", type=float, default=120.0)
    made.add_argument("--until-stdin-closes", action="store_true", help="end cleanly when standard input closes")
    made.add_argument("--access-key", help="sign requests by this account")
    made.add_argument("--secret-key", default="")
    made.add_argument("--tls-ca", type=Path, help="connect with TLS to servers whose certificate this issuer signed")
    made.add_argument("--tls-server-name", default="", help="and that has this name")
    return made


def client_options(options: argparse.Namespace, **more: Any) -> ClientOptions:
    """Return client options with the requested account and TLS."""
    credentials = Credentials(options.access_key, options.secret_key) if options.access_key else None
    tls = TlsOptions(ca_path=options.tls_ca, server_name=options.tls_server_name) if options.tls_ca else None
    return ClientOptions(credentials=credentials, tls=tls, **more)


def ended_event(options: argparse.Namespace) -> asyncio.Event:
    """Return an event set by SIGTERM or SIGINT, and by the end of standard input if configured."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ended.set)

    def watch() -> None:
        # Not by sys.stdin, whose lock, held here, would block the interpreter's shutdown.
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(ended.set)

    if options.until_stdin_closes:
        threading.Thread(target=watch, daemon=True).start()
    return ended


def integers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]
