"""`delaymq context`: named sets of cluster addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, Yes, confirm
from delaymq.cli.target.contexts import (
    KEYS,
    TLS_KEYS,
    Context,
    Contexts,
    load,
    name_problem,
    path_of_file,
    save,
    target,
    with_context,
)
from delaymq.cli.terminal.output import console, print_json
from delaymq.cli.terminal.tables import table

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.")]


def list_contexts(as_json: AsJson = False) -> None:
    """List the contexts; * is the current one."""
    contexts = load(path_of_file())
    if as_json:
        for name, context in contexts.table.items():
            print_json(_data(contexts, name, context))
        return
    if not contexts.table:
        console().print(
            f"no contexts in {path_of_file()}: create one with `delaymq context set NAME --namesrv HOST:PORT`"
        )
        return
    rows = [
        ("*" if name == contexts.current else "", name, each.namesrv, each.http, each.token_file)
        for name, each in contexts.table.items()
    ]
    console().print(table(("", "name", "namesrv", "http", "token-file"), rows, left=5))


def show(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Default: the settings that commands use now.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a context, or the effective settings of commands, including environment and defaults.

    Tokens are never shown.
    """
    contexts = load(path_of_file())
    if name is None:
        now = target()
        data: dict[str, Any] = {
            "name": now.context or None,
            "namesrv": now.namesrv,
            "http": now.http,
            "hasToken": bool(now.token),
            "tls": now.tls is not None,
            "accessKey": now.account.access_key if now.account else None,
            "file": str(path_of_file()),
        }
    else:
        data = _data(contexts, name, _known(contexts, name))
    if as_json:
        print_json(data)
        return
    for key, value in data.items():
        console().print(f"{key}: {'-' if value is None or value == '' else value}")


def use(name: Name) -> None:
    """Make a context the current one."""
    contexts = load(path_of_file())
    _known(contexts, name)
    save(path_of_file(), Contexts(name, contexts.table))
    console().print(f"the current context is now {name}")


def set_context(
    name: Name,
    namesrv: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="NameServers, separated by semicolons.")
    ] = None,
    http: Annotated[str | None, typer.Option(metavar="URL", help="The broker's HTTP address.")] = None,
    token_file: Annotated[str | None, typer.Option(metavar="FILE", help="File with the httpToken.")] = None,
    access_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Access key of the account that signs requests.")
    ] = None,
    secret_key_file: Annotated[str | None, typer.Option(metavar="FILE", help="File with its secret key.")] = None,
    tls: Annotated[str | None, typer.Option(metavar="true|false", help="Whether to use TLS.")] = None,
    tls_ca: Annotated[str | None, typer.Option(metavar="FILE", help="Trusted CAs, PEM.")] = None,
    tls_cert: Annotated[str | None, typer.Option(metavar="FILE", help="Client certificate, PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its private key, PEM.")] = None,
    tls_server_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Expected name in server certificates.")
    ] = None,
    tls_insecure: Annotated[
        str | None, typer.Option(metavar="true|false", help="Accept any server certificate.")
    ] = None,
) -> None:
    """Create a context, or change the given values of one; the first context becomes the current one.

    Example: delaymq context set dev --namesrv 10.0.0.5:9876 --http http://10.0.0.5:8080
    """
    problem = name_problem(name)
    given = {
        "namesrv": namesrv, "http": http, "token_file": token_file, "tls": tls, "tls_ca": tls_ca, "tls_cert": tls_cert,
        "tls_key": tls_key, "tls_server_name": tls_server_name, "tls_insecure": tls_insecure, "access_key": access_key,
        "secret_key_file": secret_key_file,
    }  # fmt: skip
    if problem:
        raise CommandError(problem, EXIT_USAGE)
    if all(value is None for value in given.values()):
        raise CommandError(
            "give at least one of --namesrv, --http, --token-file, --access-key, --secret-key-file, --tls…", EXIT_USAGE
        )
    for option, value in given.items():
        if value is not None and not value.isprintable():
            text = f"--{option.replace('_', '-')}: the value contains unprintable characters: remove them"
            raise CommandError(text, EXIT_USAGE)
    _check_addresses(namesrv, http)
    contexts = load(path_of_file())
    before = contexts.table.get(name, Context())
    for option in ("tls", "tls_insecure"):
        if given[option] not in (None, "", "true", "false"):
            text = f"--{option.replace('_', '-')} {given[option]!r} is invalid: use true or false"
            raise CommandError(text, EXIT_USAGE)
    after = replace(before, **{option: value for option, value in given.items() if value is not None})
    changed = with_context(contexts, name, after)
    save(path_of_file(), changed)
    current = " and is the current context" if changed.current == name else ""
    console().print(f"context {name} was saved in {path_of_file()}{current}")


def delete(name: Name, yes: Yes = False) -> None:
    """Delete a context from the local file; brokers are not affected."""
    contexts = load(path_of_file())
    _known(contexts, name)
    confirm(f"Delete context {name}?", yes)
    save(path_of_file(), with_context(contexts, name, None))
    console().print(f"context {name} is deleted")


def _check_addresses(namesrv: str | None, http: str | None) -> None:
    if namesrv:
        from delaymq.cli.target.connection import check_name_servers

        check_name_servers(namesrv)
    if http:
        from delaymq.cli.target.http_api import checked_url

        checked_url(http)


def _known(contexts: Contexts, name: str) -> Context:
    if name not in contexts.table:
        known = ", ".join(contexts.table) or "none"
        raise CommandError(f"no context {name}; known contexts: {known}", EXIT_USAGE)
    return contexts.table[name]


def _data(contexts: Contexts, name: str, context: Context) -> dict[str, Any]:
    return {
        "name": name,
        "current": name == contexts.current,
        "namesrv": context.namesrv or None,
        "http": context.http or None,
        "tokenFile": context.token_file or None,
        **({"accessKey": context.access_key} if context.access_key else {}),
        **({"secretKeyFile": context.secret_key_file} if context.secret_key_file else {}),
        **{key: value for key in TLS_KEYS if (value := getattr(context, KEYS[key]))},
    }
