"""Accounts and their permissions: an entry of a file, and its prepared form for checking requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from delaymq.access import DENY, PUB, SUB
from delaymq.access.addresses import WhiteList
from delaymq.access.errors import AccessError
from delaymq.access.quotas import DEFAULT_MAX_DELAY_MS, Quotas
from delaymq.access.yaml_tree import Member
from delaymq.message.names import MAX_TOPIC_LENGTH, RETRY_PREFIX
from delaymq.protocol.signatures import Signer

PERMISSIONS: Final[Mapping[str, int]] = {
    "DENY": DENY,
    "PUB": PUB,
    "SUB": SUB,
    "PUB|SUB": PUB | SUB,
    "SUB|PUB": PUB | SUB,
}
MIN_KEY_CHARACTERS: Final = 7
"""Minimum length; RocketMQ requires keys and secrets longer than 6."""
MAX_KEY_CHARACTERS: Final = 1_024
MAX_PERMISSIONS: Final = 10_000
"""Maximum permissions of one account."""
MAX_KNOWN_TOPICS: Final = 1_000
"""Maximum topics of which an account remembers that it may send to them."""
MAX_CERTIFICATE_NAME: Final = 64
"""Maximum length of a common name (RFC 5280, ub-common-name)."""
_CERTIFICATE_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{{MIN_KEY_CHARACTERS},{MAX_CERTIFICATE_NAME}}}")
_SHOWN_CHARACTERS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An account as defined in a file."""

    access_key: str
    secret_key: str = field(repr=False)
    former_secret_key: str | None = field(default=None, repr=False)
    """Secret key that is valid in addition, while clients change to `secret_key`."""
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: tuple[str, ...] | None = None
    group_perms: tuple[str, ...] | None = None
    require_second_signature: bool = False
    """Whether RocketMQ's signature does not suffice (protocol.second_signature)."""
    certificate_only: bool = False
    """Whether only a client certificate admits the account; `secret_key` may then be empty."""
    role: str = ""
    """One of ROLES; empty: none. On HTTP, an administrator has the highest one."""
    quotas: Quotas | None = None
    """Quotas of the account itself."""
    others: tuple[Member, ...] = field(default=(), repr=False)
    """Keys without a meaning here, which are preserved in the file."""

    @property
    def secret_keys(self) -> tuple[str, ...]:
        """The valid secret keys, the current one first."""
        return (self.secret_key,) if self.former_secret_key is None else (self.secret_key, self.former_secret_key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """An account prepared for checks."""

    entry: Entry
    white_list: WhiteList | None
    signer: Signer
    admin: bool
    topic_permission: int
    """Permission of topics not in `permissions`."""
    group_permission: int
    permissions: Mapping[str, int]
    """Permissions by topic; groups are listed by their retry topic."""
    notes: tuple[str, ...]
    """Warnings about probable mistakes."""
    former: Account | None = None
    """The account with its former secret key as the only one; None if it has none."""
    quotas: Quotas | None = None
    """Quotas in force: those of the account, completed by the defaults of its file. None: nothing is limited."""
    sends: set[str] = field(default_factory=set, repr=False, compare=False)
    """Topics to which a broker has permitted sends of this account, except topics of groups."""

    def permitted_send(self, topic: str) -> None:
        """Add a topic to `sends`."""
        if topic not in self.sends and len(topic) <= MAX_TOPIC_LENGTH and not topic.startswith(RETRY_PREFIX):
            if len(self.sends) >= MAX_KNOWN_TOPICS:
                self.sends.clear()
            self.sends.add(topic)

    @property
    def max_delay_ms(self) -> int:
        """Longest time for which a connection is not read because of a quota."""
        return (None if self.quotas is None else self.quotas.max_delay_ms) or DEFAULT_MAX_DELAY_MS

    def with_defaults(self, defaults: Quotas | None) -> Account:
        """Return the account with the default quotas of its file, which do not apply to administrators."""
        own = self.entry.quotas
        if not self.admin:
            own = defaults if own is None else own.over(defaults)
        return self if own is None else replace(self, quotas=own)


def prepare(entry: Entry) -> Account:
    """Prepare the account of an entry; raise AccessError, without the secret, if the entry is invalid."""
    if entry.certificate_only:
        _check_certificate_name(entry)
    else:
        check_keys(entry.access_key, entry.secret_key)
    notes: list[str] = []
    if entry.former_secret_key is not None:
        check_keys(entry.access_key, entry.former_secret_key, "formerSecretKey")
        if entry.former_secret_key == entry.secret_key:
            notes.append("formerSecretKey has no effect, because it is the same as secretKey")
            entry = replace(entry, former_secret_key=None)
    permissions = dict(_permissions(entry.topic_perms or (), "topic", "", notes))
    for resource, permission in _permissions(entry.group_perms or (), "group", RETRY_PREFIX, notes):
        # Both lists can name a retry topic: a DENY in either one applies.
        permissions[resource] = permission | (permissions.get(resource, 0) & DENY)
    try:
        white_list = WhiteList([entry.white_remote_address]) if entry.white_remote_address.strip() else None
    except AccessError as error:
        raise AccessError(f"account {shown(entry.access_key)}: whiteRemoteAddress: {error}") from error
    account = Account(
        entry=entry,
        white_list=white_list,
        signer=Signer(entry.secret_key),
        admin=entry.admin,
        topic_permission=_default(entry.default_topic_perm, "defaultTopicPerm", notes),
        group_permission=_default(entry.default_group_perm, "defaultGroupPerm", notes),
        permissions=permissions,
        notes=tuple(f"account {shown(entry.access_key)}: {note}" for note in notes),
    )
    former = entry.former_secret_key
    if former is None:
        return account
    only_former = replace(entry, secret_key=former, former_secret_key=None)
    return replace(account, former=replace(account, entry=only_former, signer=Signer(former), notes=()))


def check_keys(access_key: str, secret_key: str, name: str = "secretKey") -> None:
    """Raise AccessError, with RocketMQ's text but without the secret, for keys that RocketMQ rejects, too."""
    if len(access_key) < MIN_KEY_CHARACTERS or len(secret_key) < MIN_KEY_CHARACTERS:
        raise AccessError(
            f"The accessKey={shown(access_key)} and {name}=(not shown) cannot be null and length should longer than 6"
        )
    if max(len(access_key), len(secret_key)) > MAX_KEY_CHARACTERS or not (access_key + secret_key).isprintable():
        raise AccessError(
            f"account {shown(access_key)}: accessKey and {name} must be printable and have at most"
            f" {MAX_KEY_CHARACTERS} characters"
        )


def is_certificate_name(name: str) -> bool:
    """Return whether the common name of a certificate can be an access key."""
    return _CERTIFICATE_NAME.fullmatch(name) is not None


def _check_certificate_name(entry: Entry) -> None:
    if not is_certificate_name(entry.access_key):
        raise AccessError(
            f"account {shown(entry.access_key)}: certificateOnly: the accessKey must be {MIN_KEY_CHARACTERS} to"
            f" {MAX_CERTIFICATE_NAME} characters A-Z, a-z, 0-9, ., _ and -, as the common name of a certificate"
        )


def check_permissions(entry: Entry) -> None:
    """Raise AccessError for invalid permissions in a request (in a file, they mean DENY)."""
    for stated in (*(entry.topic_perms or ()), *(entry.group_perms or ())):
        words = _words(stated)
        if len(words) != 2:
            raise AccessError(
                f"Parse Resource format error for {stated[:_SHOWN_CHARACTERS]}.\n"
                "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
            )
        _check_permission(words[1], stated)
    for default in (entry.default_topic_perm, entry.default_group_perm):
        if default:
            _check_permission(default.strip(), default)


def _check_permission(word: str, stated: str) -> None:
    if word not in PERMISSIONS:
        raise AccessError(
            f"Parse resource permission error for {stated[:_SHOWN_CHARACTERS]}.\n"
            "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB' or 'DENY'."
        )


def _permissions(stated: Iterable[str], kind: str, prefix: str, notes: list[str]) -> Iterable[tuple[str, int]]:
    for text in stated:
        words = _words(text)
        if len(words) != 2:
            raise AccessError(
                f"Parse resource permission failed for {kind}:{text[:_SHOWN_CHARACTERS]}: use NAME=PERMISSION with PUB,"
                " SUB, PUB|SUB or DENY"
            )
        yield prefix + words[0], _permission(words[1], f"{kind} {text[:_SHOWN_CHARACTERS]}", notes)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split("=") if word]


def _default(stated: str | None, key: str, notes: list[str]) -> int:
    if stated is None or not stated.strip():
        return DENY
    return _permission(stated.strip(), f"{key} {stated[:_SHOWN_CHARACTERS]}", notes)


def _permission(word: str, about: str, notes: list[str]) -> int:
    known = PERMISSIONS.get(word)
    if known is None:
        notes.append(f"{about} is not a permission and means DENY, as in RocketMQ: use PUB, SUB, PUB|SUB or DENY")
        return DENY
    return known


def shown(access_key: str) -> str:
    """Return an access key truncated and without unprintable characters, for texts."""
    return "".join(each if each.isprintable() else "?" for each in access_key[:_SHOWN_CHARACTERS])
