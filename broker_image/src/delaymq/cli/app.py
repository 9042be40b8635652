"""Table of the interactive commands, and the function that runs one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import typer

from delaymq.cli.lazy import Entry, Group, Leaf, group_command

_ABOUT: Final = "A message broker specialised in delayed messages, compatible with RocketMQ 4.9, and its tools."
_DEMO: Final = "Start a broker, send delayed messages, kill and restart it, and see them arrive once and on time."
COMPLETION_VARIABLE: Final = "_DELAYMQ_COMPLETE"
_AS_IS: Final = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "add_help_option": False,
}
"""main() runs servers without typer; these entries only complete the list of commands."""

COMMANDS: Final[Mapping[str, Entry]] = {
    "standalone": Leaf("server:standalone", "Run a NameServer and a broker in one process.", _AS_IS),
    "broker": Leaf("server:broker", "Run a broker.", _AS_IS),
    "namesrv": Leaf("server:namesrv", "Run a NameServer.", _AS_IS),
    "send": Leaf("send:send", "Send messages, immediately, delayed or repeatedly."),
    "receive": Leaf("receive:receive", "Receive messages and show their lateness."),
    "delay": Group(
        "Pending delayed messages of a broker.",
        {
            "status": Leaf("delay.status:status"),
            "pending": Leaf("delay.status:pending"),
            "list": Leaf("delay.listing:list_messages"),
            "count": Leaf("delay.listing:count"),
            "show": Leaf("delay.listing:show"),
            "groups": Leaf("delay.groups:groups"),
            "forecast": Leaf("delay.forecast:forecast"),
            "watch": Leaf("delay.watch:watch"),
            "cancel": Leaf("delay.change:cancel"),
            "move": Leaf("delay.change:move"),
            "fire": Leaf("delay.change:fire"),
            "touch": Leaf("delay.change:touch"),
            "settings": Leaf("delay.settings:settings"),
            "set": Leaf("delay.settings:set_limits"),
            "pause": Leaf("delay.pause:pause"),
            "resume": Leaf("delay.pause:resume"),
        },
    ),
    "topic": Group(
        "Topics, their queues and their consumer groups.",
        {
            "list": Leaf("topic:list_topics"),
            "show": Leaf("topic:show"),
            "create": Leaf("topic:create"),
            "update": Leaf("topic:update"),
            "delete": Leaf("topic:delete"),
        },
    ),
    "group": Group(
        "Consumer groups, their members and their progress.",
        {
            "list": Leaf("group.groups:list_groups"),
            "show": Leaf("group.groups:show"),
            "members": Leaf("group.groups:members"),
            "member": Leaf("group.member:member"),
            "create": Leaf("group.groups:create"),
            "reset": Leaf("group.reset:reset"),
            "delete": Leaf("group.groups:delete"),
            "forget-offsets": Leaf("group.forget_offsets:forget_offsets"),
        },
    ),
    "message": Group(
        "Find messages and show their history.",
        {
            "find": Leaf("message:find"),
            "get": Leaf("message:get"),
            "life": Leaf("message:life"),
            "consume": Leaf("group.member:consume"),
        },
    ),
    "deadletter": Group(
        "Dead letters: messages whose retries are exhausted.",
        {
            "list": Leaf("deadletter:list_letters"),
            "resend": Leaf("deadletter:resend"),
        },
    ),
    "acl": Group(
        "Accounts, their usage, and white lists of brokers with access control.",
        {
            "init": Leaf("acl_init:init"),
            "list": Leaf("acl:list_files"),
            "usage": Leaf("acl_usage:usage"),
            "put": Leaf("acl:put"),
            "delete": Leaf("acl:delete"),
            "whitelist": Leaf("acl:whitelist"),
        },
    ),
    "audit": Leaf("audit:audit", "Show who changed what on brokers and NameServers."),
    "cluster": Group("Brokers and NameServers.", {"show": Leaf("cluster:show")}),
    "replica": Group(
        "Members of a replicated broker group.",
        {
            "status": Leaf("replica:status"),
            "switchover": Leaf("replica:switchover"),
            "promote": Leaf("replica:promote"),
            "detach": Leaf("replica:detach"),
        },
    ),
    "store": Group(
        "Verify, inspect, export, back up and restore a store.",
        {
            "verify": Leaf("store.verify:verify"),
            "inspect": Leaf("store.verify:inspect"),
            "export": Leaf("store.export:export"),
            "backup": Leaf("store.backup:backup"),
            "restore": Leaf("store.restore:restore"),
            "clone": Leaf("store.restore:clone"),
        },
    ),
    "config": Group(
        "Show and explain server settings, and check configuration files.",
        {
            "print": Leaf("config:print_settings", settings=_AS_IS),
            "check": Leaf("config:check"),
            "keys": Leaf("config:keys"),
        },
    ),
    "context": Group(
        "Named sets of cluster addresses.",
        {
            "list": Leaf("context:list_contexts"),
            "show": Leaf("context:show"),
            "use": Leaf("context:use"),
            "set": Leaf("context:set_context"),
            "delete": Leaf("context:delete"),
        },
    ),
    "completion": Group(
        "Shell completion of commands and options.",
        {
            "install": Leaf("completion:install"),
            "show": Leaf("completion:show"),
        },
    ),
    "demo": Leaf("demo.command:demo", _DEMO),
}
"""Targets are module:function below delaymq.cli.commands; `delaymq --help` shows the texts without loading the
modules.
"""


def _options(
    version: bool = typer.Option(False, "--version", "-V", help="Print the version and exit."),
    access_key: str = typer.Option(
        "", metavar="KEY", help="Access key of the account that signs requests (DELAYMQ_ACCESS_KEY)."
    ),
    secret_key_file: str = typer.Option(
        "", metavar="FILE", help="File with its secret key (DELAYMQ_SECRET_KEY_FILE; or the key in DELAYMQ_SECRET_KEY)."
    ),
    tls: bool = typer.Option(False, "--tls", help="Connect to brokers and NameServers with TLS (DELAYMQ_TLS=true)."),
    tls_ca: str = typer.Option("", metavar="FILE", help="Trusted CAs, PEM (DELAYMQ_TLS_CA; default: the system's)."),
    tls_cert: str = typer.Option("", metavar="FILE", help="Client certificate, PEM (DELAYMQ_TLS_CERT)."),
    tls_key: str = typer.Option(
        "", metavar="FILE", help="Its private key, PEM (DELAYMQ_TLS_KEY; password: DELAYMQ_TLS_KEY_PASSWORD)."
    ),
    tls_server_name: str = typer.Option(
        "", metavar="NAME", help="Expected name in server certificates (DELAYMQ_TLS_SERVER_NAME; default: the host)."
    ),
    tls_insecure: bool = typer.Option(
        False, "--tls-insecure", help="Accept any server certificate (DELAYMQ_TLS_INSECURE=true)."
    ),
) -> None:
    """Global options; `main` handles --version, which is declared here for the help."""
    from delaymq.cli.target.accounts import account_flags
    from delaymq.cli.target.contexts import tls_flags

    account_flags.clear()
    account_flags.update({"access-key": access_key, "secret-key-file": secret_key_file})
    tls_flags.clear()
    tls_flags.update(
        {
            "tls": "true" if tls else "",
            "tls-ca": tls_ca,
            "tls-cert": tls_cert,
            "tls-key": tls_key,
            "tls-server-name": tls_server_name,
            "tls-insecure": "true" if tls_insecure else "",
        }
    )


def run(words: Sequence[str]) -> int:
    """Run one command; raise SystemExit with its exit code, or CommandError."""
    if COMPLETION_VARIABLE in os.environ:  # requested by the shell
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()  # its side effect registers the shells in typer
    try:
        group_command("delaymq", _ABOUT, COMMANDS, _options)(args=list(words), prog_name="delaymq")
    finally:
        sessions = sys.modules.get("delaymq.cli.target.http_sessions")  # of commands that use HTTP
        if sessions is not None:
            sessions.sign_out_all()
    return 0
