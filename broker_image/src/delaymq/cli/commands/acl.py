"""`delaymq acl`: accounts and white lists of brokers with access control."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from delaymq.access import ROLES
from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, NameServers, Yes, confirm
from delaymq.cli.target.accounts import read_secret
from delaymq.cli.target.connection import with_client
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, print_json
from delaymq.cli.terminal.tables import table
from delaymq.client import Admin, Client, Credentials
from delaymq.protocol.headers.admin import NO_ROLE

AccessKey = Annotated[str, typer.Argument(metavar="KEY", help="The account's access key.")]
Cluster = Annotated[str | None, typer.Option(metavar="NAME", help="Only the brokers of this cluster.")]
Permissions = Annotated[
    list[str] | None, typer.Option(metavar="NAME=PERM", help="PUB, SUB, PUB|SUB or DENY; repeatable.")
]
_QUOTA = (
    "A quota, such as sendBytesPerSecond=1000000; unlimited: none in spite of a default; default: removed; repeatable."
)
_SECOND = "Whether to reject requests with only RocketMQ's signature. Default: unchanged; for a new administrator: yes."
_FORMER = (
    "Keep the secret key before this change valid in addition, or end it. Default: end it if the secret key changes."
)
_ADMIN = "Make the account an administrator. With --secret-file and without this option, it is not one."
_ROLE = "Role on HTTP: read, operate, administer or none. Default: unchanged."
_CERTIFICATE = "Whether only a client certificate admits the account. A new account then needs no secret key."
Default = Annotated[
    str | None, typer.Option(metavar="PERM", help="Permission for names without a rule: PUB, SUB, PUB|SUB or DENY.")
]


def list_files(
    accounts: Annotated[
        bool, typer.Option("--accounts", help="List accounts with their quotas instead; needs an administrator.")
    ] = False,
    cluster: Cluster = None,
    namesrv: NameServers = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """List the rule files of all brokers with the number of changes made by requests, or their accounts.

    Secret keys are not shown, because brokers do not reveal them.
    """

    async def work(client: Client) -> int:
        admin = Admin(client)
        if accounts:
            return await _list_accounts(admin, await admin.masters(cluster), as_json)
        rows: list[dict[str, Any]] = []
        for broker_name, address in sorted((await admin.masters(cluster)).items()):
            for path, version in (await admin.access_versions(address)).items():
                row = {"brokerName": broker_name, "address": address, "file": path}
                rows.append(row | {"counter": version.counter, "changedMs": version.timestamp})
        if as_json:
            for row in rows:
                print_json(row)
        else:
            shown = [(row["brokerName"], row["file"], str(row["counter"])) for row in rows]
            console().print(table(("broker", "file", "changes"), shown, left=2))
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


async def _list_accounts(admin: Admin, masters: Mapping[str, str], as_json: bool) -> int:
    rows: list[tuple[str, ...]] = []
    for broker_name, address in sorted(masters.items()):
        for account in await admin.accounts(address):
            if as_json:
                row: dict[str, Any] = {"brokerName": broker_name, "address": address, "accessKey": account.access_key}
                row |= {"admin": account.admin, "role": account.role, "certificateOnly": account.certificate_only}
                print_json(row | {"quotas": account.quotas})
            quotas = ", ".join(f"{key}={value}" for key, value in account.quotas.items())
            words = ["yes" if each else "no" for each in (account.admin, account.certificate_only)]
            rows.append((broker_name, account.access_key, words[0], account.role or "-", words[1], quotas))
    if not as_json:
        head = ("broker", "account", "administrator", "role", "certificate only", "quotas")
        console().print(table(head, rows, left=6))
    return 0


def put(
    key: AccessKey,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with the account's secret key. Without it, an existing account keeps its own."
        ),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help=_ADMIN)] = False,
    topic: Permissions = None,
    group: Permissions = None,
    default_topic: Default = None,
    default_group: Default = None,
    white: Annotated[str | None, typer.Option(metavar="ADDRESSES", help="Addresses that need no signature.")] = None,
    second_signature: Annotated[bool | None, typer.Option(help=_SECOND)] = None,
    quota: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help=_QUOTA)] = None,
    role: Annotated[str | None, typer.Option(metavar="ROLE", help=_ROLE)] = None,
    certificate_only: Annotated[bool | None, typer.Option(help=_CERTIFICATE)] = None,
    former_key: Annotated[bool | None, typer.Option("--keep-former-key/--drop-former-key", help=_FORMER)] = None,
    cluster: Cluster = None,
    namesrv: NameServers = None,
    context: ContextName = None,
) -> None:
    """Create an account on all brokers, or change it; whatever is not named is kept.

    Example: delaymq acl put billing --secret-file billing.key --topic 'orders=PUB|SUB' --group billing=SUB
    """
    if secret_file is None and (not quota and role is None and certificate_only is None):
        text = "--secret-file is missing: only --quota, --role and --certificate-only change an account without it"
        raise CommandError(text, EXIT_USAGE)
    if role not in (None, *ROLES, NO_ROLE):
        raise CommandError(f"--role {role[:100]}: use {', '.join(ROLES)} or {NO_ROLE}", EXIT_USAGE)
    account = key if secret_file is None else Credentials(key, read_secret(secret_file))
    topics, groups = _permissions("--topic", topic), _permissions("--group", group)
    quotas = _quotas(quota or [])

    async def work(client: Client) -> int:
        asking = Admin(client)
        masters = await asking.masters(cluster)
        for address in masters.values():
            await asking.put_account(
                address,
                account,
                # Without a secret key, only stated values of the account change.
                admin=admin if secret_file is not None else admin or None,
                default_topic=default_topic,
                default_group=default_group,
                topics=topics,
                groups=groups,
                white_address=white,
                second_signature=second_signature,
                quotas=quotas,
                keep_former_key=former_key,
                role=role,
                certificate_only=certificate_only,
            )
        console().print(f"account {key} is set on {', '.join(sorted(masters))}")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def delete(
    key: AccessKey, yes: Yes = False, cluster: Cluster = None, namesrv: NameServers = None, context: ContextName = None
) -> None:
    """Delete an account on all brokers; its clients are rejected immediately."""
    confirm(f"Delete account {key}? Its clients will be rejected immediately.", yes)

    async def work(client: Client) -> int:
        asking = Admin(client)
        masters = await asking.masters(cluster)
        for address in masters.values():
            await asking.delete_account(address, key)
        console().print(f"account {key} is deleted on {', '.join(sorted(masters))}")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def whitelist(
    addresses: Annotated[
        list[str], typer.Argument(metavar="ADDRESS…", help="Addresses or patterns, such as 10.0.1.* or 10.0.0.7.")
    ],
    file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Rule file on the broker; default: plain_acl.yml.")
    ] = None,
    yes: Yes = False,
    cluster: Cluster = None,
    namesrv: NameServers = None,
    context: ContextName = None,
) -> None:
    """Replace the addresses that need no signature and have all permissions, on all brokers."""
    confirm(f"Grant {', '.join(addresses)} all permissions without a signature?", yes)

    async def work(client: Client) -> int:
        asking = Admin(client)
        masters = await asking.masters(cluster)
        for address in masters.values():
            # The last file is plain_acl.yml, which is applied after the others.
            paths = list(await asking.access_versions(address))
            await asking.set_white_addresses(address, addresses, file or paths[-1])
        console().print(f"the white list is set on {', '.join(sorted(masters))}")
        return 0

    raise typer.Exit(with_client(target(namesrv, context=context), work))


def _quotas(stated: list[str]) -> dict[str, str]:
    found = {}
    for text in stated:
        key, equals, value = (word.strip() for word in text.partition("="))
        if not key or not equals or not value or "," in text:
            words = f"--quota {text[:100]}: use KEY=VALUE with a number, unlimited or default"
            raise CommandError(words, EXIT_USAGE)
        found[key] = value
    return found


def _permissions(option: str, stated: list[str] | None) -> dict[str, str] | None:
    if not stated:
        return None
    found = {}
    for text in stated:
        name, equals, permission = text.partition("=")
        if not name.strip() or not equals or permission.strip() not in ("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY"):
            raise CommandError(f"{option} {text[:100]}: use NAME=PERM with PUB, SUB, PUB|SUB or DENY", EXIT_USAGE)
        found[name.strip()] = permission.strip()
    return found
