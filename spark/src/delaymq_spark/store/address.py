"""Location of a store: a folder, or a broker that serves it over HTTP."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from delaymq_spark.store.folders import FolderError, folder_of

TOKEN_VARIABLE: Final = "DELAYMQ_HTTP_TOKEN"
MAX_TOKEN_LENGTH: Final = 4096
"""In characters; the broker's HTTP server accepts header lines of 8 KiB."""


class StorePathError(ValueError):
    """The path does not name a readable store; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token that is omitted from every representation."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "Token"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A broker's address and a token, which takes precedence over the environment's."""

    url: str
    token: Token | None = None

    def __str__(self) -> str:
        return self.url


StorePath = str | StoreAddress
"""A folder without a trailing slash, or a broker."""


def check_store_path(path: str) -> str:
    """Return `path` in normal form: a folder, or a broker's http(s) address. StorePathError if it is neither."""
    path = path.strip()
    if not path:
        raise StorePathError("the option `path` is missing: give the folder of a broker's store, or http://HOST:PORT")
    if path.lower().startswith(("http:", "https:")):
        return _checked_address(path)
    try:
        path = folder_of(path, "a folder, such as /var/lib/delaymq/store, or its broker's address, http://HOST:PORT")
    except FolderError as error:
        raise StorePathError(str(error)) from None
    return path.rstrip("/") or "/"


def is_address(path: StorePath) -> bool:
    """Return whether `path` names a broker, not a folder."""
    return isinstance(path, StoreAddress) or path.startswith(("http://", "https://"))


def with_token(path: str, token: str | None) -> StorePath:
    """Return a checked path with the token given for it; a folder needs none. StorePathError."""
    if not is_address(path) or token is None or not token.strip():
        return path
    return StoreAddress(path, checked_token(token, "the option `token`"))


def token_of(path: StorePath) -> Token | None:
    """Return the token given with the path, else the environment's, or None. StorePathError."""
    if isinstance(path, StoreAddress) and path.token is not None:
        return path.token
    stated = os.environ.get(TOKEN_VARIABLE, "")
    return checked_token(stated, f"the environment's {TOKEN_VARIABLE}") if stated.strip() else None


def checked_token(text: str, where: str) -> Token:
    """Return `text` as a token. StorePathError, which does not show it, if a header cannot contain it."""
    text = text.strip()
    if len(text) > MAX_TOKEN_LENGTH or not all("!" <= character <= "~" for character in text):
        raise StorePathError(
            f"{where} is not a valid token: it has more than {MAX_TOKEN_LENGTH} characters, or some that a header "
            "cannot contain, such as spaces; give the broker's httpToken"
        )
    return Token(text)


def _checked_address(path: str) -> str:
    try:
        parts = urlsplit(path)
        port = parts.port
    except ValueError:
        raise StorePathError("the broker's address is malformed: give http://HOST:PORT") from None
    # The address is not shown, since it contains a password.
    if parts.username is not None or parts.password is not None:
        raise StorePathError(
            "a broker's address cannot contain a user name or password: give http://HOST:PORT, and the token in "
            f"{TOKEN_VARIABLE}"
        )
    if not parts.hostname or port == 0 or any(character <= " " or character > "~" for character in path):
        raise StorePathError(f"{path[:200]!r} is not a broker's address: give http://HOST:PORT")
    if parts.query or parts.fragment:
        raise StorePathError(f"{path.partition('?')[0][:200]}: an address cannot contain ? or #: give http://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    stated_port = "" if port is None else f":{port}"
    return f"{parts.scheme.lower()}://{host}{stated_port}{parts.path.rstrip('/')}"
