"""Where a store is: a folder, or a broker that hands it out over HTTP."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from delaymq_spark.store.folders import FolderError, folder_of

TOKEN_VARIABLE: Final = "DELAYMQ_HTTP_TOKEN"
# Longer ones are nobody's; the broker's HTTP server takes lines of 8 KiB.
MAX_TOKEN_LENGTH: Final = 4096


class StorePathError(ValueError):
    """The path is no store that can be read here; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token that nothing shows by mistake."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        return "Token"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A broker's address with a token of its own, instead of the environment's."""

    url: str
    token: Token | None = None

    def __str__(self) -> str:
        return self.url


StorePath = str | StoreAddress
"""A folder without a slash at its end, or a broker."""


def check_store_path(path: str) -> str:
    """`path` in one form: a folder, or a broker's http(s) address. StorePathError when no store can be there."""
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
    """Whether a broker is asked, and no folder read."""
    return isinstance(path, StoreAddress) or path.startswith(("http://", "https://"))


def with_token(path: str, token: str | None) -> StorePath:
    """A checked path and the token that was given for it; a folder needs none. StorePathError."""
    if not is_address(path) or token is None or not token.strip():
        return path
    return StoreAddress(path, checked_token(token, "the option `token`"))


def token_of(path: StorePath) -> Token | None:
    """The token that was given with the path, else the environment's; None without. StorePathError."""
    if isinstance(path, StoreAddress) and path.token is not None:
        return path.token
    stated = os.environ.get(TOKEN_VARIABLE, "")
    return checked_token(stated, f"the environment's {TOKEN_VARIABLE}") if stated.strip() else None


def checked_token(text: str, where: str) -> Token:
    """StorePathError when it cannot stand in a header; it is not shown."""
    text = text.strip()
    if len(text) > MAX_TOKEN_LENGTH or not all("!" <= character <= "~" for character in text):
        raise StorePathError(
            f"{where} is no token: it has blanks or characters that no header may have, or more than "
            f"{MAX_TOKEN_LENGTH} of them; give the broker's httpToken"
        )
    return Token(text)


def _checked_address(path: str) -> str:
    try:
        parts = urlsplit(path)
        port = parts.port
    except ValueError:
        raise StorePathError("the address of the broker cannot be read: give http://HOST:PORT") from None
    # Not shown: there is a password in it.
    if parts.username is not None or parts.password is not None:
        raise StorePathError(
            f"a broker's address has no user and no password: give http://HOST:PORT, and the token by {TOKEN_VARIABLE}"
        )
    if not parts.hostname or port == 0 or any(character <= " " or character > "~" for character in path):
        raise StorePathError(f"{path[:200]!r} is no broker's address: give http://HOST:PORT")
    if parts.query or parts.fragment:
        raise StorePathError(f"{path.partition('?')[0][:200]}: an address ends before ? and #: give http://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    stated_port = "" if port is None else f":{port}"
    return f"{parts.scheme.lower()}://{host}{stated_port}{parts.path.rstrip('/')}"
