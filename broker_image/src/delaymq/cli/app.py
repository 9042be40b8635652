"""The commands for people, as one typer application."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from delaymq.cli import delay_command, message_commands, store_commands
from delaymq.cli.demo import command as demo_command
from delaymq.cli.serve import ABOUT, serve

app = typer.Typer(
    name="delaymq",
    help="Messages that arrive later: a broker that speaks RocketMQ 4.9's protocol, and its tools.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_AS_IS = {"allow_extra_args": True, "ignore_unknown_options": True}


def _server(name: str) -> None:
    # main() runs servers without typer; here they stand so that the list of commands is whole.
    @app.command(name, help=ABOUT[name], context_settings=_AS_IS, add_help_option=False)
    def run_server(context: typer.Context) -> None:
        raise typer.Exit(serve(name, context.args))


for _name in ABOUT:
    _server(_name)

app.command("send")(message_commands.send)
app.command("receive")(message_commands.receive)

_delay = typer.Typer(help="Pending delayed messages of a broker.", no_args_is_help=True)
_delay.command("status")(delay_command.status)
# With one command alone typer would drop its name.
_delay.callback()(lambda: None)
app.add_typer(_delay, name="delay")

_store = typer.Typer(help="A store's files, read without a broker and never changed.", no_args_is_help=True)
_store.command("verify")(store_commands.verify)
_store.command("inspect")(store_commands.inspect)
app.add_typer(_store, name="store")

app.command("demo")(demo_command.demo)


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", "-V", help="Print the version and end."),
) -> None:
    """`main` handles --version; here it stands for the help."""


def run(words: Sequence[str]) -> int:
    """Runs one command; ends by SystemExit with its exit code, or CommandError."""
    app(args=list(words), prog_name="delaymq")
    return 0
