"""`delaymq acl`: accounts and white lists of brokers with access control."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, NameServers, Yes, confirm
from delaymq.cli.target.accounts import read_secret
from delaymq.cli.target.connection import with_client
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, print_json
from delaymq.cli.terminal.tables import table
from delaymq.client import Admin, Client, Credentials

AccessKey = Annotated[str, typer.Argument(metavar="KEY", help="The account's access key.")]
Cluster = Annotated[str | None, typer.Option(metavar="NAME", help="Only the brokers of this cluster.")]
Permissions = Annotated[
    list[str] | None, typer.Option(metavar="NAME=PERM", help="PUB, SUB, PUB|SUB or DENY; repeatable.")
]
_SECOND = "Whether to reject requests with only RocketMQ's signature. Default: unchanged; for a new administrator: yes."
Default = Annotated[
    str | None, typer.Option(metavar="PERM", help="Permission for names without a rule: PUB, SUB, PUB|SUB or DENY.")
]


def list_files(
    cluster: Cluster = None, namesrv: NameServers = None, context: ContextName = None, as_json: AsJson = False
) -> None:
    """List the rule files of all brokers with the number of changes made by requests.

    Their contents are not shown, because brokers do not reveal secrets.
    """

    async def work(client: Client) -> int:
        admin = Admin(client)
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


def put(
    key: AccessKey,
    secret_file: Annotated[Path, typer.Option(metavar="FILE", help="File with the account's secret key.")],
    admin: Annotated[
        bool, typer.Option("--admin", help="Make the account an administrator; without this option, it is not one.")
    ] = False,
    topic: Permissions = None,
    group: Permissions = None,
    default_topic: Default = None,
    default_group: Default = None,
    white: Annotated[str | None, typer.Option(metavar="ADDRESSES", help="Addresses that need no signature.")] = None,
    second_signature: Annotated[bool | None, typer.Option(help=_SECOND)] = None,
    cluster: Cluster = None,
    namesrv: NameServers = None,
    context: ContextName = None,
) -> None:
    """Create an account on all brokers, or change it; permissions that are not named are kept.

    Example: delaymq acl put billing --secret-file billing.key --topic 'orders=PUB|SUB' --group billing=SUB
    """
    account = Credentials(key, read_secret(secret_file))
    topics, groups = _permissions("--topic", topic), _permissions("--group", group)

    async def work(client: Client) -> int:
        asking = Admin(client)
        masters = await asking.masters(cluster)
        for address in masters.values():
            await asking.put_account(
                address,
                account,
                admin=admin,
                default_topic=default_topic,
                default_group=default_group,
                topics=topics,
                groups=groups,
                white_address=white,
                second_signature=second_signature,
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
