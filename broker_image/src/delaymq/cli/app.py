"""The commands for people: one table of them, and how one is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import typer

from delaymq.cli.lazy import Entry, Group, Leaf, group_command

_ABOUT: Final = "Messages that arrive later: a broker that speaks RocketMQ 4.9's protocol, and its tools."
# main() runs servers without typer; here they stand so that the list of commands is whole.
_AS_IS: Final = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "add_help_option": False,
}

# Functions stand as module:function below delaymq.cli; a text is what `delaymq --help` says without loading them.
COMMANDS: Final[Mapping[str, Entry]] = {
    "standalone": Leaf("server_commands:standalone", "Run a NameServer and a broker in one process.", _AS_IS),
    "broker": Leaf("server_commands:broker", "Run a broker.", _AS_IS),
    "namesrv": Leaf("server_commands:namesrv", "Run a NameServer.", _AS_IS),
    "send": Leaf("message_commands:send", "Send a message, at once or delayed."),
    "receive": Leaf("message_commands:receive", "Receive messages and show how late they came."),
    "delay": Group(
        "Pending delayed messages of a broker.",
        {
            "status": Leaf("delay_commands:status"),
            "pending": Leaf("delay_commands:pending"),
            "watch": Leaf("delay_watch:watch"),
            "resume": Leaf("delay_commands:resume"),
        },
    ),
    "store": Group(
        "A store's files, read without a broker and never changed.",
        {
            "verify": Leaf("store_commands:verify"),
            "inspect": Leaf("store_commands:inspect"),
        },
    ),
    "context": Group(
        "Names for clusters, so that addresses need not be typed.",
        {
            "list": Leaf("context_commands:list_contexts"),
            "show": Leaf("context_commands:show"),
            "use": Leaf("context_commands:use"),
            "set": Leaf("context_commands:set_context"),
            "delete": Leaf("context_commands:delete"),
        },
    ),
    "demo": Leaf("demo.command:demo", "See delayed messages arrive once and on time, also when the broker is killed."),
}


def _options(
    version: bool = typer.Option(False, "--version", "-V", help="Print the version and end."),
) -> None:
    """`main` handles --version; here it stands for the help."""


def run(words: Sequence[str]) -> int:
    """Runs one command; ends by SystemExit with its exit code, or CommandError."""
    group_command("delaymq", _ABOUT, COMMANDS, _options)(args=list(words), prog_name="delaymq")
    return 0
