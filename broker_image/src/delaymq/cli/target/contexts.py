"""NameServers and HTTP address of a command, from flags, the environment, or a named context in a file.

    current = "dev"

    [contexts.dev]
    namesrv = "10.0.0.5:9876"
    http = "http://10.0.0.5:8080"
    token-file = "~/.secrets/dev-token"

The file never contains tokens or secret keys themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from delaymq.cli.errors import EXIT_USAGE, CommandError, exit_code_of_path
from delaymq.cli.target.accounts import SigningAccount, account_flags, account_from
from delaymq.cli.target.secret_files import secret_line

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
DEFAULT_HTTP: Final = "http://127.0.0.1:8080"
MAX_FILE_BYTES: Final = 256 * 1024
"""A context takes some 200 bytes; a wrong file must not exhaust the memory."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
KEYS: Final = {
    "namesrv": "namesrv",
    "http": "http",
    "token-file": "token_file",
    "access-key": "access_key",
    "secret-key-file": "secret_key_file",
    "tls": "tls",
    "tls-ca": "tls_ca",
    "tls-cert": "tls_cert",
    "tls-key": "tls_key",
    "tls-server-name": "tls_server_name",
    "tls-insecure": "tls_insecure",
}
"""Key in the file → field of a context."""
TLS_KEYS: Final = tuple(key for key in KEYS if key.startswith("tls"))
# Values of `delaymq --tls…`, global options given before the command: key of a context → value.
tls_flags: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Context:
    """A named cluster; empty fields fall back to the defaults."""

    namesrv: str = ""
    http: str = ""
    token_file: str = ""
    access_key: str = ""
    secret_key_file: str = ""
    tls: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    tls_insecure: str = ""


@dataclass(frozen=True, slots=True)
class Contexts:
    """Contents of the file."""

    current: str = ""
    table: Mapping[str, Context] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """The servers that a command uses."""

    namesrv: str
    http: str
    token: str = field(repr=False)
    context: str
    """The context that supplied values not given by flags or the environment; empty: none."""
    tls: Mapping[str, str] | None = None
    """TLS options by keys of a context; None: plaintext."""
    https: Mapping[str, str] = field(default_factory=dict)
    """TLS options for https:// addresses."""
    account: SigningAccount | None = None
    """The account that signs requests to brokers; None: unsigned."""
    http_account: SigningAccount | None = None
    """The account that signs in to the HTTP API; None: none, or it belongs to a context with another address."""


def path_of_file(environment: Mapping[str, str] | None = None) -> Path:
    """Return $DELAYMQ_CONFIG, or contexts.toml in the user's configuration folder."""
    known = os.environ if environment is None else environment
    if known.get("DELAYMQ_CONFIG"):
        return Path(known["DELAYMQ_CONFIG"]).expanduser()
    folder = Path(known["XDG_CONFIG_HOME"]) if known.get("XDG_CONFIG_HOME") else Path("~/.config").expanduser()
    return folder / "delaymq" / "contexts.toml"


