"""Check of each request against the rules in force."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from delaymq.access import EXCEPTION, PUB
from delaymq.access.accounts import Account, shown
from delaymq.access.addresses import WhiteList
from delaymq.access.permissions import owned
from delaymq.access.signed import signature_problem, signing_account
from delaymq.access.views import View, sees_all
from delaymq.broker.access import REASONS
from delaymq.broker.access.forms import FORMS, RULE_CODES, problem
from delaymq.broker.access.metadata import WITH_OWN_METADATA, RecordTopics, is_missing
from delaymq.broker.access.requirements import ACCOUNT, REQUIREMENTS, Requirement, TopicAt
from delaymq.broker.access.rules import Rules
from delaymq.broker.quotas.accounts import AccountUsages
from delaymq.broker.requests.session import Session
from delaymq.message import names
from delaymq.protocol.codes import LINK_CODES, RequestCode, ResponseCode
from delaymq.protocol.command import Command
from delaymq.protocol.credential_fields import (
    ACCESS_KEY,
    COMMON_FIELDS,
    SECOND_SIGNATURE,
    SECURITY_TOKEN,
    SIGNATURE,
)
from delaymq.protocol.errors import RequestError
from delaymq.protocol.second_signature import MAX_SILENCE_S, Channels, requests_challenge
from delaymq.throttled_log import ThrottledLogger

SHOWN_CHARACTERS: Final = 128
SHOWN_KEYS: Final = 8

_logger = logging.getLogger(__name__)


class Access:
    """Access control of one broker. `check` runs before every request; everything else is rare."""

    def __init__(
        self,
        rules: Rules,
        now_ms: Callable[[], int],
        *,
        topic_at: TopicAt,
        producers_topic_at: TopicAt | None = None,
        reply_topic: str,
        admin_needs_tls: bool = False,
        own_metadata: bool = False,
        certificate_accounts: bool = False,
        max_silence_s: float = MAX_SILENCE_S,
    ) -> None:
        """Create the check for the given rules.

        `topic_at` returns the topic of the record at a physical offset, `producers_topic_at` of one whose transaction a
        producer may end (None: the same); `reply_topic` is that of the cluster. With `admin_needs_tls`, administrative
        requests need TLS, a peer on loopback, or the second signature. With `own_metadata`, accounts receive no
        metadata of topics and groups for which they have no permission. With `certificate_accounts`, unsigned requests
        are those of the account that the client's certificate names. `max_silence_s` is the lifetime of a challenge
        that no signed request renews.
        """
        self.rules = rules
        self.channels = Channels(max_silence_s)
        """Challenges that were issued to connections."""
        self._admin_needs_tls = admin_needs_tls
        self._certificate_accounts = certificate_accounts
        self.refused: dict[str, int] = dict.fromkeys(REASONS, 0)
        """Number of rejected requests by reason."""
        self.usages = AccountUsages(now_ms)
        """What each account uses."""
        self._topic_at = topic_at
        self._producers_topic_at = producers_topic_at or topic_at
        self._reply_topic = reply_topic
        self._own_metadata = own_metadata
        self._requirements = WITH_OWN_METADATA if own_metadata else REQUIREMENTS
        self._throttled = ThrottledLogger(_logger, now_ms)
        self._heartbeats: dict[int, tuple[str, str | None]] = {}
        """Access key of the last heartbeat and the secret key that signed it (None: not needed), by session."""
        if not admin_needs_tls:
            self._warn_of_administrators()

    def name_account(self, session: Session, command: Command) -> None:
        """Add the account of the client's certificate, if it exists, to a request that states none.

        Everything that follows then handles the request like a signed one. Call it before `check`.
        """
        key = session.certificate_name
        if (
            self._certificate_accounts
            and key in self.rules.accounts
            and ACCESS_KEY not in command.fields
            and command.code not in LINK_CODES
            and not requests_challenge(command)
        ):
            command.fields[ACCESS_KEY] = key

    def _has_certificate(self, session: Session, account: Account) -> bool:
        return self._certificate_accounts and session.certificate_name == account.entry.access_key

    def check(self, session: Session, command: Command) -> None:
        """Raise RequestError (code 1) with RocketMQ's text and a remedy if the request is not allowed.

        Code 2: it exceeds a quota of its account. Call it once for each request, because it changes counters.
        """
        rules = self.rules
        if _admits(rules.white_list, session):
            return
        stated = command.fields
        key = stated.get(ACCESS_KEY)
        if key is None:
            if requests_challenge(command) or command.code in LINK_CODES:
                return  # the sender of the latter proves something else (delaymq.server.replication)
            raise self._refusal(
                session, command, "unsigned", "No accessKey is configured: give the client an access key"
            )
        account = rules.accounts.get(key)
        if account is None:
            raise self._refusal(session, command, "unknown_key", f"No acl config for {shown(key)}")
        trusted = _admits(account.white_list, session)
        if not trusted:
            self._check_form(session, command)  # rejects an unwanted large body before it is hashed
            if not self._has_certificate(session, account) or is_signed(command):
                self._check_signature(session, command, account)
            session.signed_by(key)
        usage = session.usage
        if usage is None or usage.account != key:
            usage = self.usages.join(session, account, rules.accounts)
        elif usage.quotas is not account.quotas:
            usage.apply(account.quotas)
        usage.take(session, command.code, len(command.body))
        if command.code == RequestCode.HEART_BEAT:
            by_key = not trusted and is_signed(command)
            signing = signing_account(self.channels, session.id, account, command) if by_key else None
            self._heartbeats[session.id] = key, None if signing is None else signing.entry.secret_key
        if not trusted:
            self._check_permissions(session, command, account)
            self._check_way(session, command)
            if command.code == RequestCode.SEND_MESSAGE_V2:
                account.permitted_send(command.fields.get("b", ""))

    def admits(self, session: Session) -> bool:
        """Return whether the global white list admits all requests of a connection, and none of them has an account."""
        may_be_named = self._certificate_accounts and session.certificate_name
        return not may_be_named and _admits(self.rules.white_list, session)

    def signer(self, session: Session, requests: int, size: int) -> Account | None:
        """Return the account of a connection's last request if `check` would admit further sends to `Account.sends`.

        They must be signed by the account's current secret key, and name no default topic but the usual one. There are
        at most this many, with bodies of at most `size` bytes in all. None: other rules apply.
        """
        usage = session.usage
        account = None if usage is None else self.rules.accounts.get(usage.account)
        if (
            account is None
            or usage is None
            or usage.quotas is not account.quotas
            or account.entry.certificate_only
            or account.entry.require_second_signature
            or (self._certificate_accounts and session.certificate_name)
            or _admits(account.white_list, session)
            or not usage.has_room(requests, size)
        ):
            return None
        return account

    def may_publish(self, session: Session, topic: str) -> bool:
        """Return whether the account of a client's last heartbeat may send to a topic.

        Only then may the client see the topic's half messages. Any client can join a producer group, and the checks of
        half messages contain the complete messages.
        """
        rules = self.rules
        if _admits(rules.white_list, session):
            return True
        account = rules.accounts.get(self._client_of(session))
        if account is None:
            return False
        if account.admin or _admits(account.white_list, session):
            return True
        return bool(owned(account, topic, self._reply_topic) & PUB)

    def view_of(self, session: Session, command: Command) -> View | None:
        """Return what the sender of a permitted request may see of topics and groups, None for everything."""
        account = self.account_of(session, command) if self._own_metadata else None
        return None if account is None or sees_all(account) else View(account, self._reply_topic)

    def is_client_of(self, session: Session, access_key: str) -> bool:
        """Return whether the last heartbeat of a client came from an account."""
        return self._client_of(session) == access_key

    def _client_of(self, session: Session) -> str:
        return self._heartbeats.get(session.id, ("", None))[0]

    def orphans(self) -> list[int]:
        """Return the ids of connections whose account, by the last heartbeat, no longer exists, or whose secret key is
        no longer valid.
        """
        accounts = self.rules.accounts
        found = []
        for session_id, (key, secret_key) in self._heartbeats.items():
            account = accounts.get(key)
            if account is None or (secret_key is not None and secret_key not in account.entry.secret_keys):
                found.append(session_id)
        return found

    def account_of(self, session: Session, command: Command) -> Account | None:
        """Return the account whose signature admitted a request. None: the address was sufficient."""
        rules = self.rules
        if _admits(rules.white_list, session):
            return None
        account = rules.accounts.get(command.fields.get(ACCESS_KEY, ""))
        return None if account is None or _admits(account.white_list, session) else account

    # Held pulls that earlier rules permitted.

    pull_fields: Final = (ACCESS_KEY, "topic", "consumerGroup")
    """Fields of a pull that a repeated check needs."""

    def signer_of(self, session: Session, command: Command) -> Account | None:
        """Return the account whose signature admitted a pull, with the secret key that signed it as the current one.

        None: the address was sufficient. Call it before the next request of the session.
        """
        account = self.account_of(session, command)
        return None if account is None else signing_account(self.channels, session.id, account, command)

    def still_refusal(self, session: Session, command: Command, before: Account | None) -> RequestError | None:
        """Return the error with which the current rules reject a pull that the account `before` was allowed, or None.

        The signature was valid then. It still is if its secret key is a valid one.
        """
        rules = self.rules
        if _admits(rules.white_list, session):
            return None
        key = command.fields.get(ACCESS_KEY)
        if key is None:
            text = "No accessKey is configured: give the client an access key"
            return self._refusal(session, command, "unsigned", text)
        account = rules.accounts.get(key)
        if account is None:
            return self._refusal(session, command, "unknown_key", f"No acl config for {shown(key)}")
        if _admits(account.white_list, session):
            return None
        has_key = before is not None and before.entry.secret_key in account.entry.secret_keys
        if not has_key and not self._has_certificate(session, account):
            text = f"Check signature failed for accessKey={shown(key)}: compare the secret keys"
            return self._refusal(session, command, "signature", text)
        try:
            self._check_permissions(session, command, account, REQUIREMENTS[RequestCode.PULL_MESSAGE])
        except RequestError as error:
            return error
        return None

    def session_closed(self, session: Session) -> None:
        """Release the state of a closed connection."""
        self._heartbeats.pop(session.id, None)
        self.usages.closed(session)
        self.channels.closed(session.id)

    def _check_signature(self, session: Session, command: Command, account: Account) -> None:
        wrong = signature_problem(self.channels, session.id, account, command)
        if wrong is not None:
            raise self._refusal(session, command, *wrong)
        if account.entry.require_second_signature and SECOND_SIGNATURE not in command.fields:
            key = account.entry.access_key
            text = (
                f"accessKey={shown(key)} requires the second signature: use a client of DelayMQ, or an account without"
                " requireSecondSignature"
            )
            raise self._refusal(session, command, "second_required", text)

    def _check_form(self, session: Session, command: Command) -> None:
        """Check the form of an administrative request."""
        form = FORMS.get(command.code)
        if form is None:
            return
        wrong = problem(command, form)
        if wrong is not None:
            raise self._refusal(session, command, "form", wrong)

    def _check_way(self, session: Session, command: Command) -> None:
        """Check the connection on which a signed and permitted administrative request arrived."""
        if command.code not in FORMS or SECOND_SIGNATURE in command.fields or session.is_private:
            return
        if self._admin_needs_tls:
            why = "aclAdminNeedsTls"
        elif command.code in RULE_CODES:
            why = "it changes rules"
        elif any(command.fields.get(name) for name in (*COMMON_FIELDS, SECURITY_TOKEN)):
            why = "or omit these fields: " + ", ".join((*sorted(COMMON_FIELDS), SECURITY_TOKEN))
        else:
            return
        text = (
            f"request code={command.code} needs TLS, a connection from this machine, or the second signature of"
            f" DelayMQ's clients ({why})"
        )
        raise self._refusal(session, command, "plain", text)

    def _check_permissions(
        self, session: Session, command: Command, account: Account, requirement: Requirement | None = None
    ) -> None:
        requirement = requirement or self._requirements.get(command.code, ACCOUNT)
        if requirement is ACCOUNT:
            return
        if self._own_metadata and sees_all(account) and REQUIREMENTS.get(command.code) is ACCOUNT:
            return
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
        topic_at = self._producers_topic_at if requirement.unconfirmed else self._topic_at
        records = RecordTopics(topic_at) if self._own_metadata and not sees_all(account) else None
        needed = requirement.resources(command, records or topic_at)
        for resource, permission in needed:
            if is_missing(resource) or not owned(account, resource, self._reply_topic) & permission:
                if (names.TRACE_TOPIC, PUB) in needed:
                    return  # every client may write trace messages
                named = "this record, or there is none" if records and records.hides(resource) else _named(resource)
                raise self._refusal(session, command, "permission", f"No default permission for {named}")

    def _warn_of_administrators(self) -> None:
        open_keys = [
            shown(account.entry.access_key)
            for account in self.rules.accounts.values()
            if account.admin and not account.entry.require_second_signature and not account.entry.certificate_only
        ]
        if open_keys:
            _logger.warning(
                "administrators' requests without TLS can be replayed and altered by eavesdroppers (accounts: %s): set"
                " aclAdminNeedsTls=true, or requireSecondSignature: true for these accounts",
                ", ".join(open_keys[:SHOWN_KEYS]) + (", …" if len(open_keys) > SHOWN_KEYS else ""),
            )

    def _refusal(self, session: Session, command: Command, reason: str, text: str) -> RequestError:
        self.refused[reason] += 1
        # Throttled, because a peer can cause this at will.
        self._throttled.warning(
            f"request rejected ({reason}): code %d: %s", command.code, text, peer=session.remote_address
        )
        return RequestError(ResponseCode.SYSTEM_ERROR, EXCEPTION + text)


def is_signed(command: Command) -> bool:
    """Return whether a request has a signature, which is then verified."""
    return SIGNATURE in command.fields or SECOND_SIGNATURE in command.fields


def _admits(white_list: WhiteList | None, session: Session) -> bool:
    return white_list is not None and white_list.matches(session.remote_host)


def _named(resource: str) -> str:
    if resource.startswith(names.RETRY_PREFIX):
        return f"group:{resource.removeprefix(names.RETRY_PREFIX)[:SHOWN_CHARACTERS]}"
    return f"topic:{resource[:SHOWN_CHARACTERS]}"
