"""The account that signs a command's requests, from flags, environment or a context; never a secret in arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.target.secret_files import secret_line

SIGNING_HELP: Final = (
    "specify an account with `delaymq --access-key KEY …` or DELAYMQ_ACCESS_KEY, and its secret key with"
    " `delaymq --secret-key-file FILE …`, DELAYMQ_SECRET_KEY_FILE or DELAYMQ_SECRET_KEY"
)
# Values of `delaymq --access-key … --secret-key-file …`: global options, given before the command.
account_flags: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class SigningAccount:
    """An access key with its secret key."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    rocketmq_signature: bool = True


def account_from(said: Mapping[str, str], access_key: str, secret_key_file: str) -> SigningAccount | None:
    """Return the account from flags, then the environment, then a context.

    A context's secret is used only with its own key. Raises CommandError for a key without a secret.
    """
    key = account_flags.get("access-key") or said.get("DELAYMQ_ACCESS_KEY") or access_key
    file = account_flags.get("secret-key-file")
    secret = "" if file else said.get("DELAYMQ_SECRET_KEY", "")
    if not file and not secret:
        file = said.get("DELAYMQ_SECRET_KEY_FILE") or (secret_key_file if key == access_key else "")
    if not key:
        if account_flags.get("secret-key-file"):
            raise CommandError(f"a secret key is given without an access key: {SIGNING_HELP}", EXIT_USAGE)
        return None
    if file:
        secret = read_secret(Path(file).expanduser())
    if not secret:
        raise CommandError(f"no secret key for access key {key[:64]}: {SIGNING_HELP}", EXIT_USAGE)
    signature = said.get("DELAYMQ_ROCKETMQ_SIGNATURE", "true")
    if signature not in ("true", "false"):
        raise CommandError(f"DELAYMQ_ROCKETMQ_SIGNATURE is {signature[:64]!r}: use true or false", EXIT_USAGE)
    return SigningAccount(key, secret, said.get("DELAYMQ_SECURITY_TOKEN") or None, signature == "true")


def read_secret(path: Path) -> str:
    """Read the secret key from a file; raise CommandError if it is unusable."""
    return secret_line(path, "secret key", "one line, the account's secretKey in plain_acl.yml")
