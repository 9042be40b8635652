"""The check of each request by the rules that hold."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from delaymq.broker.access import REASONS
from delaymq.broker.access.accounts import DENY, PUB, Account, shown
from delaymq.broker.access.requirements import ACCOUNT, REQUIREMENTS, Requirement, TopicAt
from delaymq.broker.access.rules import Rules
from delaymq.broker.session import Session
from delaymq.message import names
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command
from delaymq.protocol.errors import RequestError
from delaymq.protocol.signatures import ACCESS_KEY
from delaymq.quiet_log import QuietLog

EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""Clients in Java show the name of their broker's exception; people look for it."""
SHOWN_CHARACTERS: Final = 128

_log = logging.getLogger(__name__)


class Access:
    """Access control of one broker. `check` comes before every request; all else is rare."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        """Reads the rules. AccessError for files that cannot be used: nobody may be let in by an accident."""
        self.rules = Rules(path, now_ms)
        self.refused: dict[str, int] = dict.fromkeys(REASONS, 0)
        """Refused requests by reason."""
        self.topic_at: TopicAt = lambda offset: None
        """The owner says what the record at an offset of the log is about."""
        self._quiet_log = QuietLog(_log, now_ms)
        self._keys_of: dict[int, str] = {}
        """By session: the access key of its last heartbeat."""

    def check(self, session: Session, command: Command) -> None:
        """Nothing, or RequestError (code 1) with RocketMQ's text and what to do."""
        rules = self.rules
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
        rules = self.rules
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


def _named(resource: str) -> str:
    if resource.startswith(names.RETRY_PREFIX):
        return f"group:{resource.removeprefix(names.RETRY_PREFIX)[:SHOWN_CHARACTERS]}"
    return f"topic:{resource[:SHOWN_CHARACTERS]}"
