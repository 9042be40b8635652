"""Iptables chains: no packet from the cluster's bridge leaves the machine, and chains added by Docker are removed.

Only entries that mention our bridge, our chain or Docker's chains are removed, if they did not exist before.
"""

import ipaddress
import re
import shlex
import shutil
from collections.abc import Iterable

from cluster.commands import run

BRIDGE = "dmq-kind"
SUBNETS = ("172.29.240.0/24", "172.27.240.0/24", "10.219.240.0/24", "192.168.219.0/24")
"""The first range that overlaps with none of the machine's is used for the nodes. Ranges are fixed, so that a node can
get its address back, and rules that translate addresses are recognised even if no daemon responds.
"""
GUARD = "DELAYMQ-E2E-GUARD"
PROGRAMS = ("iptables", "ip6tables")
TABLES = ("filter", "nat")
TIMEOUT_S = 30

_OURS = re.compile(rf"(^|[\s!]){BRIDGE}(\s|$)|-j {GUARD}$|-[jA] DOCKER(-[A-Z0-9-]+)?(\s|$)")
_OUR_CHAIN = re.compile(rf"-N ({GUARD}|DOCKER(-[A-Z0-9-]+)?)$")


def snapshot() -> list[str]:
    """Return every rule, chain and policy, one line each: ``iptables nat -A PREROUTING …``."""
    lines = []
    for program in PROGRAMS:
        if shutil.which(program) is None:
            continue
        for table in TABLES:
            listed = run([program, "-w", "-t", table, "-S"], timeout_s=TIMEOUT_S, check=False).stdout
            lines += [f"{program} {table} {line}" for line in listed.splitlines()]
    return lines


def guard() -> None:
    """Allow packets from the nodes' bridge only to that bridge, so that pods reach only the cluster."""
    for program in PROGRAMS:
        command = [program, "-w"]
        if run([*command, "-N", GUARD], timeout_s=TIMEOUT_S, check=False).returncode != 0:
            run([*command, "-F", GUARD], timeout_s=TIMEOUT_S)
        run([*command, "-A", GUARD, "-i", BRIDGE, "!", "-o", BRIDGE, "-j", "REJECT"], timeout_s=TIMEOUT_S)
        # Before Docker's own rules in FORWARD.
        run([*command, "-D", "FORWARD", "-j", GUARD], timeout_s=TIMEOUT_S, check=False)
        run([*command, "-I", "FORWARD", "-j", GUARD], timeout_s=TIMEOUT_S)


def removals(before: Iterable[str], now: Iterable[str]) -> list[list[str]]:
    """Return the commands that revert our part of `now` to `before`: rules first, then chains, then policies."""
    known = set(before)
    rules: list[list[str]] = []
    flushes: list[list[str]] = []
    chains: list[list[str]] = []
    policies: list[list[str]] = []
    for line in now:
        if line in known:
            continue
        program, table, rest = line.split(" ", 2)
        command = [program, "-w", "-t", table]
        if rest.startswith("-A "):
            if _OURS.search(rest) or _is_about_nodes(rest):
                rules.append([*command, "-D", *shlex.split(rest)[1:]])
        elif made := _OUR_CHAIN.search(rest):
            flushes.append([*command, "-F", made[1]])
            chains.append([*command, "-X", made[1]])
        elif rest == "-P FORWARD DROP" and f"{program} {table} -P FORWARD ACCEPT" in known:
            policies.append([*command, "-P", "FORWARD", "ACCEPT"])
    return [*rules, *flushes, *chains, *policies]


def _is_about_nodes(rule: str) -> bool:
    """Return whether a rule, such as that of a published port, concerns packets from or to addresses of nodes."""
    for address in re.findall(r"-[sd] ([0-9.]+/[0-9]+)", rule):
        network = ipaddress.ip_network(address, strict=False)
        if any(network.subnet_of(ipaddress.ip_network(subnet)) for subnet in SUBNETS):  # type: ignore[arg-type]
            return True
    return False


def restore(before: Iterable[str]) -> list[str]:
    """Remove what was added since ``before``; return what could not be removed, one line each."""
    before = list(before)
    for command in removals(before, snapshot()):
        run(command, timeout_s=TIMEOUT_S, check=False)
    return [shlex.join(command) for command in removals(before, snapshot())]
