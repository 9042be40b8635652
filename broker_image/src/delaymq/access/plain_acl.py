"""Parsing and formatting of one rule file, `plain_acl.yml` or a file of the folder `acl`.

    globalWhiteRemoteAddresses:
    - 10.10.103.*
    accounts:
    - accessKey: RocketMQ
      secretKey: 12345678
      defaultTopicPerm: DENY
      topicPerms:
      - topicA=PUB|SUB
    dataVersion:
    - counter: 1
      timestamp: 1700000000000

Keys are RocketMQ's, so that both brokers can use a file written by either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from delaymq.access import ROLES
from delaymq.access.accounts import MAX_PERMISSIONS, Account, Entry, prepare, shown
from delaymq.access.addresses import MAX_ALTERNATIVES, WhiteList
from delaymq.access.errors import AccessError
from delaymq.access.quotas import DEFAULT_QUOTAS, QUOTAS, Quotas, quota_lines, read_quotas
from delaymq.access.yaml_tree import Member, Scalar, Tree, read_yaml

MAX_ACCOUNTS: Final = 10_000
"""Maximum accounts of one file; each takes some kilobytes of memory."""
MAX_PERMISSIONS_IN_ALL: Final = 100_000

FORMER: Final = "formerSecretKey"
"""A key of DelayMQ, which RocketMQ's broker ignores: a secret key that is valid in addition."""
_TEXTS: Final = {
    "accessKey": "access_key",
    "secretKey": "secret_key",
    FORMER: "former_secret_key",
    "whiteRemoteAddress": "white_remote_address",
    "defaultTopicPerm": "default_topic_perm",
    "defaultGroupPerm": "default_group_perm",
}
_LISTS: Final = {"topicPerms": "topic_perms", "groupPerms": "group_perms"}
REQUIRE_SECOND: Final = "requireSecondSignature"
"""Another key of DelayMQ."""
OF_NAME_SERVERS: Final = frozenset({"brokerNames", "unsigned", "addresses"})
"""Keys of an account for NameServers (namesrv.rules), which brokers preserve: both can use one file."""
UNSIGNED_BROKERS: Final = "unsignedBrokers"
"""The same, of a file."""
CERTIFICATE_ONLY: Final = "certificateOnly"
"""A key of DelayMQ: whether only a client certificate admits the account."""
ROLE: Final = "role"
"""Another one: the account's role on HTTP."""
_KNOWN: Final = frozenset({*_TEXTS, *_LISTS, "admin", REQUIRE_SECOND, CERTIFICATE_ONLY, ROLE, QUOTAS})
_KNOWN_IN_FILE: Final = frozenset({"globalWhiteRemoteAddresses", "accounts", "dataVersion", DEFAULT_QUOTAS})


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """RocketMQ's dataVersion: number and time of changes of a file by requests."""

    counter: int = 0
    timestamp_ms: int = 0

    def json(self) -> dict[str, int]:
        """Return the form used in responses and files."""
        return {"counter": self.counter, "timestamp": self.timestamp_ms}


@dataclass(frozen=True, kw_only=True, slots=True)
class AclFile:
    """Validated content of a file; `has_data` is false for an empty one."""

    white_addresses: tuple[str, ...] = ()
    accounts: tuple[Account, ...] = ()
    version: Version = Version()
    notes: tuple[str, ...] = ()
    has_data: bool = True
    default_quotas: Quotas | None = None
    """Quotas of accounts of this file that are not administrators."""
    others: tuple[Member, ...] = field(default=(), repr=False)
    """Keys without a meaning here, which are preserved in the file."""

    def account(self, access_key: str) -> Account | None:
        """Return the account with this key; None if there is none."""
        return next((each for each in self.accounts if each.entry.access_key == access_key), None)

    def with_account(self, account: Account, version: Version) -> AclFile:
        """Return the file with an account replaced or added."""
        key = account.entry.access_key
        if self.account(key) is None:
            return replace(self, accounts=(*self.accounts, account), version=version, has_data=True)
        changed = tuple(account if each.entry.access_key == key else each for each in self.accounts)
        return replace(self, accounts=changed, version=version)

    def without_account(self, access_key: str, version: Version) -> AclFile:
        """Return the file without the account."""
        rest = tuple(each for each in self.accounts if each.entry.access_key != access_key)
        return replace(self, accounts=rest, version=version)


