"""Form of administrative requests: requests with fields or bodies that their code does not have are rejected.

RocketMQ's signature covers the concatenated values of all fields, and the body. An attacker who captured a request can
therefore divide the same text into other fields and send it under another code. To prevent this, these codes accept
only their own fields, and the fields common to all codes cannot hold the parts of a JSON body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from delaymq.protocol import headers
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command
from delaymq.protocol.credential_fields import COMMON_FIELDS, CREDENTIAL_FIELDS, SECURITY_TOKEN
from delaymq.protocol.headers.base import Header

ACCESS_KEY_FIELD: Final = "accessKey"

_COMMON_VALUE: Final = re.compile(r"[A-Za-z0-9._%|+/=:@-]{0,4096}")
_ACCESS_KEY: Final = re.compile(r"[A-Za-z0-9._-]+")
_SHOWN_CHARACTERS: Final = 64


@dataclass(frozen=True, slots=True)
class Form:
    """Fields of a request, and whether it has a body."""

    fields: frozenset[str]
    body: bool = False


def _form(header: type[Header] | None = None, *more: str, body: bool = False) -> Form:
    named = () if header is None else (each.encode_name for each in msgspec.structs.fields(header))
    return Form(frozenset((*named, *more)), body)


FORMS: Final[Mapping[int, Form]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: _form(headers.CreateTopicRequestHeader, "attributes", "force"),
    RequestCode.UPDATE_BROKER_CONFIG: _form(body=True),
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _form(headers.CreateAccessConfigRequestHeader),
    RequestCode.DELETE_ACL_CONFIG: _form(headers.DeleteAccessConfigRequestHeader),
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _form(headers.UpdateGlobalWhiteAddrsConfigRequestHeader),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _form(body=True),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _form(headers.DeleteSubscriptionGroupRequestHeader, "cleanOffset"),
    RequestCode.DELETE_TOPIC_IN_BROKER: _form(headers.DeleteTopicRequestHeader),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _form(headers.ResetOffsetRequestHeader, "queueId", "offset"),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: _form(),
    RequestCode.CLONE_GROUP_OFFSET: _form(headers.CloneGroupOffsetRequestHeader),
    RequestCode.CLEAN_UNUSED_TOPIC: _form(),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _form(headers.ResumeCheckHalfMessageRequestHeader, "topic"),
    RequestCode.DELETE_EXPIRED_COMMITLOG: _form(),
}
"""Fields that RocketMQ's 4.9 and 5.3 tools send, by request code. These codes are the administrative ones."""

RULE_CODES: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    }
)
"""Codes that any captured request could imitate: a topic can have the name of an account, its permissions and its
secret."""


def problem(command: Command, form: Form) -> str | None:
    """Return why a request does not have its form, without its values, or None if it has."""
    for name, value in command.fields.items():
        if name in form.fields:
            if name == ACCESS_KEY_FIELD and not _ACCESS_KEY.fullmatch(value):
                return f"field {name}: an access key consists of A-Z, a-z, 0-9, '.', '_' and '-'"
        elif name in COMMON_FIELDS or name == SECURITY_TOKEN:
            if not _COMMON_VALUE.fullmatch(value):
                return f"field {name} contains characters that are not allowed: use A-Z, a-z, 0-9 and ._%"
        elif name not in CREDENTIAL_FIELDS:
            return f"request code={command.code} has no field {_shown(name)}: leave it out"
    if command.body and not form.body:
        return f"request code={command.code} has no body: leave it out"
    return None


def _shown(name: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in name[:_SHOWN_CHARACTERS])
