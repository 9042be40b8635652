"""Base classes of all types, and the error response."""

from typing import Annotated, Final

import msgspec

MIN_LEASE_MS: Final = 1_000
MAX_LEASE_MS: Final = 600_000
"""Maximum time after which an unattended broker accepts writes again, and deletes its log again."""

LeaseMs = Annotated[int, msgspec.Meta(ge=MIN_LEASE_MS, le=MAX_LEASE_MS)]


class Body(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The JSON body of a request."""


class FrozenBody(msgspec.Struct, rename="camel", kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The immutable JSON body of a request, or a part of one, which can be kept."""


class Answer(msgspec.Struct, rename="camel", kw_only=True):
    """The JSON body of a response."""


class FrozenAnswer(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The immutable JSON body of a response, which readers can share."""


class Problem(Answer):
    """Code and message of an error."""

    code: str
    message: str


class Refusal(Answer):
    """Error response."""

    error: Problem
