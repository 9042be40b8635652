"""Administration of access control rules (50 to 53). Changes are written to the rule files.

Also the challenge for the second signature (101).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from delaymq.access import ROLES
from delaymq.access.errors import AccessError
from delaymq.blocking_steps import BlockingSteps
from delaymq.broker.requests.errors import no_permission, system_error
from delaymq.protocol.bodies import AccountInfo, AccountList
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import MAX_FRAME_BYTES, Command, Response
from delaymq.protocol.credential_fields import broker_server
from delaymq.protocol.errors import RequestError
from delaymq.protocol.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from delaymq.protocol.headers.admin import DROP_FORMER, KEEP_FORMER, NO_ROLE, REQUIRED_OF_NEW

if TYPE_CHECKING:
    from delaymq.broker.access.rules import Rules
    from delaymq.broker.broker import Broker
    from delaymq.broker.requests.session import Session

MAX_REMARK_CHARACTERS = 500
_MAX_BODY_BYTES = MAX_FRAME_BYTES - 64 * 1024
_OFF = "access control is off on this broker: set aclEnable=true in its configuration file and restart it"
_TEXTS = ("default_topic_perm", "default_group_perm")
"""Fields of request 50 that change an account only if they are present and not empty."""
_VALUES = ("admin", "white_remote_address", "topic_perms", "group_perms", "role", "certificate_only")
"""Fields of request 50 that change an account if they are present."""


def put_account(broker: Broker, session: Session, command: Command) -> BlockingSteps[Response]:
    """Handle UPDATE_AND_CREATE_ACL_CONFIG (50): create an account, or change the stated fields of an existing one.

    The change is durable before the response is sent.
    """
    from delaymq.access.accounts import Entry  # most brokers have no accounts
    from delaymq.access.quotas import read_changes

    failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    rules = _rules(broker, failed)
    header = CreateAccessConfigRequestHeader.from_fields(command.fields)
    # RocketMQ's tool always states the secret key.
    ours = (header.quotas, header.role, header.certificate_only)
    keeps_key = header.secret_key is None and any(each is not None for each in ours)
    given = set() if keeps_key else {"secret_key"}
    given |= {name for name in _TEXTS if getattr(header, name)}
    given |= {name for name in _VALUES if getattr(header, name) is not None}
    required = header.require_second_signature
    if required not in (None, "true", "false", REQUIRED_OF_NEW):
        raise RequestError(failed, f"requireSecondSignature must be true, false or {REQUIRED_OF_NEW}")
    if required in ("true", "false"):
        given.add("require_second_signature")
    if header.role not in (None, NO_ROLE, *ROLES):
        raise RequestError(failed, f"role must be {', '.join(ROLES)} or {NO_ROLE}")
    former = header.former_secret_key or None
    if former not in (None, KEEP_FORMER, DROP_FORMER):
        raise RequestError(failed, f"formerSecretKey must be {KEEP_FORMER} or {DROP_FORMER}")
    entry = Entry(
        access_key=header.access_key,
        secret_key=header.secret_key or "",
        white_remote_address=header.white_remote_address or "",
        admin=header.admin or False,
        default_topic_perm=header.default_topic_perm or None,
        default_group_perm=header.default_group_perm or None,
        topic_perms=_listed(header.topic_perms),
        group_perms=_listed(header.group_perms),
        require_second_signature=required in ("true", REQUIRED_OF_NEW),
        certificate_only=header.certificate_only or False,
        role="" if header.role in (None, NO_ROLE) else header.role,
    )
    try:
        quotas = None if header.quotas is None else read_changes(header.quotas)
        yield from rules.put_account(entry, frozenset(given), quotas, former)
    except AccessError as error:
        raise _refused(failed, error) from error
    return Response()


def delete_account(broker: Broker, session: Session, command: Command) -> BlockingSteps[Response]:
    """Handle DELETE_ACL_CONFIG (51): delete an account. The change is durable before the response is sent."""
    failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
    rules = _rules(broker, failed)
    header = DeleteAccessConfigRequestHeader.from_fields(command.fields)
    try:
        yield from rules.delete_account(header.access_key)
    except AccessError as error:
        raise _refused(failed, error) from error
    return Response()


def get_versions(broker: Broker, session: Session, command: Command) -> Response | BlockingSteps[Response]:
    """Handle GET_BROKER_CLUSTER_ACL_INFO (52): return the version of each rule file.

    If an administrator requests them, also the accounts with their quotas, without permissions and secrets.
    """
    rules = _rules(broker, ResponseCode.SYSTEM_ERROR)
    header = GetBrokerAclConfigResponseHeader(
        version=_json(rules.version),
        broker_name=broker.config.broker_name,
        broker_addr=broker.address,
        cluster_name=broker.cluster_name,
        all_acl_file_version=_json(rules.versions()),
    )
    if not GetBrokerAclConfigRequestHeader.from_fields(command.fields).accounts:
        return Response(fields=header.to_fields())
    account = None if broker.access is None else broker.access.account_of(session, command)
    if account is not None and not account.admin:
        raise no_permission("only administrators can list accounts: use an account with admin: true")
    return _with_accounts(rules, Response(fields=header.to_fields()))


def _with_accounts(rules: Rules, response: Response) -> BlockingSteps[Response]:
    accounts = list(rules.accounts.values())

    def encode() -> None:
        table = [
            AccountInfo(
                access_key=account.entry.access_key,
                admin=account.admin,
                quotas={} if account.quotas is None else account.quotas.stated(),
                role=account.entry.role,
                certificate_only=account.entry.certificate_only,
            )
            for account in accounts
        ]
        response.body = AccountList(table).encode()

    yield encode
    if len(response.body) > _MAX_BODY_BYTES:
        raise system_error(f"the {len(accounts)} accounts are too many for a response: read the rule files")
    return response


def set_white_addresses(broker: Broker, session: Session, command: Command) -> BlockingSteps[Response]:
    """Handle UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53): replace the global white list of one file.

    The change is durable before the response is sent.
    """
    from delaymq.access.addresses import split_list

    failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    rules = _rules(broker, failed)
    header = UpdateGlobalWhiteAddrsConfigRequestHeader.from_fields(command.fields)
    try:
        path = header.acl_file_full_path or ""
        yield from rules.set_white_addresses(split_list(header.global_white_addrs), path)
    except AccessError as error:
        raise _refused(failed, error) from error
    return Response()


def issue_challenge(broker: Broker, session: Session, command: Command) -> Response:
    """Handle GET_KV_CONFIG (101): return this connection's challenge.

    A broker serves no other configuration of this kind.
    """
    from delaymq.protocol.second_signature import requests_challenge  # most brokers check no signature

    if broker.access is None or not requests_challenge(command):
        remark = f" request type {int(RequestCode.GET_KV_CONFIG)} not supported"
        return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
    config = broker.config
    server = broker_server(broker.cluster_name, config.broker_name, config.broker_id, broker.address)
    return broker.access.channels.challenge(session.id, server, command)


def _rules(broker: Broker, failed: int) -> Rules:
    if broker.access is None:
        raise RequestError(failed, _OFF)
    return broker.access.rules


def _refused(failed: int, error: AccessError) -> RequestError:
    return RequestError(failed, str(error)[:MAX_REMARK_CHARACTERS])


def _listed(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word for word in text.split(",") if word.strip())


def _json(value: object) -> str:
    """Return `value` as compact JSON, the form in which RocketMQ's broker writes versions."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
