"""Iptables chains: no packet from the cluster's bridge leaves the machine, and chains added by Docker are removed.

Only what names our bridge, our chain or Docker's chains is ever removed, and only if it was not there before.
"""

import ipaddress
import re
import shlex
import shutil
from collections.abc import Iterable

from cluster.commands import run

BRIDGE = "dmq-kind"
# The nodes' network has the first that overlaps with none of the machine's; a fixed range, so that a node can be given
# its address back, and so that rules which translate its addresses are known even when no daemon can be asked.
SUBNETS = ("172.29.240.0/24", "172.27.240.0/24", "10.219.240.0/24", "192.168.219.0/24")
GUARD = "DELAYMQ-E2E-GUARD"
PROGRAMS = ("iptables", "ip6tables")
TABLES = ("filter", "nat")
TIMEOUT_S = 30

_OURS = re.compile(rf"(^|[\s!]){BRIDGE}(\s|$)|-j {GUARD}$|-[jA] DOCKER(-[A-Z0-9-]+)?(\s|$)")
_OUR_CHAIN = re.compile(rf"-N ({GUARD}|DOCKER(-[A-Z0-9-]+)?)$")


def snapshot() -> list[str]:
    """Every rule, chain and policy, a line each: ``iptables nat -A PREROUTING …``."""
    lines = []
    for program in PROGRAMS:
        if shutil.which(program) is None:
            continue
        for table in TABLES:
            listed = run([program, "-w", "-t", table, "-S"], timeout_s=TIMEOUT_S, check=False).stdout
            lines += [f"{program} {table} {line}" for line in listed.splitlines()]
    return lines


def guard() -> None:
    """A packet from the nodes' bridge may go to that bridge only, so that pods reach the cluster alone."""
    for program in PROGRAMS:
        command = [program, "-w"]
        if run([*command, "-N", GUARD], timeout_s=TIMEOUT_S, check=False).returncode != 0:
            run([*command, "-F", GUARD], timeout_s=TIMEOUT_S)
        run([*command, "-A", GUARD, "-i", BRIDGE, "!", "-o", BRIDGE, "-j", "REJECT"], timeout_s=TIMEOUT_S)
        # First of all in FORWARD, where Docker puts its own.
        run([*command, "-D", "FORWARD", "-j", GUARD], timeout_s=TIMEOUT_S, check=False)
        run([*command, "-I", "FORWARD", "-j", GUARD], timeout_s=TIMEOUT_S)


def removals(before: Iterable[str], now: Iterable[str]) -> list[list[str]]:
    """The commands that take `now` back to `before` as far as it is ours: rules first, then chains, then policies."""
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
    """Whether a rule is for packets from or to addresses of nodes, which published ports get."""
    for address in re.findall(r"-[sd] ([0-9.]+/[0-9]+)", rule):
        network = ipaddress.ip_network(address, strict=False)
        if any(network.subnet_of(ipaddress.ip_network(subnet)) for subnet in SUBNETS):  # type: ignore[arg-type]
            return True
    return False


def restore(before: Iterable[str]) -> list[str]:
    """Take away what was added since ``before``; what could not be taken away, a line each."""
    before = list(before)
    for command in removals(before, snapshot()):
        run(command, timeout_s=TIMEOUT_S, check=False)
    return [shlex.join(command) for command in removals(before, snapshot())]
