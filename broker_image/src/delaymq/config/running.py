"""Settings of a running server: their origins, and changes over the network (request codes 25 and 318).

A change is atomic. As in RocketMQ, it is written to the file with which the server was started, and thus survives a
restart. Paths, addresses, names, ports and secrets cannot be changed: a peer must not control what this process reads,
writes, binds or trusts, nor redirect its clients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Generic

from delaymq.blocking_steps import BlockingSteps
from delaymq.clock import iso_time
from delaymq.config.build import Resolved, resolve, to_settings
from delaymq.config.errors import ConfigError
from delaymq.config.layers import DEFAULT, Config, Given, keys_of, same_origin
from delaymq.config.model import BrokerConfig
from delaymq.config.properties_text import rewrite

_FORBIDDEN_PREFIXES: Final = ("tls.", "replicaRegister", "replicaEndpoint")
FORBIDDEN_KEYS: Final = frozenset(
    """
    abortFile aclAdminNeedsTls aclCertificateAccounts aclConfigPath aclEnable aclMetadata
    auditLogEnable auditLogFiles auditLogMaxBytes auditLogPath
    brokerClusterName brokerConfigPath brokerIP1 brokerIP2 brokerId
    brokerName configBlackList configStorePath fastPortEnable haListenPort haMasterAddress haMasterBrokerAddress
    haMemberName haPlainSlaveAddresses haPlainSlaves haSecretFile httpHost httpMetricsToken httpMetricsTokenFile
    httpNames httpPlainSignIn httpPort httpSessionIdleSeconds httpSessionMaxSeconds httpTls httpToken httpTokenFile
    httpTrustedProxies kvConfigPath listenHost listenPort namesrvAccountFile
    namesrvAclConfigPath namesrvAclMetadata namesrvAddr
    readOnlyCommitLogStorePaths rmqAddressServerDomain rmqAddressServerSubGroup rocketmqHome storeCheckpoint
    storePathCommitLog storePathConsumeQueue storePathDLedgerCommitLog storePathIndex storePathRootDir
    """.split()  # noqa: SIM905  (a list of twenty quoted words is harder to read)
) | {
    "useTLS",
    *(key for key in keys_of(BrokerConfig) if key.startswith(_FORBIDDEN_PREFIXES)),
}
_ABOVE_THE_FILE = ("flag ", "variable ")


class ForbiddenKeyError(ConfigError):
    """A key that cannot be changed over the network."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change(Generic[Config]):
    """A completed change."""

    config: Config
    """The new configuration."""
    remark: str
    """Which settings changed, which wait for a restart, and whether the change is persistent."""


class RunningSettings(Generic[Config]):
    """Origins of values, changes that wait for a restart, and the file that stores changes."""

    def __init__(self, kind: type[Config], resolved: Resolved[Config] | None = None, file: Path | None = None) -> None:
        self.origins: dict[str, str] = dict.fromkeys(keys_of(kind), DEFAULT)
        self.waiting: dict[str, Given] = {}
        """Values that take effect after a restart."""
        self._kind: type[Config] = kind
        self._file = file
        if resolved is not None:
            self.origins |= resolved.origins
        self._origins_at_start = dict(self.origins)

    def change(
        self, current: Callable[[], Config], settings: Mapping[str, str], *, by: str, now_ms: int
    ) -> BlockingSteps[Change[Config]]:
        """Change the `current` configuration; the caller installs the returned one. Changes must not overlap.

        Raises ForbiddenKeyError or ConfigError with the reason if nothing was changed.
        """
        config = current()
        self._refuse_forbidden(config, settings)
        resolved: Resolved[Config] = resolve(self._kind, same_origin(settings, ""), base=config)
        known = keys_of(self._kind)
        stated = {key: text.strip() for key, text in settings.items() if key in known}
        before, after = to_settings(config), to_settings(resolved.config)
        cold = [key for key in stated if not known[key].metadata["hot"] and before[key] != after[key]]
        for key in cold:
            self._refuse_hidden(key)
        kept, trouble = yield from self._keep(stated)
        if cold and not kept:
            raise ConfigError(f"{', '.join(cold)}: a change needs a restart, and {trouble}; nothing was changed")
        origin = f"changed at {iso_time(now_ms)} by {by}" + ("" if kept else ", until the next restart")
        fields = {known[key].name: getattr(resolved.config, known[key].name) for key in stated if key not in cold}
        for key in stated:
            self.waiting.pop(key, None)
            if key in cold:
                self.waiting[key] = Given(after[key], origin)
            elif before[key] != after[key]:
                self.origins[key] = origin
        remark = self._remark([key for key in stated if key not in cold], cold, [*resolved.ignored], trouble)
        return Change(config=dataclasses.replace(current(), **fields), remark=remark)

    def set_until_restart(self, key: str, *, by: str, now_ms: int) -> None:
        """Record the origin of a change by other means, such as HTTP."""
        self.origins[key] = f"changed at {iso_time(now_ms)} by {by}, until the next restart"

    def _refuse_forbidden(self, config: Config, settings: Mapping[str, str]) -> None:
        listed = (word.strip() for word in config.config_black_list.split(";"))
        now = to_settings(config)
        # Restating the current value is allowed, except for secrets, which could otherwise be guessed.
        forbidden = sorted(
            key for key in FORBIDDEN_KEYS.union(listed) & settings.keys() if not _is_so(now.get(key), settings[key])
        )
        if forbidden:
            raise ForbiddenKeyError(
                f"{', '.join(forbidden)}: cannot be changed over the network; change the configuration file and"
                " restart; nothing was changed"
            )

    def _refuse_hidden(self, key: str) -> None:
        origin = self._origins_at_start.get(key, DEFAULT)
        if origin.startswith(_ABOVE_THE_FILE):
            raise ConfigError(
                f"{key}: a change needs a restart, and the {origin} takes precedence over the file: change that"
                f" {origin.partition(' ')[0]} instead; nothing was changed"
            )

    def _keep(self, stated: Mapping[str, str]) -> BlockingSteps[tuple[bool, str]]:
        if self._file is None:
            return False, "there is no configuration file (-c) to store it in"
        try:
            yield partial(rewrite, self._file, stated)
        except (OSError, ConfigError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            return False, f"cannot write {self._file} ({why})"
        return True, ""

    def _remark(self, hot: Sequence[str], cold: Sequence[str], ignored: Sequence[str], trouble: str) -> str:
        parts = []
        if hot:
            parts.append(f"changed now: {', '.join(hot)}")
        if cold:
            parts.append(f"takes effect after a restart: {', '.join(cold)}")
        if ignored:
            parts.append(f"ignored keys without a meaning here: {', '.join(ignored)}")
        hidden = [key for key in hot if self._origins_at_start.get(key, DEFAULT).startswith(_ABOVE_THE_FILE)]
        if trouble:
            parts.append(f"lost at the next restart: {trouble}")
        elif hidden:
            parts.append(
                f"stored in {self._file}, but after a restart {self._origins_at_start[hidden[0]]} takes precedence"
            )
        else:
            parts.append(f"stored in {self._file}")
        return "; ".join(parts)


def _is_so(value: str | None, stated: str) -> bool:
    return bool(value) and value == stated.strip()
