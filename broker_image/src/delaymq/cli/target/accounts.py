"""Who signs a command's requests: flags, environment, or a context; the secret is never on a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.target.secret_files import secret_line

HOW_TO_SIGN: Final = (
    "name an account: `delaymq --access-key KEY …` (or DELAYMQ_ACCESS_KEY), and its secret by --secret-key-file FILE,"
    " DELAYMQ_SECRET_KEY_FILE or DELAYMQ_SECRET_KEY"
)
# Of `delaymq --access-key … --secret-key-file …`, which stand before the command and are for all.
account_flags: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Account:
    """An access key with its secret."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    rocketmq_signature: bool = True


def account_of(said: Mapping[str, str], access_key: str, secret_key_file: str) -> Account | None:
    """Flags, then the environment, then a context's key and file. CommandError for a key without a secret.

    A context's secret goes with its own key only.
    """
    key = account_flags.get("access-key") or said.get("DELAYMQ_ACCESS_KEY") or access_key
    file = account_flags.get("secret-key-file")
    secret = "" if file else said.get("DELAYMQ_SECRET_KEY", "")
    if not file and not secret:
        file = said.get("DELAYMQ_SECRET_KEY_FILE") or (secret_key_file if key == access_key else "")
    if not key:
        if account_flags.get("secret-key-file"):
            raise CommandError(f"there is a secret key and no access key: {HOW_TO_SIGN}", EXIT_USAGE)
        return None
    if file:
        secret = secret_in(Path(file).expanduser())
    if not secret:
        raise CommandError(f"access key {key[:64]} has no secret: {HOW_TO_SIGN}", EXIT_USAGE)
    signature = said.get("DELAYMQ_ROCKETMQ_SIGNATURE", "true")
    if signature not in ("true", "false"):
        raise CommandError("DELAYMQ_ROCKETMQ_SIGNATURE: write true or false", EXIT_USAGE)
    return Account(key, secret, said.get("DELAYMQ_SECURITY_TOKEN") or None, signature == "true")


def secret_in(path: Path) -> str:
    """The secret that is a file's one line. CommandError."""
    return secret_line(path, "secret key", "one line, as plain_acl.yml has it")
