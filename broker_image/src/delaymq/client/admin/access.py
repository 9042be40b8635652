"""Access control of a broker: accounts and white lists in its account files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from delaymq.client.admin.base import AdminCalls
from delaymq.client.credentials import Credentials
from delaymq.client.errors import BadAnswerError, reading_answer
from delaymq.protocol.bodies import AccountInfo, AccountList, DataVersion
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from delaymq.protocol.headers.admin import DROP_FORMER, KEEP_FORMER, REQUIRED_OF_NEW


class AccessCalls(AdminCalls):
    """Requests to the broker at an address; the requesting account must be one of its administrators."""

    async def access_versions(self, address: str) -> dict[str, DataVersion]:
        """Return the number and time of remote changes of each account file, by its path on the broker."""
        answer = await self._client.request(address, request_command(RequestCode.GET_BROKER_CLUSTER_ACL_INFO))
        with reading_answer(address):
            header = GetBrokerAclConfigResponseHeader.from_fields(answer.fields)
        try:
            return msgspec.json.decode(header.all_acl_file_version or "{}", type=dict[str, DataVersion])
        except msgspec.DecodeError as error:
            raise BadAnswerError(address, error) from error

    async def accounts(self, address: str) -> list[AccountInfo]:
        """Return the accounts of a broker with their quotas. RocketMQ's brokers, and older ones, return none."""
        fields = GetBrokerAclConfigRequestHeader(accounts=True).to_fields()
        answer = await self._client.request(address, request_command(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, fields))
        if not answer.body:
            return []
        with reading_answer(address):
            return AccountList.decode(answer.body).accounts

    async def put_account(
        self,
        address: str,
        account: Credentials | str,
        *,
        admin: bool | None = False,
        default_topic: str | None = None,
        default_group: str | None = None,
        topics: Mapping[str, str] | None = None,
        groups: Mapping[str, str] | None = None,
        white_address: str | None = None,
        second_signature: bool | None = None,
        quotas: Mapping[str, str] | None = None,
        keep_former_key: bool | None = None,
        role: str | None = None,
        certificate_only: bool | None = None,
    ) -> None:
        """Create or change an account; a value of None is unchanged. Permissions: PUB, SUB, PUB|SUB or DENY.

        `account` may be an access key, to keep the secret key of an existing account, or to create one with
        `certificate_only`; `quotas`, `role` or `certificate_only` are then required. RocketMQ's brokers reject it.

        `second_signature`: whether the account requires it, so that RocketMQ's clients cannot use the account. None:
        a new administrator requires it. `quotas`: quotas by their key in a rule file, each a number, `unlimited`, or
        `default` to remove it; others are unchanged. `keep_former_key`: whether the secret key before a change of it
        stays valid in addition. False also ends an earlier one; None does so if the secret key changes. `role`: that
        on HTTP, read, operate, administer or none. `certificate_only`: whether only a client certificate admits the
        account.
        """
        required = (REQUIRED_OF_NEW if admin else None) if second_signature is None else str(second_signature).lower()
        header = CreateAccessConfigRequestHeader(
            access_key=account if isinstance(account, str) else account.access_key,
            secret_key=None if isinstance(account, str) else account.secret_key,
            white_remote_address=white_address,
            admin=admin,
            default_topic_perm=default_topic,
            default_group_perm=default_group,
            topic_perms=_joined(topics),
            group_perms=_joined(groups),
            require_second_signature=required,
            quotas=_joined(quotas) or None,
            former_secret_key=None if keep_former_key is None else KEEP_FORMER if keep_former_key else DROP_FORMER,
            role=role,
            certificate_only=certificate_only,
        )
        await self._client.request(
            address, request_command(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header.to_fields())
        )

    async def delete_account(self, address: str, access_key: str) -> None:
        """Delete an account."""
        fields = DeleteAccessConfigRequestHeader(access_key=access_key).to_fields()
        await self._client.request(address, request_command(RequestCode.DELETE_ACL_CONFIG, fields))

    async def set_white_addresses(self, address: str, white: Sequence[str], path: str) -> None:
        """Replace the global white list of an account file, by its path on the broker (`access_versions`)."""
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(global_white_addrs=",".join(white), acl_file_full_path=path)
        await self._client.request(
            address, request_command(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header.to_fields())
        )


def _joined(permissions: Mapping[str, str] | None) -> str | None:
    return None if permissions is None else ",".join(f"{name}={each}" for name, each in permissions.items())
