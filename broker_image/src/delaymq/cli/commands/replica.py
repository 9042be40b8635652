"""`delaymq replica`: the state of a replicated broker group, and orders to its members."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from delaymq.cli.errors import CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, TokenFile, Yes, confirm
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, print_json
from delaymq.cli.terminal.sanitize import visible
from delaymq.cli.terminal.tables import table

WAIT_S: Final = 15.0
"""Time for which a command waits for the new master."""
POLL_S: Final = 0.1
COLUMNS: Final = ("member", "address", "role", "connected", "in sync", "behind", "bytes", "offset")

Epoch = Annotated[
    int | None,
    typer.Option("--epoch", metavar="N", help="Epoch to which the order applies, as `replica status` shows it."),
]
OtherHttp = Annotated[str, typer.Option("--member-http", metavar="URL", help="HTTP address of the member to detach.")]
Target = Annotated[str, typer.Argument(metavar="MEMBER", help="The replica that takes over.")]


def status(
    http: HttpAddress = None, token_file: TokenFile = None, context: ContextName = None, as_json: AsJson = False
) -> None:
    """Show the members of a broker group, as one of them sees them.

    Only the master knows how far the others are. Example: delaymq replica status --http http://127.0.0.1:8080
    """
    state = HttpApi(target(None, http, token_file, context)).get("replication")
    if as_json:
        print_json(state)
        return
    out = console()
    master = visible(state["master"]) or "unknown"
    out.print(f"group {visible(state['group'])}: master {master}, epoch {state['epoch']}")
    out.print(
        f"{state['mode']}, acknowledge {state['acknowledge']}, failover {state['failover']}, at least"
        f" {state['minInSync']} in sync; confirmed {state['confirmed']} of {state['end']}"
    )
    if not state["register"]["reachable"]:
        out.print(f"register: {visible(state['register']['problem'])}")
    if state["note"] is not None:
        out.print(
            f"{visible(state['member'])} is no candidate until it has caught up: {visible(state['note']['kind'])}"
        )
    if state["problem"]:
        out.print(visible(state["problem"]))
    out.print(table(COLUMNS, [_row(state, each) for each in state["members"]], left=5))


def _row(state: dict[str, Any], member: dict[str, Any]) -> list[str]:
    name, is_master = member["name"], state["role"] == "Master"
    role = state["role"].lower() if name == state["member"] else "master" if name == state["master"] else "replica"
    behind = "" if member.get("behindMs") is None else f"{member['behindMs']} ms"
    return [
        visible(name),
        visible(member["address"]),
        role,
        "yes" if member["connected"] else "no",
        ("yes" if member["inSync"] else "no") if is_master else "?",
        behind,
        "" if member.get("behindBytes") is None else str(member["behindBytes"]),
        "" if member.get("acknowledged") is None else str(member["acknowledged"]),
    ]


def _state_of_master(api: HttpApi) -> dict[str, Any]:
    """Return the state of a group from its master. CommandError if another member responds."""
    state = api.get("replication")
    if state["role"] != "Master":
        raise CommandError(
            f"{visible(state['member'])} is not the master"
            f" ({visible(state['master']) or 'nobody'} is): give the master's HTTP address with --http"
        )
    return state


def switchover(
    member: Target,
    http: HttpAddress = None,
    epoch: Epoch = None,
    token_file: TokenFile = None,
    context: ContextName = None,
) -> None:
    """Let a replica in sync take over; --http is the address of the master.

    Sends are held until the replica has everything, and repeated by their clients afterwards. Example: delaymq replica
    switchover broker-b --http http://127.0.0.1:8080
    """
    api = HttpApi(target(None, http, token_file, context))
    state = _state_of_master(api)
    body = {"target": member, "epoch": state["epoch"] if epoch is None else epoch}
    api.post("replication/switchover", body)
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        try:
            now = api.get("replication")
        except CommandError:
            continue  # the former master restarts
        if now["master"] == member and now["epoch"] > state["epoch"]:
            print(f"{member} is the master of epoch {now['epoch']}")
            return
        if now["role"] == "Master" and not now["held"]:
            break
    raise CommandError(f"{visible(member)} did not take over in time; see its log, and `delaymq replica status`")


def promote(
    http: HttpAddress = None,
    epoch: Epoch = None,
    yes: Yes = False,
    token_file: TokenFile = None,
    context: ContextName = None,
) -> None:
    """Let the replica at --http take over, although confirmed messages may be lost.

    Use it only if no member in sync can return. Members that know more messages stop until their volumes are deleted.
    Example: delaymq replica promote --epoch 7 --http http://127.0.0.1:8080
    """
    api = HttpApi(target(None, http, token_file, context))
    state = api.get("replication")
    confirm(
        f"{visible(state['member'])} has the log up to {state['end']}, of which {state['confirmed']} are known to be"
        f" confirmed. Everything after {state['end']} would be lost. Promote it?",
        yes,
    )
    api.post("replication/promote", {"epoch": state["epoch"] if epoch is None else epoch})
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        now = api.get("replication")
        if now["role"] == "Master":
            print(f"{now['member']} is the master of epoch {now['epoch']}")
            return
    raise CommandError(
        f"{visible(state['member'])} did not take over in time; see its log, and `delaymq replica status`"
    )


def detach(
    member_http: OtherHttp,
    http: HttpAddress = None,
    epoch: Epoch = None,
    token_file: TokenFile = None,
    context: ContextName = None,
) -> None:
    """Let the master wait for a member no longer, while the register cannot be changed.

    The member first records on its disk that it does not take over until it has caught up. --http is the address of the
    master. Example: delaymq replica detach --member-http http://10.0.0.2:8080 --http http://10.0.0.1:8080
    """
    master = HttpApi(target(None, http, token_file, context))
    member = HttpApi(target(None, member_http, token_file, context))
    state = _state_of_master(master)
    chosen = state["epoch"] if epoch is None else epoch
    name = member.get("replication")["member"]
    note = member.post("replication/prepare-detach", {"epoch": chosen})["note"]
    master.post("replication/detach", {"member": name, "epoch": chosen, "note": note})
    print(f"the master waits for {name} no longer, until it has caught up")
