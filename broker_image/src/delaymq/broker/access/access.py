"""The check of each request, and the rules that it goes by."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from delaymq.broker.access import REASONS, files
from delaymq.broker.access.accounts import DENY, PUB, Account, Entry, check_keys, check_permissions, prepare, shown
from delaymq.broker.access.addresses import WhiteList
from delaymq.broker.access.errors import AccessError
from delaymq.broker.access.files import FileState, States
from delaymq.broker.access.plain_acl import AclFile, Version
from delaymq.broker.access.requirements import ACCOUNT, REQUIREMENTS, Requirement, TopicAt
from delaymq.broker.session import Session
from delaymq.message import names
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command
from delaymq.protocol.errors import RequestError
from delaymq.protocol.signatures import ACCESS_KEY
from delaymq.quiet_log import QuietLog, fields
from delaymq.steps import Steps

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""Clients in Java show the name of their broker's exception; people look for it."""
SHOWN_CHARACTERS: Final = 128

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds now."""

    white_list: WhiteList | None
    accounts: Mapping[str, Account]


class Access:
    """Access control of one broker. `check` comes before every request; all else is rare."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        """Reads the rules. AccessError for files that cannot be used: nobody may be let in by an accident."""
        self.path = path
        self.refused: dict[str, int] = dict.fromkeys(REASONS, 0)
        """Refused requests by reason."""
        self.topic_at: TopicAt = lambda offset: None
        """The owner says what the record at an offset of the log is about."""
        self._now_ms = now_ms
        self._quiet_log = QuietLog(_log, now_ms)
        self._changes = 0
        self._states: States = {}
        self._rules = Rules(None, {})
        self._keys_of: dict[int, str] = {}
        """By session: the access key of its last heartbeat."""
        states = files.look(path, {}, now_ms())
        broken = [f"{state.path}: {state.problem}" for state in states.values() if state.problem]
        if broken:
            raise AccessError(f"access control (aclEnable=true): {'; '.join(broken)}")
        self._take(states)
        if not self._rules.accounts and self._rules.white_list is None:
            _log.warning("access control knows no account: every request is refused until %s has one", path)

    # Requests

    def check(self, session: Session, command: Command) -> None:
        """Nothing, or RequestError (code 1) with RocketMQ's text and what to do."""
        rules = self._rules
        if rules.white_list is not None and rules.white_list.matches(session.remote_host):
            return
        stated = command.fields
        key = stated.get(ACCESS_KEY)
        if key is None:
            raise self._refusal(
                session, command, "unsigned", "No accessKey is configured: give the client an access key"
            )
        account = rules.accounts.get(key)
        if account is None:
            raise self._refusal(session, command, "unknown_key", f"No acl config for {shown(key)}")
        trusted = account.white_list is not None and account.white_list.matches(session.remote_host)
        if not trusted and not account.signer.signed(stated, command.body):
            text = f"Check signature failed for accessKey={shown(key)}: compare the secret keys"
            raise self._refusal(session, command, "signature", text)
        if command.code == RequestCode.HEART_BEAT:
            self._keys_of[session.id] = key
        if trusted:
            return
        requirement = REQUIREMENTS.get(command.code, ACCOUNT)
        if requirement is not ACCOUNT:
            self._check_permissions(session, command, account, requirement)

    def may_publish(self, session: Session, topic: str) -> bool:
        """Whether the account of a client's last heartbeat may send to a topic; so it may see what was sent there.

        Anybody can join a group of producers, which are asked about its half messages with all that is in them.
        """
        rules = self._rules
        if rules.white_list is not None and rules.white_list.matches(session.remote_host):
            return True
        account = rules.accounts.get(self._keys_of.get(session.id, ""))
        if account is None:
            return False
        if account.admin or (account.white_list is not None and account.white_list.matches(session.remote_host)):
            return True
        owned = account.permissions.get(topic)
        if owned is None:
            owned = self._default(account, topic)
        return bool(owned & PUB and not owned & DENY)

    def session_closed(self, session: Session) -> None:
        """A connection ended."""
        self._keys_of.pop(session.id, None)

    def _check_permissions(
        self, session: Session, command: Command, account: Account, requirement: Requirement
    ) -> None:
        if requirement.admin:
            if not account.admin:
                text = (
                    f"Need admin permission for request code={command.code},"
                    f" but accessKey={shown(account.entry.access_key)} is not"
                )
                raise self._refusal(session, command, "admin", text)
            return
        if requirement.resources is None or (account.admin and (requirement.own or not account.permissions)):
            return
        needed = requirement.resources(command, self.topic_at)
        permissions = account.permissions
        for resource, permission in needed:
            owned = permissions.get(resource)
            if owned is None:
                owned = self._default(account, resource)
            if owned & DENY or not owned & permission:
                if (names.TRACE_TOPIC, PUB) in needed:
                    return  # every client may write its trace
                raise self._refusal(session, command, "permission", f"No default permission for {_named(resource)}")

    @staticmethod
    def _default(account: Account, resource: str) -> int:
        if resource.startswith(names.RETRY_PREFIX):
            return account.group_permission
        if resource in names.INTERNAL_TOPICS:
            return DENY
        return account.topic_permission

    def _refusal(self, session: Session, command: Command, reason: str, text: str) -> RequestError:
        self.refused[reason] += 1
        # A peer can cause this at will.
        self._quiet_log.warning(
            f"a request was refused ({reason}): code %d: %s", command.code, text, peer=session.remote_address
        )
        return RequestError(ResponseCode.SYSTEM_ERROR, EXCEPTION + text)

    # Rules

    @property
    def accounts(self) -> int:
        """How many accounts there are."""
        return len(self._rules.accounts)

    @property
    def problems(self) -> list[str]:
        """Files that do not count as they are now, with what is wrong."""
        return [f"{state.path}: {state.problem}" for state in self._states.values() if state.problem]

    def reload_task(self) -> ReloadTask:
        """Looks for changed files: `run` in a thread, `finish` here."""
        return ReloadTask(self, dict(self._states), self._changes)

    def _take(self, states: States) -> None:
        """Makes rules of the files, and says what is new about them."""
        before, self._states = self._states, states
        self._changes += 1
        accounts: dict[str, Account] = {}
        white: list[str] = []
        notes: list[str] = []
        for state in states.values():
            white += state.file.white_addresses
            for account in state.file.accounts:
                key = account.entry.access_key
                if key in accounts:
                    notes.append(f"{state.path}: account {shown(key)} stands in another file too, which counts")
                else:
                    accounts[key] = account
        had_administrator = any(account.admin for account in self._rules.accounts.values())
        self._rules = Rules(WhiteList(white) if white else None, accounts)
        for state in states.values():
            known = before.get(state.path)
            if known is None or known.signature != state.signature or known.problem != state.problem:
                self._tell(state, known)
        for note in notes:
            self._quiet_log.warning("%s", note)
        if had_administrator and not any(account.admin for account in accounts.values()):
            _log.warning("no account is an administrator any more (admin: true): change the rules in their files")

    def _tell(self, state: FileState, known: FileState | None) -> None:
        about = fields(file=str(state.path))
        if state.problem:
            _log.error("%s %s; its last good rules stay in force", state.path, state.problem, extra=about)
            return
        for note in state.file.notes:
            _log.warning("%s: %s", state.path, note, extra=about)
        if known is not None or state.file.has_data:
            text = "access control: %s has %d accounts and %d global white addresses"
            _log.info(text, state.path, len(state.file.accounts), len(state.file.white_addresses), extra=about)

    # Administration, one change at a time: AccessError says why nothing was changed.

    def versions(self) -> dict[str, dict[str, int]]:
        """RocketMQ's dataVersion of each file by its path."""
        return {str(state.path): state.file.version.json() for state in self._states.values()}

    @property
    def version(self) -> dict[str, int]:
        """That of `plain_acl.yml`."""
        return self._states[self.path].file.version.json()

    def put_account(self, stated: Entry, given: frozenset[str]) -> Steps[None]:
        """Makes an account in `plain_acl.yml`, or changes the fields `given` of one where it stands."""
        check_keys(stated.access_key, stated.secret_key)
        check_permissions(stated)

        def changed(file: AclFile, version: Version) -> AclFile:
            known = file.account(stated.access_key)
            entry = stated if known is None else replace(known.entry, **{name: getattr(stated, name) for name in given})
            return file.with_account(prepare(entry), version)

        yield from self._rewrite(self._file_of(stated.access_key), changed)

    def delete_account(self, access_key: str) -> Steps[None]:
        """Takes an account out of its file."""
        if access_key not in self._rules.accounts:
            raise AccessError(
                f"The accesskey[{shown(access_key)}] corresponding to accessConfig has been deleted failed."
            )
        yield from self._rewrite(
            self._file_of(access_key), lambda file, version: file.without_account(access_key, version)
        )

    def set_white_addresses(self, addresses: list[str], path: str) -> Steps[None]:
        """Replaces the global white list of one file, `plain_acl.yml` if `path` is empty."""
        if not addresses:
            raise AccessError("The globalWhiteAddresses[] has been updated failed: name at least one address")
        WhiteList(addresses)
        wanted = Path(path) if path else self.path
        state = self._states.get(wanted)
        if state is None:
            known = ", ".join(map(str, self._states))
            raise AccessError(f"{shown(path)} is no file of rules of this broker: they are {known}")
        yield from self._rewrite(
            state,
            lambda file, version: replace(file, white_addresses=tuple(addresses), version=version, has_data=True),
        )

    def _file_of(self, access_key: str) -> FileState:
        for state in self._states.values():
            if state.file.account(access_key) is not None:
                return state
        return self._states[self.path]

    def _rewrite(self, known: FileState, changed: Callable[[AclFile, Version], AclFile]) -> Steps[None]:
        """Has one file changed, and what it states then in force."""
        now_ms = self._now_ms()
        written = known

        def rewrite() -> None:
            nonlocal written
            # As it is on the disk now: what somebody wrote a second ago must not be written over.
            looked = files.look_at(known.path, known, now_ms)
            if looked.problem:
                raise AccessError(f"{looked.path} {looked.problem}; put it right first")
            version = Version(counter=looked.file.version.counter + 1, timestamp_ms=now_ms)
            written = files.write(looked.path, changed(looked.file, version))

        yield rewrite
        self._take({**self._states, known.path: written})


class ReloadTask:
    """One look at the files."""

    def __init__(self, access: Access, states: States, changes: int) -> None:
        self._access = access
        self._states = states
        self._changes = changes
        self._found: States = states

    def run(self) -> None:
        """Reads what changed."""
        self._found = files.look(self._access.path, self._states, self._access._now_ms())

    def finish(self) -> None:
        """Puts it in force, unless an administrator changed something meanwhile: then it is looked at again."""
        access = self._access
        changed = list(self._found) != list(self._states) or any(
            self._states[path] is not state and self._states[path] != state for path, state in self._found.items()
        )
        if changed and access._changes == self._changes:
            access._take(self._found)


def _named(resource: str) -> str:
    if resource.startswith(names.RETRY_PREFIX):
        return f"group:{resource.removeprefix(names.RETRY_PREFIX)[:SHOWN_CHARACTERS]}"
    return f"topic:{resource[:SHOWN_CHARACTERS]}"


def to_json(value: object) -> str:
    """As RocketMQ's broker writes versions."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
