"""The commands for people: one table of them, and how one is run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

import typer

from delaymq.cli.lazy import Entry, Group, Leaf, group_command

_ABOUT: Final = "Messages that arrive later: a broker that speaks RocketMQ 4.9's protocol, and its tools."
_DEMO: Final = "Start a broker, send delayed messages, kill it in between, see them arrive once and on time."
COMPLETION_VARIABLE: Final = "_DELAYMQ_COMPLETE"
# main() runs servers without typer; here they stand so that the list of commands is whole.
_AS_IS: Final = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "add_help_option": False,
}

# Targets are module:function below delaymq.cli.commands; a text is what `delaymq --help` says without loading them.
COMMANDS: Final[Mapping[str, Entry]] = {
    "standalone": Leaf("server:standalone", "Run a NameServer and a broker in one process.", _AS_IS),
    "broker": Leaf("server:broker", "Run a broker.", _AS_IS),
    "namesrv": Leaf("server:namesrv", "Run a NameServer.", _AS_IS),
    "send": Leaf("send:send", "Send messages, at once or delayed."),
    "receive": Leaf("receive:receive", "Receive messages and show how late they came."),
    "delay": Group(
        "Pending delayed messages of a broker.",
        {
            "status": Leaf("delay.status:status"),
            "pending": Leaf("delay.status:pending"),
            "watch": Leaf("delay.watch:watch"),
            "pause": Leaf("delay.pause:pause"),
            "resume": Leaf("delay.pause:resume"),
        },
    ),
    "topic": Group(
        "Topics: which there are, their queues and readers.",
        {
            "list": Leaf("topic:list_topics"),
            "show": Leaf("topic:show"),
            "create": Leaf("topic:create"),
            "update": Leaf("topic:update"),
            "delete": Leaf("topic:delete"),
        },
    ),
    "group": Group(
        "Consumer groups: who is in them, how far they are.",
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
        "Messages: where one is, and what became of it.",
        {
            "find": Leaf("message:find"),
            "get": Leaf("message:get"),
            "life": Leaf("message:life"),
            "consume": Leaf("group.member:consume"),
        },
    ),
    "deadletter": Group(
        "Messages that a group gave up on.",
        {
            "list": Leaf("deadletter:list_letters"),
            "resend": Leaf("deadletter:resend"),
        },
    ),
    "acl": Group(
        "Accounts and white lists of brokers with access control.",
        {
            "init": Leaf("acl_init:init"),
            "list": Leaf("acl:list_files"),
            "put": Leaf("acl:put"),
            "delete": Leaf("acl:delete"),
            "whitelist": Leaf("acl:whitelist"),
        },
    ),
    "cluster": Group("Brokers and NameServers.", {"show": Leaf("cluster:show")}),
    "store": Group(
        "A store's files: checked, looked at, exported, backed up and restored.",
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
        "Settings of servers: what they are, where they are from, what is wrong with a file.",
        {
            "print": Leaf("config:print_settings", settings=_AS_IS),
            "check": Leaf("config:check"),
            "keys": Leaf("config:keys"),
        },
    ),
    "context": Group(
        "Names for clusters, so that addresses need not be typed.",
        {
            "list": Leaf("context:list_contexts"),
            "show": Leaf("context:show"),
            "use": Leaf("context:use"),
            "set": Leaf("context:set_context"),
            "delete": Leaf("context:delete"),
        },
    ),
    "completion": Group(
        "Completion of commands and options by the shell.",
        {
            "install": Leaf("completion:install"),
            "show": Leaf("completion:show"),
        },
    ),
    "demo": Leaf("demo.command:demo", _DEMO),
}


def _options(
    version: bool = typer.Option(False, "--version", "-V", help="Print the version and end."),
    access_key: str = typer.Option("", metavar="KEY", help="The account that signs requests (DELAYMQ_ACCESS_KEY)."),
    secret_key_file: str = typer.Option("", metavar="FILE", help="Its secret (DELAYMQ_SECRET_KEY, …_KEY_FILE)."),
    tls: bool = typer.Option(False, "--tls", help="Talk to brokers and NameServers with TLS (DELAYMQ_TLS=true)."),
    tls_ca: str = typer.Option("", metavar="FILE", help="Trusted issuers, PEM (DELAYMQ_TLS_CA; default: system's)."),
    tls_cert: str = typer.Option("", metavar="FILE", help="The certificate to show, PEM (DELAYMQ_TLS_CERT)."),
    tls_key: str = typer.Option("", metavar="FILE", help="Its key (DELAYMQ_TLS_KEY, DELAYMQ_TLS_KEY_PASSWORD)."),
    tls_server_name: str = typer.Option("", metavar="NAME", help="Name of servers' certificates, if not the host."),
    tls_insecure: bool = typer.Option(False, "--tls-insecure", help="Take any certificate of servers."),
) -> None:
    """`main` handles --version; here it stands for the help."""
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
    """Runs one command; ends by SystemExit with its exit code, or CommandError."""
    if COMPLETION_VARIABLE in os.environ:  # the shell asks
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()  # as a side effect typer learns the shells
    group_command("delaymq", _ABOUT, COMMANDS, _options)(args=list(words), prog_name="delaymq")
    return 0