def load(path: Path) -> Contexts:
    """Return the file's contexts; empty without a file. Raises CommandError with the line of an error."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", EXIT_USAGE) from error
    if len(data) > MAX_FILE_BYTES:
        raise CommandError(
            f"{path} exceeds {MAX_FILE_BYTES} bytes, so it is not a contexts file: replace it, or set DELAYMQ_CONFIG to"
            " another file",
            EXIT_USAGE,
        )
    try:
        text = data.decode()
        tree = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise CommandError(f"{path}, line {line}: not UTF-8; save the file as UTF-8", EXIT_USAGE) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CommandError(f"{path} is not TOML: {error}", EXIT_USAGE) from error
    return _checked(path, text, tree)


def _checked(path: Path, text: str, tree: dict[str, Any]) -> Contexts:
    def wrong(word: str, what: str) -> CommandError:
        return CommandError(f"{path}, line {_line_of(text, word)}: {what}", EXIT_USAGE)

    for key in tree:
        if key not in ("current", "contexts"):
            raise wrong(key, f'{key!r} is unknown: use current = "NAME" and [contexts.NAME]')
    current, tables = tree.get("current", ""), tree.get("contexts", {})
    if not isinstance(current, str):
        raise wrong("current", 'use current = "NAME"')
    if not isinstance(tables, dict):
        raise wrong("contexts", "use a section [contexts.NAME] for each context")
    found = {}
    for name, values in tables.items():
        if not _NAME.match(name):
            raise wrong(name, name_problem(name))
        if not isinstance(values, dict):
            raise wrong(name, f"use a section [contexts.{name}]")
        for key, value in values.items():
            if key not in KEYS:
                raise wrong(key, f"{key!r} is not a key of a context; the keys are {', '.join(KEYS)}")
            if not isinstance(value, str):
                raise wrong(key, f'use {key} = "…"')
        found[name] = Context(**{KEYS[key]: value for key, value in values.items()})
    return Contexts(current, found)


def _line_of(text: str, word: str) -> int:
    """Return the first line that contains `word`, because tomllib does not report positions."""
    pattern = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)), 1)


def name_problem(name: str) -> str:
    """Return why `name` is not a valid context name; empty if it is valid."""
    return "" if _NAME.match(name) else f"{name[:64]!r} is not a context name: use up to 64 letters, digits, - and _"


def save(path: Path, contexts: Contexts) -> None:
    """Replace the file atomically, readable by its owner only."""
    lines = [f"current = {_quoted(contexts.current)}"] if contexts.current else []
    for name, context in contexts.table.items():
        lines += ["", f"[contexts.{name}]"]
        lines += [f"{key} = {_quoted(value)}" for key, at in KEYS.items() if (value := getattr(context, at))]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes it readable for its owner only.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write("\n".join(lines).lstrip("\n") + "\n")
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}", exit_code_of_path(error)) from error


def _quoted(value: str) -> str:
    # For printable text, JSON and TOML use the same escapes.
    return json.dumps(value, ensure_ascii=False)


def target(
    namesrv: str | None = None,
    http: str | None = None,
    token_file: str | None = None,
    context: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Target:
    """Return the servers to use: from flags, then the environment, then the context, then the default local ports.

    A context named by a flag takes precedence over the environment. Raises CommandError for an invalid file or an
    unknown context.
    """
    known = os.environ if environment is None else environment
    chosen = context or known.get("DELAYMQ_CONTEXT") or ""
    said = {} if context else known
    name_servers = namesrv or said.get("DELAYMQ_NAMESRV") or ""
    address = http or said.get("DELAYMQ_HTTP") or ""
    found, name = _context(path_of_file(known), chosen)
    token = _token_in(token_file) if token_file else said.get("DELAYMQ_HTTP_TOKEN", "")
    # A context's token is sent only to that context's address.
    if not token and found.token_file and (not address or address == found.http):
        token = _token_in(found.token_file)
    token = token or known.get("DELAYMQ_HTTP_TOKEN", "")
    account = account_from(said, found.access_key, found.secret_key_file)
    is_of_context = account is not None and not account_flags.get("access-key") and not said.get("DELAYMQ_ACCESS_KEY")
    is_elsewhere = bool(address) and address != found.http
    tls = _tls(said, found)
    return Target(
        namesrv=name_servers or found.namesrv or DEFAULT_NAME_SERVER,
        http=address or found.http or DEFAULT_HTTP,
        token=token,
        context=name,
        tls=tls if tls and tls.get("tls") != "false" else None,
        https=tls,
        account=account,
        # Like a context's token, its secret key is sent only to its address.
        http_account=None if is_of_context and is_elsewhere else account,
    )


def _tls(said: Mapping[str, str], context: Context) -> Mapping[str, str]:
    """Return the TLS options from flags, then the environment, then the context.

    A file or a name implies TLS for brokers and NameServers, unless `tls` is false.
    """
    settings = {}
    for key in TLS_KEYS:
        variable = f"DELAYMQ_{key.upper().replace('-', '_')}"
        value = tls_flags.get(key) or said.get(variable) or getattr(context, KEYS[key])
        if key in ("tls", "tls-insecure") and value not in ("", "true", "false"):
            raise CommandError(f"{key} ({variable}) is {value[:64]!r}: use true or false", EXIT_USAGE)
        if value and (value != "false" or key == "tls"):
            settings[key] = value
    return settings


def _context(path: Path, chosen: str) -> tuple[Context, str]:
    contexts = load(path)
    name = chosen or contexts.current
    if not name:
        return Context(), ""
    if name not in contexts.table:
        known = ", ".join(contexts.table) or "none"
        raise CommandError(
            f"no context {name} in {path} (known contexts: {known}): create it with"
            f" `delaymq context set {name} --namesrv HOST:PORT`, or select one with `delaymq context use NAME`",
            EXIT_USAGE,
        )
    return contexts.table[name], name


def _token_in(path: str) -> str:
    should_be = "one line of ASCII, the broker's httpToken"
    return secret_line(Path(path).expanduser(), "token", should_be, encoding="ascii")


def with_context(contexts: Contexts, name: str, context: Context | None) -> Contexts:
    """Return the contexts with `name` changed, added (the first becomes the current one), or removed (None)."""
    table = dict(contexts.table)
    if context is None:
        table.pop(name, None)
        return Contexts("" if contexts.current == name else contexts.current, table)
    table[name] = context
    return replace(contexts, current=contexts.current or name, table=table)