def parse(text: str, changed_ms: int) -> AclFile:
    """Parse a text; `changed_ms` is used if it has no version. Raises AccessError."""
    return from_tree(read_yaml(text), changed_ms)


def from_tree(tree: Tree, changed_ms: int) -> AclFile:
    """Convert parsed YAML, like `parse`."""
    if tree is None or tree == {}:
        return AclFile(has_data=False, version=Version(timestamp_ms=changed_ms))
    if not isinstance(tree, dict):
        raise AccessError("is not a rule file: use `accounts:` with a list below it")
    notes: list[str] = []
    white = tuple(texts(tree.get("globalWhiteRemoteAddresses"), "globalWhiteRemoteAddresses", MAX_ALTERNATIVES))
    WhiteList(white)
    accounts = tuple(_accounts(tree.get("accounts"), notes))
    others = _others(tree, _KNOWN_IN_FILE, "the file", notes)
    return AclFile(
        white_addresses=white,
        accounts=accounts,
        version=_version(tree.get("dataVersion"), changed_ms),
        notes=(*notes, *(note for account in accounts for note in account.notes)),
        default_quotas=read_quotas(tree.get(DEFAULT_QUOTAS), DEFAULT_QUOTAS),
        others=others,
    )


def _accounts(tree: Tree, notes: list[str]) -> Iterator[Account]:
    if tree is None:
        return
    if not isinstance(tree, list) or len(tree) > MAX_ACCOUNTS:
        raise AccessError(f"accounts: use a list of at most {MAX_ACCOUNTS} accounts")
    seen: set[str] = set()
    permissions = 0
    for number, item in enumerate(tree, 1):
        if not isinstance(item, dict):
            raise AccessError(f"account {number}: use `- accessKey: …` with its other keys below")
        entry = _entry(item, number, notes)
        permissions += len(entry.topic_perms or ()) + len(entry.group_perms or ())
        if permissions > MAX_PERMISSIONS_IN_ALL:
            raise AccessError(
                f"has more than {MAX_PERMISSIONS_IN_ALL} topic and group permissions: split the accounts into several"
                " files in acl/"
            )
        if entry.access_key in seen:
            notes.append(f"duplicate account {shown(entry.access_key)}: the first one applies")
            continue
        seen.add(entry.access_key)
        yield prepare(entry)


def _entry(item: dict[str, Tree], number: int, notes: list[str]) -> Entry:
    found: dict[str, Any] = {"access_key": "", "secret_key": ""}
    for key, name in _TEXTS.items():
        if item.get(key) is not None:
            found[name] = _text(item[key], f"account {number}: {key}")
    about = f"account {shown(found['access_key']) or number}"
    for key, name in _LISTS.items():
        if key in item:
            found[name] = tuple(texts(item[key], f"{about}: {key}", MAX_PERMISSIONS))
    return Entry(
        admin=flag(item.get("admin"), f"{about}: admin"),
        require_second_signature=flag(item.get(REQUIRE_SECOND), f"{about}: {REQUIRE_SECOND}"),
        certificate_only=flag(item.get(CERTIFICATE_ONLY), f"{about}: {CERTIFICATE_ONLY}"),
        role=_role(item.get(ROLE), about),
        quotas=read_quotas(item.get(QUOTAS), f"{about}: {QUOTAS}"),
        others=_others(item, _KNOWN, about, notes),
        **found,
    )


