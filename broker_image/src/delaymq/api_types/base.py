"""What all forms have in common, and the one form of errors."""

from typing import Annotated, Final

import msgspec

MIN_LEASE_MS: Final = 1_000
MAX_LEASE_MS: Final = 600_000
"""A broker that nobody looks after any more takes writes again, and deletes its log again, after this at the latest."""

LeaseMs = Annotated[int, msgspec.Meta(ge=MIN_LEASE_MS, le=MAX_LEASE_MS)]


class Body(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The JSON body of a request."""


class Answer(msgspec.Struct, rename="camel", kw_only=True):
    """The JSON of an answer."""


class FrozenAnswer(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The same where readers keep and share it."""


class Problem(Answer):
    """What went wrong."""

    code: str
    message: str


class Refusal(Answer):
    """The one form of errors."""

    error: Problem
