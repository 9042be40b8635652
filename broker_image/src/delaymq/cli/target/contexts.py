"""Which NameServers and which HTTP address a command means: flags, environment, or a named context in a small file.

    current = "dev"

    [contexts.dev]
    namesrv = "10.0.0.5:9876"
    http = "http://10.0.0.5:8080"
    token-file = "~/.secrets/dev-token"

Tokens and secret keys themselves are never in that file.
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
from delaymq.cli.target.accounts import Account, account_of
from delaymq.cli.target.secret_files import secret_line

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
DEFAULT_HTTP: Final = "http://127.0.0.1:8080"
MAX_FILE_BYTES: Final = 256 * 1024
"""A context has some 200 bytes; another file named by mistake must not fill the memory."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
# Key of the file → field of a context.
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
TLS_KEYS: Final = tuple(key for key in KEYS if key.startswith("tls"))
# Of `delaymq --tls…`, which stand before the command and are for all: key of a context → value.
tls_flags: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Context:
    """One named cluster; what is empty falls back to the defaults."""

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
    """The whole file."""

    current: str = ""
    table: Mapping[str, Context] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """What a command talks to."""

    namesrv: str
    http: str
    token: str = field(repr=False)
    context: str
    """The context that filled what neither flag nor environment said; empty: none."""
    tls: Mapping[str, str] | None = None
    """How it is talked to with TLS, by keys of a context; None: without."""
    account: Account | None = None
    """Who signs requests to brokers; None: nobody."""


def path_of_file(environment: Mapping[str, str] | None = None) -> Path:
    """$DELAYMQ_CONFIG, or contexts.toml in the user's folder of settings."""
    known = os.environ if environment is None else environment
    if known.get("DELAYMQ_CONFIG"):
        return Path(known["DELAYMQ_CONFIG"]).expanduser()
    folder = Path(known["XDG_CONFIG_HOME"]) if known.get("XDG_CONFIG_HOME") else Path("~/.config").expanduser()
    return folder / "delaymq" / "contexts.toml"


def load(path: Path) -> Contexts:
    """The file's contexts; none where there is no file. CommandError says in which line it is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror}", EXIT_USAGE) from error
    if len(data) > MAX_FILE_BYTES:
        raise CommandError(f"{path}: has more than {MAX_FILE_BYTES} bytes: it is no file of contexts", EXIT_USAGE)
    try:
        text = data.decode()
        tree = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise CommandError(f"{path}, line {line}: is not UTF-8", EXIT_USAGE) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CommandError(f"{path}: is not TOML: {error}", EXIT_USAGE) from error
    return _checked(path, text, tree)


def _checked(path: Path, text: str, tree: dict[str, Any]) -> Contexts:
    def wrong(word: str, what: str) -> CommandError:
        return CommandError(f"{path}, line {_line_of(text, word)}: {what}", EXIT_USAGE)

    for key in tree:
        if key not in ("current", "contexts"):
            raise wrong(key, f'{key!r} is not known here: write current = "NAME" and [contexts.NAME]')
    current, tables = tree.get("current", ""), tree.get("contexts", {})
    if not isinstance(current, str):
        raise wrong("current", 'write current = "NAME"')
    if not isinstance(tables, dict):
        raise wrong("contexts", "write a section [contexts.NAME] for each context")
    found = {}
    for name, values in tables.items():
        if not _NAME.match(name):
            raise wrong(name, name_problem(name))
        if not isinstance(values, dict):
            raise wrong(name, f"write a section [contexts.{name}]")
        for key, value in values.items():
            if key not in KEYS:
                raise wrong(key, f"{key!r} is not a key of a context: they are {', '.join(KEYS)}")
            if not isinstance(value, str):
                raise wrong(key, f'write {key} = "…"')
        found[name] = Context(**{KEYS[key]: value for key, value in values.items()})
    return Contexts(current, found)


def _line_of(text: str, word: str) -> int:
    """The first line that names `word`; TOML's tree does not keep places."""
    pattern = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)), 1)


def name_problem(name: str) -> str:
    """Why `name` cannot be a context's; empty when it can."""
    return "" if _NAME.match(name) else f"{name[:64]!r} cannot name a context: use letters, digits, - and _, at most 64"


def save(path: Path, contexts: Contexts) -> None:
    """Writes the file anew, for its owner only; whole or not at all."""
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
        raise CommandError(f"{path}: cannot be written: {error.strerror}", exit_code_of_path(error)) from error


def _quoted(value: str) -> str:
    # JSON's escapes of printable text are TOML's too.
    return json.dumps(value, ensure_ascii=False)


def target(
    namesrv: str | None = None,
    http: str | None = None,
    token_file: str | None = None,
    context: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Target:
    """What a command talks to: its flags, then the environment, then the context, then this machine's default ports.

    A context named by a flag goes before the environment, as flags do. CommandError for a bad file, a missing context.
    """
    known = os.environ if environment is None else environment
    chosen = context or known.get("DELAYMQ_CONTEXT") or ""
    said = {} if context else known
    name_servers = namesrv or said.get("DELAYMQ_NAMESRV") or ""
    address = http or said.get("DELAYMQ_HTTP") or ""
    found, name = _context(path_of_file(known), chosen)
    token = _token_in(token_file) if token_file else said.get("DELAYMQ_HTTP_TOKEN", "")
    # A context's token is for that context's address and no other.
    if not token and found.token_file and (not address or address == found.http):
        token = _token_in(found.token_file)
    token = token or known.get("DELAYMQ_HTTP_TOKEN", "")
    return Target(
        namesrv=name_servers or found.namesrv or DEFAULT_NAME_SERVER,
        http=address or found.http or DEFAULT_HTTP,
        token=token,
        context=name,
        tls=_tls(said, found),
        account=account_of(said, found.access_key, found.secret_key_file),
    )


def _tls(said: Mapping[str, str], context: Context) -> Mapping[str, str] | None:
    """Flags, then the environment, then the context; what names a file or a name wants TLS."""
    settings = {}
    for key in TLS_KEYS:
        variable = f"DELAYMQ_{key.upper().replace('-', '_')}"
        value = tls_flags.get(key) or said.get(variable) or getattr(context, KEYS[key])
        if key in ("tls", "tls-insecure") and value not in ("", "true", "false"):
            raise CommandError(f"{key} ({variable}) is {value[:64]!r}: write true or false", EXIT_USAGE)
        if value and value != "false":
            settings[key] = value
        elif key == "tls" and value:
            return None
    return settings or None


def _context(path: Path, chosen: str) -> tuple[Context, str]:
    contexts = load(path)
    name = chosen or contexts.current
    if not name:
        return Context(), ""
    if name not in contexts.table:
        known = ", ".join(contexts.table) or "none yet"
        raise CommandError(
            f"{path} has no context {name} (it has: {known}): make it with"
            f" `delaymq context set {name} --namesrv HOST:PORT`, or choose one with `delaymq context use NAME`",
            EXIT_USAGE,
        )
    return contexts.table[name], name


def _token_in(path: str) -> str:
    should_be = "one line of ASCII, as httpToken has it"
    return secret_line(Path(path).expanduser(), "token", should_be, encoding="ascii")


def with_context(contexts: Contexts, name: str, context: Context | None) -> Contexts:
    """The contexts with `name` changed, added (as the current one if it is the first), or removed (None)."""
    table = dict(contexts.table)
    if context is None:
        table.pop(name, None)
        return Contexts("" if contexts.current == name else contexts.current, table)
    table[name] = context
    return replace(contexts, current=contexts.current or name, table=table)