def _role(value: Tree, about: str) -> str:
    if value is None or value == "":
        return ""
    if value not in ROLES:
        raise AccessError(f"{about}: {ROLE}: use {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    return str(value)


def _text(value: Tree, about: str) -> str:
    if isinstance(value, bool | float) or not isinstance(value, str | int):
        raise AccessError(f"{about}: the value is not a string: put it in quotes")
    return str(value)


def texts(tree: Tree, about: str, most: int) -> Iterator[str]:
    """Yield the texts of a list; raise AccessError with `about` if it is not a list, or longer than `most`."""
    if tree is None:
        return
    if not isinstance(tree, list) or len(tree) > most:
        raise AccessError(f"{about}: use a list of at most {most} entries")
    for each in tree:
        if each is not None:
            yield _text(each, about)


def flag(value: Tree, about: str) -> bool:
    """Parse true or false; raise AccessError for anything else."""
    if value is None:
        return False
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise AccessError(f"{about}: use true or false")
    return text == "true"


def _others(tree: dict[str, Tree], known: frozenset[str], about: str, notes: list[str]) -> tuple[Member, ...]:
    others = [key for key in tree if key not in known]
    strange = [key for key in others if key not in OF_NAME_SERVERS and key != UNSIGNED_BROKERS]
    if strange:
        # Text after a colon without a blank is part of the key, and may be a secret.
        names = ", ".join(shown(key.partition(":")[0]) for key in strange[:8])
        notes.append(f"{about}: ignored keys without a meaning here: {names}")
    kept: list[Member] = []
    for key in others:
        value = tree[key]
        if isinstance(value, list):
            kept.append((key, tuple(each for each in value if not isinstance(each, dict | list))))
        elif not isinstance(value, dict):
            kept.append((key, value))
    return tuple(kept)


def _version(tree: Tree, changed_ms: int) -> Version:
    first = tree[0] if isinstance(tree, list) and tree else None
    if not isinstance(first, dict):
        return Version(timestamp_ms=changed_ms)
    counter, timestamp_ms = first.get("counter"), first.get("timestamp")
    if not (isinstance(counter, int) and isinstance(timestamp_ms, int)) or not 0 <= counter < 2**63:
        raise AccessError("dataVersion: counter and timestamp must be integers: remove dataVersion if in doubt")
    return Version(counter=counter, timestamp_ms=timestamp_ms)


def to_text(file: AclFile) -> str:
    """Return the file's text, without comments, as after a change by RocketMQ's broker."""
    lines: list[str] = []
    if file.white_addresses:
        lines += ["globalWhiteRemoteAddresses:", *(f"- {_quoted(text)}" for text in file.white_addresses)]
    lines += quota_lines(file.default_quotas, DEFAULT_QUOTAS, "")
    lines += ["accounts:"] if file.accounts else ["accounts: []"]
    for account in file.accounts:
        lines += _entry_lines(account.entry)
    lines += _other_lines(file.others, "")
    version = file.version
    lines += ["dataVersion:", f"- counter: {version.counter}", f"  timestamp: {version.timestamp_ms}"]
    return "\n".join(lines) + "\n"


def _entry_lines(entry: Entry) -> Iterator[str]:
    dash = "- "
    for key, name in _TEXTS.items():
        value = getattr(entry, name)
        if value is not None and (value or key == "whiteRemoteAddress"):
            yield f"{dash}{key}: {_quoted(value)}"
            dash = "  "
    yield f"  admin: {'true' if entry.admin else 'false'}"
    if entry.require_second_signature:
        yield f"  {REQUIRE_SECOND}: true"
    if entry.certificate_only:
        yield f"  {CERTIFICATE_ONLY}: true"
    if entry.role:
        yield f"  {ROLE}: {entry.role}"
    yield from quota_lines(entry.quotas, QUOTAS, "  ")
    for key, name in _LISTS.items():
        values = getattr(entry, name)
        if values is not None:
            yield f"  {key}:" if values else f"  {key}: []"
            yield from (f"  - {_quoted(value)}" for value in values)
    yield from _other_lines(entry.others, "  ")


def _other_lines(others: Iterable[Member], indent: str) -> Iterator[str]:
    for key, value in others:
        if isinstance(value, tuple):
            yield f"{indent}{_quoted(key)}:" if value else f"{indent}{_quoted(key)}: []"
            yield from (f"{indent}- {_quoted(each)}" for each in value)
        else:
            yield f"{indent}{_quoted(key)}: {_quoted(value)}"


def _quoted(value: Scalar) -> str:
    # JSON strings are valid YAML double-quoted strings, except for line ends that only YAML defines.
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
