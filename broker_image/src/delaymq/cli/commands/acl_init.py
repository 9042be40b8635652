"""`delaymq acl init`: enable access control on a broker and create its administrator."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Annotated, Final

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.terminal.output import console
from delaymq.config.errors import ConfigError
from delaymq.config.properties_text import read_properties_file, rewrite

SECRET_BYTES: Final = 32
CERTIFICATE: Final = "tls.server.certPath"
_KEY: Final = re.compile(r"[A-Za-z0-9._-]{7,64}")
_RULES: Final = """\
# Access rules of this broker: docs/operations/access-control.md. Changes take effect within seconds.
accounts:
- accessKey: {key}
  secretKey: {secret}
  admin: true
  # RocketMQ's clients and mqadmin do not support this signature: give them separate accounts.
  requireSecondSignature: true
"""


def init(
    config: Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="Configuration file of the broker.")],
    key: Annotated[str, typer.Option(metavar="KEY", help="Access key of the administrator.")] = "operators",
) -> None:
    """Enable access control in a broker's configuration file, and create an administrator.

    Writes plain_acl.yml and KEY.secret to the file's folder. The broker reads its configuration when it starts.

    Example: delaymq acl init -c broker.conf
    """
    if not _KEY.fullmatch(key):
        raise CommandError(
            f"--key {key[:64]!r} is invalid: use 7 to 64 of the characters A-Z, a-z, 0-9, '.', '_' and '-'", EXIT_USAGE
        )
    rules, secret_file = config.with_name("plain_acl.yml"), config.with_name(f"{key}.secret")
    try:
        stated = read_properties_file(config)
    except ConfigError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    if stated.get("aclConfigPath") or stated.get("aclEnable", "false").strip() != "false":
        raise CommandError(f"{config} already enables access control: add accounts with `delaymq acl put`", EXIT_USAGE)
    values = {"aclEnable": "true"}
    if stated.get(CERTIFICATE):
        values["aclAdminNeedsTls"] = "true"
    secret = secrets.token_urlsafe(SECRET_BYTES)
    made: list[Path] = []
    try:
        for path, text in ((rules, _RULES.format(key=key, secret=secret)), (secret_file, secret + "\n")):
            _make(path, text)
            made.append(path)
        rewrite(config, values)
    except (ConfigError, OSError) as error:
        for path in made:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise CommandError(f"{error.filename} already exists: move it away first", EXIT_USAGE) from error
        why = f"cannot write to {config.parent}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise CommandError(f"{why}; nothing was changed") from error
    out = console()
    out.print(f"{rules} defines the administrator {key}; its secret key is in {secret_file}")
    out.print(f"{config} sets {' and '.join(f'{name}={value}' for name, value in values.items())}: restart the broker")
    if len(values) == 1:
        out.print(f"without a certificate ({CERTIFICATE}), messages and RocketMQ's signatures are sent in plaintext")


def _make(path: Path, text: str) -> None:
    # The file is never readable by others, and an existing file is never overwritten.
    with open(path, "x", encoding="utf-8", opener=_private) as file:
        file.write(text)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
