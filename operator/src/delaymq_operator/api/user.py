"""The User resource: an account of a Broker's access control."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from delaymq_operator.api.conditions import Condition
from delaymq_operator.api.errors import SpecError
from delaymq_operator.api.names import MIN_ACCESS_KEY_CHARS, OPERATOR_ACCESS_KEY
from delaymq_operator.api.resource import ApiStruct, Resource, StatusStruct, metadata_of, spec_of, status_of
from delaymq_operator.api.topic import BrokerRef

MAX_ACCESS_KEY_CHARS: Final = 128
MAX_QUOTA: Final = (1 << 53) - 1
"""Largest whole number that every JSON reader represents exactly."""

Permission = Literal["DENY", "PUB", "SUB", "PUB|SUB"]
_ACCESS_KEY: Final = re.compile("[A-Za-z0-9._-]+")
_NAME: Final = re.compile("[%|a-zA-Z0-9_-]+")
_DURATION: Final = re.compile(r"(?=.)(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,5})s)?", re.ASCII)

Quota = Annotated[int, Meta(ge=0, le=MAX_QUOTA)]
Rate = Annotated[int, Meta(ge=1, le=MAX_QUOTA)]


class NamedPermission(ApiStruct, frozen=True, kw_only=True):
    """Permission for a topic or a consumer group."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    permission: Permission


class UserQuotas(ApiStruct, frozen=True, kw_only=True):
    """Quotas of the account on each broker; the keys are those of the rule file."""

    send_bytes_per_second: Rate | None = None
    send_requests_per_second: Rate | None = None
    pull_bytes_per_second: Rate | None = None
    pull_requests_per_second: Rate | None = None
    requests_per_second: Rate | None = None
    event_loop_percent: Annotated[int, Meta(ge=1, le=100)] | None = None
    connections: Rate | None = None
    held_pulls: Quota | None = None
    created_topics: Quota | None = None
    created_groups: Quota | None = None
    max_delay_ms: Annotated[int, Meta(ge=10, le=10_000)] | None = None


class Rotation(ApiStruct, frozen=True, kw_only=True):
    """Changes of the secret key."""

    every: Annotated[str, Meta(max_length=18)] | None = None
    """Time between two changes; None: only on request."""
    overlap: Annotated[str, Meta(max_length=18)] = "1h"
    """Time for which the former secret key stays valid after the new one was given to clients."""
    request: Annotated[str, Meta(max_length=256)] | int | None = None
    """A change of this value requests a new secret key."""


class UserSpec(ApiStruct, frozen=True, kw_only=True):
    """Desired state."""

    broker_ref: BrokerRef
    access_key: Annotated[str, Meta(min_length=MIN_ACCESS_KEY_CHARS, max_length=MAX_ACCESS_KEY_CHARS)] | None = None
    admin: bool = False
    role: Literal["read", "operate", "administer"] | None = None
    """Role on HTTP; None: only what the permissions allow."""
    require_second_signature: bool | None = None
    """None: for administrators only."""
    default_topic_permission: Permission = "DENY"
    default_group_permission: Permission = "DENY"
    topics: Annotated[tuple[NamedPermission, ...], Meta(max_length=256)] = ()
    groups: Annotated[tuple[NamedPermission, ...], Meta(max_length=256)] = ()
    quotas: UserQuotas | None = None
    rotation: Rotation = Rotation()


class UserStatus(StatusStruct, frozen=True, kw_only=True):
    """Observed state."""

    observed_generation: int | None = None
    conditions: tuple[Condition, ...] = ()
    access_key: str | None = None
    secret_name: str | None = None
    rotated_at: str | None = None
    """When clients received the current secret key."""
    former_key_until: str | None = None
    """When the former secret key becomes invalid; None: there is none."""


class User(Resource, frozen=True, kw_only=True):
    """A User as stored by the API server."""

    spec: UserSpec
    status: UserStatus = UserStatus()

    @property
    def access_key(self) -> str:
        """Access key of the account."""
        return self.spec.access_key if self.spec.access_key is not None else self.name

    @property
    def requires_second(self) -> bool:
        """Whether RocketMQ's signature does not suffice."""
        required = self.spec.require_second_signature
        return self.spec.admin if required is None else required

    @property
    def overlap_ms(self) -> int:
        """Time for which the former secret key stays valid."""
        return duration_ms(self.spec.rotation.overlap) or 0

    @property
    def every_ms(self) -> int | None:
        """Time between two changes of the secret key; None: only on request."""
        every = self.spec.rotation.every
        return None if every is None else duration_ms(every)

    @property
    def rotation_request(self) -> str | None:
        """Value whose change requests a new secret key."""
        request = self.spec.rotation.request
        return None if request is None else str(request)


def duration_ms(text: str) -> int | None:
    """Return a duration such as `720h` or `1h30m` in ms; None if it is invalid."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = (int(number or 0) for number in found.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1000


def parse_user(body: Mapping[str, Any]) -> User:
    """Return a User from its body. SpecError if its spec is invalid."""
    user = User(spec=spec_of("User", body, UserSpec), status=status_of(body, UserStatus), **metadata_of("User", body))
    _check_access_key(user.access_key)
    for field, entries in (("topics", user.spec.topics), ("groups", user.spec.groups)):
        for entry in entries:
            if not _NAME.fullmatch(entry.name):
                raise SpecError(f"spec.{field}: a name consists of letters, digits, -, _, % and |: correct it")
    overlap_ms, every_ms = duration_ms(user.spec.rotation.overlap), user.every_ms
    if overlap_ms is None:
        raise SpecError("spec.rotation.overlap is not a duration: use a value such as 1h or 90m")
    if user.spec.rotation.every is not None and (every_ms is None or every_ms <= overlap_ms):
        raise SpecError("spec.rotation.every is not a duration that is longer than overlap: use a value such as 720h")
    return user


def _check_access_key(access_key: str) -> None:
    if access_key == OPERATOR_ACCESS_KEY:
        raise SpecError(f"spec.accessKey: {OPERATOR_ACCESS_KEY} is the operator's own account: use another access key")
    if not (MIN_ACCESS_KEY_CHARS <= len(access_key) <= MAX_ACCESS_KEY_CHARS and _ACCESS_KEY.fullmatch(access_key)):
        raise SpecError(
            f"spec.accessKey: an access key has {MIN_ACCESS_KEY_CHARS} to {MAX_ACCESS_KEY_CHARS} letters, digits, ., _"
            " and -: set a valid one"
        )
