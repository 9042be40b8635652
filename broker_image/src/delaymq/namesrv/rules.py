"""Access rules of a NameServer: `namesrvAclConfigPath` and the folder `acl` next to it, reloaded when they change.

    accounts:
    - accessKey: orders-broker
      secretKey: 2f9c41e07b
      brokerNames:               # brokers that the account may register
      - orders-0
      unsigned: false            # true: these names need no signature, until their brokers sign
      addresses:                 # advertised addresses of these brokers; omitted: any
      - 10.2.0.0/24
    - accessKey: operator
      secretKey: 8c11d0a5f3
      admin: true                # settings, topics and write permissions
    unsignedBrokers:             # networks from which all other names may be registered without a signature
    - 10.1.0.0/16

A broker's `plain_acl.yml` is a valid file, too: its administrators are administrators here, and both servers can use
one file. White lists are ignored. Permissions have effect with `namesrvAclMetadata=own` (`queries`).
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from delaymq.access import files
from delaymq.access.accounts import Account, shown
from delaymq.access.errors import AccessError
from delaymq.access.files import States
from delaymq.access.plain_acl import OF_NAME_SERVERS, UNSIGNED_BROKERS, AclFile, flag, from_tree, texts
from delaymq.access.yaml_tree import Tree, read_yaml
from delaymq.throttled_log import fields as about

MAX_NAMES: Final = 1_000
"""Maximum broker names of one account."""
MAX_NETWORKS: Final = 1_024
SHOWN_CHARACTERS: Final = 64

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class NamesFile(AclFile):
    """Content of one file."""

    names: tuple[tuple[str, str], ...] = ()
    """Pairs of access key and broker name."""
    open_names: frozenset[str] = frozenset()
    """Names that need no signature."""
    networks: tuple[Network, ...] = ()
    addresses: tuple[tuple[str, Network], ...] = ()
    """Pairs of access key and network of its brokers."""


def parse(text: str, changed_ms: int) -> NamesFile:
    """Parse a text; raise AccessError if it is invalid."""
    tree = read_yaml(text)
    names: list[tuple[str, str]] = []
    open_names: set[str] = set()
    addresses: list[tuple[str, Network]] = []
    networks: tuple[Network, ...] = ()
    if isinstance(tree, dict):
        networks = _networks(tree, UNSIGNED_BROKERS)
        accounts = tree.get("accounts")
        if isinstance(accounts, list):
            tree = {**tree, "accounts": [_without_names(each, names, open_names, addresses) for each in accounts]}
        if tree.pop(UNSIGNED_BROKERS, None) is not None:
            tree.setdefault("accounts", [])
    read = from_tree(tree, changed_ms)
    stated = {each.name: getattr(read, each.name) for each in fields(AclFile)}
    return NamesFile(
        **stated,
        names=tuple(names),
        open_names=frozenset(open_names),
        networks=networks,
        addresses=tuple(addresses),
    )


def _without_names(
    item: Tree, names: list[tuple[str, str]], open_names: set[str], addresses: list[tuple[str, Network]]
) -> Tree:
    """Return the account as in a broker's file, and add its other keys to the lists."""
    if not isinstance(item, dict) or not item.keys() & OF_NAME_SERVERS:
        return item
    key = str(item.get("accessKey"))
    own = list(texts(item.get("brokerNames"), f"account {shown(key)}: brokerNames", MAX_NAMES))
    names += [(key, name) for name in own]
    if flag(item.get("unsigned"), f"account {shown(key)}: unsigned"):
        open_names.update(own)
    if "addresses" in item:
        where = _networks(item, "addresses", f"account {shown(key)}: ")
        if not where:
            raise AccessError(f"account {shown(key)}: `addresses` lists no network: add one, or remove `addresses`")
        addresses += [(key, network) for network in where]
    return {each: value for each, value in item.items() if each not in OF_NAME_SERVERS}


def _networks(tree: Mapping[str, Tree], name: str, prefix: str = "") -> tuple[Network, ...]:
    return tuple(_network(text, prefix + name) for text in texts(tree.get(name), prefix + name, MAX_NETWORKS))


