"""Rules in force, combined from all rule files. They are reloaded when files change and rewritten by administrators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from delaymq.access import files
from delaymq.access.accounts import Account, Entry, check_keys, check_permissions, prepare, shown
from delaymq.access.addresses import WhiteList
from delaymq.access.errors import AccessError
from delaymq.access.files import FileState, States
from delaymq.access.plain_acl import AclFile, Version
from delaymq.access.quotas import Quotas
from delaymq.blocking_steps import BlockingSteps
from delaymq.protocol.headers.admin import DROP_FORMER, KEEP_FORMER
from delaymq.throttled_log import ThrottledLogger, fields

_logger = logging.getLogger(__name__)


class Rules:
    """Rules of one broker."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        """Load the rules. Raises AccessError for unusable files, because a mistake must not grant access."""
        self.path = path
        self.white_list: WhiteList | None = None
        """Addresses, of all files, that need no signature."""
        self.accounts: Mapping[str, Account] = {}
        """Accounts by access key."""
        self.on_changed: Callable[[], None] | None = None
        """Called after other rules have come into force."""
        self._now_ms = now_ms
        self._throttled = ThrottledLogger(_logger, now_ms)
        self._changes = 0
        self._states: States = {}
        states = files.load_changed(path, {}, now_ms())
        broken = [f"{state.path}: {state.problem}" for state in states.values() if state.problem]
        if broken:
            raise AccessError(f"access control (aclEnable=true): {'; '.join(broken)}")
        self._take(states)
        if not self.accounts and self.white_list is None:
            _logger.warning("access control has no accounts: every request is rejected until %s contains one", path)

    @property
    def problems(self) -> list[str]:
        """Unusable files, each with its problem."""
        return [f"{state.path}: {state.problem}" for state in self._states.values() if state.problem]

    def reload_task(self) -> ReloadTask:
        """Return a task that checks for changed files: run `run` in a thread and `finish` on the broker's thread."""
        return ReloadTask(self, dict(self._states), self._changes)

    def _take(self, states: States) -> None:
        """Combine the files into rules, and log the differences."""
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
                    notes.append(f"{state.path}: account {shown(key)} is ignored, because another file also defines it")
                else:
                    accounts[key] = account.with_defaults(state.file.default_quotas)
        had_administrator = any(account.admin for account in self.accounts.values())
        self.white_list, self.accounts = WhiteList(white) if white else None, accounts
        for state in states.values():
            known = before.get(state.path)
            if known is None or known.signature != state.signature or known.problem != state.problem:
                self._log_change(state, known)
        for note in notes:
            self._throttled.warning("%s", note)
        if had_administrator and not any(account.admin for account in accounts.values()):
            _logger.warning("no administrator account is left: set admin: true for an account in a rule file")
        if self.on_changed is not None:
            self.on_changed()

    def _log_change(self, state: FileState, known: FileState | None) -> None:
        about = fields(file=str(state.path))
        if state.problem:
            _logger.error("%s %s; its last valid rules stay in force", state.path, state.problem, extra=about)
            return
        for note in state.file.notes:
            _logger.warning("%s: %s", state.path, note, extra=about)
        if known is not None or state.file.has_data:
            text = "access control: %s has %d accounts and %d global white addresses"
            _logger.info(text, state.path, len(state.file.accounts), len(state.file.white_addresses), extra=about)

    # Administration, one change at a time. AccessError states why nothing was changed.

    def versions(self) -> dict[str, dict[str, int]]:
        """Return RocketMQ's dataVersion of each file, by path."""
        return files.versions(self._states)

    @property
    def version(self) -> dict[str, int]:
        """The dataVersion of `plain_acl.yml`."""
        return self._states[self.path].file.version.json()

    def put_account(
        self,
        stated: Entry,
        given: frozenset[str],
        quotas: Mapping[str, int | None] | None = None,
        former: str | None = None,
    ) -> BlockingSteps[None]:
        """Add an account to `plain_acl.yml`, or change the fields `given` of an existing one in its file.

        `quotas` are changed fields of its quotas; None removes one. `former` is KEEP_FORMER, DROP_FORMER or None: with
        None, only another secret key ends the former one.
        """
        if "secret_key" in given:
            check_keys(stated.access_key, stated.secret_key)
        elif stated.access_key not in self.accounts and not stated.certificate_only:
            raise AccessError(
                f"there is no account {shown(stated.access_key)}: state a secret key or certificateOnly to create it"
            )
        check_permissions(stated)

        def changed(file: AclFile, version: Version) -> AclFile:
            known = file.account(stated.access_key)
            if known is None and "secret_key" not in given and not stated.certificate_only:
                raise AccessError(f"the file no longer contains account {shown(stated.access_key)}")
            entry = stated if known is None else replace(known.entry, **{name: getattr(stated, name) for name in given})
            if quotas:
                entry = replace(entry, quotas=(entry.quotas or Quotas()).changed(quotas))
            if known is not None:
                entry = replace(entry, former_secret_key=_former_key(known.entry, entry.secret_key, former))
            return file.with_account(prepare(entry), version)

        yield from self._rewrite(self._file_of(stated.access_key), changed)

    def delete_account(self, access_key: str) -> BlockingSteps[None]:
        """Remove an account from its file."""
        if access_key not in self.accounts:
            raise AccessError(
                f"The accesskey[{shown(access_key)}] corresponding to accessConfig has been deleted failed."
            )
        yield from self._rewrite(
            self._file_of(access_key), lambda file, version: file.without_account(access_key, version)
        )

    def set_white_addresses(self, addresses: list[str], path: str) -> BlockingSteps[None]:
        """Replace the global white list of one file, `plain_acl.yml` if `path` is empty."""
        if not addresses:
            raise AccessError("The globalWhiteAddresses[] has been updated failed: specify at least one address")
        WhiteList(addresses)
        wanted = Path(path) if path else self.path
        state = self._states.get(wanted)
        if state is None:
            known = ", ".join(map(str, self._states))
            raise AccessError(f"{shown(path)} is not a rule file of this broker (its rule files: {known})")
        yield from self._rewrite(
            state,
            lambda file, version: replace(file, white_addresses=tuple(addresses), version=version, has_data=True),
        )

    def _file_of(self, access_key: str) -> FileState:
        for state in self._states.values():
            if state.file.account(access_key) is not None:
                return state
        return self._states[self.path]

    def _rewrite(self, known: FileState, changed: Callable[[AclFile, Version], AclFile]) -> BlockingSteps[None]:
        """Change one file, and put its new contents into force."""
        now_ms = self._now_ms()
        written = known

        def rewrite() -> None:
            nonlocal written
            # Start from the current file, so that a recent manual edit is not overwritten.
            looked = files.load_file(known.path, known, now_ms)
            if looked.problem:
                raise AccessError(f"{looked.path} {looked.problem}: correct the file first")
            version = Version(counter=looked.file.version.counter + 1, timestamp_ms=now_ms)
            written = files.write(looked.path, changed(looked.file, version))

        yield rewrite
        self._take({**self._states, known.path: written})


def _former_key(known: Entry, secret_key: str, former: str | None) -> str | None:
    """Return the former secret key of an account after a request that sets its secret key."""
    if former == DROP_FORMER:
        return None
    if secret_key == known.secret_key:
        return known.former_secret_key  # the request may be a repeated one
    return known.secret_key if former == KEEP_FORMER else None


class ReloadTask:
    """Reload of changed rule files."""

    def __init__(self, rules: Rules, states: States, changes: int) -> None:
        self._rules = rules
        self._states = states
        self._changes = changes
        self._found: States = states

    def run(self) -> None:
        """Read the changed files."""
        self._found = files.load_changed(self._rules.path, self._states, self._rules._now_ms())

    def finish(self) -> None:
        """Put the files into force, unless an administrator has changed rules meanwhile: the next task reloads."""
        rules = self._rules
        changed = list(self._found) != list(self._states) or any(
            self._states[path] is not state and self._states[path] != state for path, state in self._found.items()
        )
        if changed and rules._changes == self._changes:
            rules._take(self._found)