def _network(text: str, where: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise AccessError(
            f"{where}: {text[:SHOWN_CHARACTERS]!r} is not a network ({error}): use an address, or a network such as"
            " 10.1.0.0/16"
        ) from error


class NamesrvRules:
    """Rules in effect. If a file is unreadable, its last valid rules stay in effect."""

    def __init__(self, path: Path, now_ms: Callable[[], int]) -> None:
        """Read the rules. A NameServer also starts with unreadable rules."""
        self.path = path
        self.accounts: Mapping[str, Account] = {}
        """By access key."""
        self.registrars: Mapping[str, frozenset[str]] = {}
        """Broker name → access keys."""
        self.open_names: frozenset[str] = frozenset()
        self.networks: tuple[Network, ...] = ()
        self.addresses: Mapping[str, tuple[Network, ...]] = {}
        """Access key → networks of its brokers' advertised addresses; without an entry: any."""
        self.readable = False
        """Whether all files were readable at least once; until then, all changes are rejected."""
        self._now_ms = now_ms
        self._states: States = {}
        self._take(files.load_changed(path, {}, now_ms(), parse))

    @property
    def problems(self) -> list[str]:
        """Files whose current content is not in effect, with the reasons."""
        return [f"{state.path}: {state.problem}" for state in self._states.values() if state.problem]

    def versions(self) -> dict[str, dict[str, int]]:
        """Return RocketMQ's dataVersion of each file in effect, by path."""
        return files.versions(self._states)

    def reload_task(self) -> ReloadTask:
        """Return a task that checks for changed files: `run` in a thread, `finish` on the loop."""
        return ReloadTask(self, self._states)

    def is_unsigned_network(self, remote_host: bytes) -> bool:
        """Return whether a peer (packed by message.ids.pack_host) may register brokers without a signature."""
        address = ipaddress.ip_address(remote_host[:-4])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)

    def _take(self, states: States) -> None:
        before, self._states = self._states, states
        self.readable = self.readable or not any(state.problem for state in states.values())
        accounts: dict[str, Account] = {}
        registrars: dict[str, set[str]] = {}
        open_names: set[str] = set()
        networks: list[Network] = []
        addresses: dict[str, tuple[Network, ...]] = {}
        for path, state in states.items():
            known = before.get(path)
            if known is None or (known.signature, known.problem) != (state.signature, state.problem):
                self._log_change(state)
            file = state.file
            counted = set()
            for account in file.accounts:
                if account.entry.access_key not in accounts:
                    accounts[account.entry.access_key] = account
                    counted.add(account.entry.access_key)
                else:
                    text = "%s: account %s is ignored, because another file also defines it"
                    _logger.warning(text, path, shown(account.entry.access_key))
            if isinstance(file, NamesFile):
                for key, name in file.names:
                    if key in counted:
                        registrars.setdefault(name, set()).add(key)
                for key, network in file.addresses:
                    if key in counted:
                        addresses[key] = (*addresses.get(key, ()), network)
                open_names |= file.open_names
                networks += file.networks
        self.accounts = accounts
        self.registrars = {name: frozenset(keys) for name, keys in registrars.items()}
        self.open_names, self.networks = frozenset(open_names), tuple(networks)
        self.addresses = addresses
        if self.readable and not accounts and not networks:
            _logger.warning("no broker can register until %s has accounts or unsignedBrokers", self.path)

    @staticmethod
    def _log_change(state: files.FileState) -> None:
        where = about(file=str(state.path))
        if state.problem:
            _logger.error("%s %s; its last valid rules stay in force", state.path, state.problem, extra=where)
            return
        for note in state.file.notes:
            _logger.warning("%s: %s", state.path, note, extra=where)
        names = len(state.file.names) if isinstance(state.file, NamesFile) else 0
        text = "rules: %s has %d accounts and %d broker names"
        _logger.info(text, state.path, len(state.file.accounts), names, extra=where)


class ReloadTask:
    """Check for changed files."""

    def __init__(self, rules: NamesrvRules, states: States) -> None:
        self._rules = rules
        self._states = states
        self._found = states

    def run(self) -> None:
        """Read changed files, in a thread."""
        self._found = files.load_changed(self._rules.path, self._states, self._rules._now_ms(), parse)

    def finish(self) -> None:
        """Put the changes into effect."""
        if list(self._found) != list(self._states) or any(
            self._states[path] is not state and self._states[path] != state for path, state in self._found.items()
        ):
            self._rules._take(self._found)
