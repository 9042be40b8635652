"""Settings of the operator: a flag and an environment variable for each field, `--http-port` and
`DELAYMQ_OPERATOR_HTTP_PORT`. Flags take precedence. Errors are reported in one sentence (SettingsError).
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, get_args, get_origin, get_type_hints

from delaymq_operator.reconcile.context import ReconcileSettings

ENVIRONMENT_PREFIX: Final = "DELAYMQ_OPERATOR_"
MAX_TIME_S: Final = 86_400.0
MAX_DRAIN_LEASE_S: Final = 600.0
"""Maximum lease accepted by brokers."""
LOG_FORMATS: Final = ("text", "json")
ROLE_KINDS: Final = ("ClusterRole", "Role")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
TRUE_WORDS: Final = frozenset({"true", "yes", "on", "1"})
FALSE_WORDS: Final = frozenset({"false", "no", "off", "0"})


SERVICE_LINK: Final = re.compile(r"(\A|_)(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?)\Z")
"""Variables that Kubernetes sets in every pod for a Service called delaymq-operator…"""


class SettingsError(Exception):
    """An invalid setting; the message names it and states valid values."""


def _setting(default: Any, about: str, *, least: float | None = None, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"about": about, "least": least, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """All settings. Those of the reconcilers have their defaults in ReconcileSettings."""

    namespaces: tuple[str, ...] = _setting((), "namespaces to serve, separated by commas; empty: all")
    default_image: str = _setting("delaymq/broker:0.1.0", "default image of brokers")
    analytics_image: str = _setting(ReconcileSettings.analytics_image, "default image of analytics")
    analytics_role: str = _setting(
        ReconcileSettings.analytics_role, ("role that allows a Spark driver to create its executors")
    )
    analytics_role_kind: str = _setting(
        ReconcileSettings.analytics_role_kind, "kind of that role: ClusterRole or Role", choices=ROLE_KINDS
    )
    namespace: str = _setting("", "namespace of the operator; empty: the service account's, else `default`")
    pod_name: str = _setting("", "pod of the operator: holder of the Lease, reporter of Events; empty: the host name")
    cluster_domain: str = _setting(
        ReconcileSettings.cluster_domain, "suffix after the namespace in DNS names: svc, or svc.cluster.local"
    )
    name_server_addresses: tuple[str, ...] = _setting(
        (),
        "NameServers outside their namespace that Brokers may use, separated by commas: host, host:port, *.shop, "
        "10.1.0.0/16",
    )
    workers: int = _setting(8, "number of resources reconciled concurrently", least=1)
    poll_interval_s: float = _setting(
        ReconcileSettings.poll_interval_s, "interval between queries of settled brokers, seconds", least=0.1
    )
    progress_interval_s: float = _setting(
        ReconcileSettings.progress_interval_s,
        ("interval between queries while a change is in progress, seconds"),
        least=0.1,
    )
    status_interval_s: float = _setting(
        ReconcileSettings.status_interval_s, "interval between updates of figures in a status, seconds", least=1
    )
    resync_interval_s: float = _setting(600.0, "interval between reconciliations of every resource, seconds", least=1)
    withdraw_max_s: float = _setting(
        ReconcileSettings.withdraw_max_s,
        ("time for clients to redirect their sends, seconds; they read routes every 30 s"),
    )
    quiet_s: float = _setting(
        ReconcileSettings.quiet_s, ("time without sends after which a broker counts as drained, seconds")
    )
    refuse_s: float = _setting(
        ReconcileSettings.refuse_s, ("time for which sends are rejected before a broker is stopped, seconds")
    )
    drain_lease_s: float = _setting(
        ReconcileSettings.drain_lease_s,
        "time without contact from the operator after which a drained broker accepts sends again, seconds",
        least=1,
    )
    event_interval_s: float = _setting(
        ReconcileSettings.event_interval_s, "time within which the same Event is not repeated, seconds"
    )
    http_host: str = _setting("0.0.0.0", "address of /livez, /readyz and /metrics")
    http_port: int = _setting(8080, "port of /livez, /readyz and /metrics; 0: any free one", least=0)
    lease: bool = _setting(True, "elect one active replica by a Lease; false: this is the only replica")
    lease_name: str = _setting("delaymq-operator", "name of the Lease")
    lease_namespace: str = _setting("", "namespace of the Lease; empty: the operator's own")
    lease_duration_s: float = _setting(15.0, "time after which a Lease that is not renewed expires, seconds", least=3)
    api_timeout_s: float = _setting(15.0, "timeout of requests to the API server, seconds", least=1)
    api_threads: int = _setting(8, "number of concurrent requests to the API server", least=1)
    kubeconfig: str = _setting(
        "", "kubeconfig file; empty: the pod's service account, else $KUBECONFIG or the default file"
    )
    kube_context: str = _setting("", "context of the kubeconfig; empty: the current context")
    log_format: str = _setting("text", "text or json", choices=LOG_FORMATS)
    log_level: str = _setting("info", "debug, info, warning or error", choices=LOG_LEVELS)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least, choices = getattr(self, one.name), one.metadata["least"], one.metadata["choices"]
            if isinstance(value, float) and not 0 <= value <= MAX_TIME_S:
                raise SettingsError(f"{flag_of(one.name)} must be from 0 to {MAX_TIME_S:g} seconds, not {value:g}")
            if least is not None and value < least:
                raise SettingsError(f"{flag_of(one.name)} must be at least {least:g}, not {value:g}")
            if choices and value not in choices:
                raise SettingsError(f"{flag_of(one.name)} must be {' or '.join(choices)}, not {value!r}")
        if self.drain_lease_s > MAX_DRAIN_LEASE_S:
            raise SettingsError(f"--drain-lease-s must be at most {MAX_DRAIN_LEASE_S:g}, not {self.drain_lease_s:g}")
        if self.http_port > 65_535:
            raise SettingsError(f"--http-port must be at most 65535, not {self.http_port}")


def flag_of(name: str) -> str:
    """Return the flag of a setting: `--http-port` for `http_port`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of a setting: `DELAYMQ_OPERATOR_HTTP_PORT` for `http_port`."""
    return ENVIRONMENT_PREFIX + name.upper()


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> OperatorSettings:
    """Return the settings from flags, then the environment, then defaults. SettingsError for invalid ones.

    `--help` and unknown flags end the process, as argparse does.
    """
    hints = get_type_hints(OperatorSettings)
    stated = {
        name: (flag_of(name), text) for name, text in vars(_parser().parse_args(arguments)).items() if text is not None
    }
    variables = {variable_of(one.name): one.name for one in fields(OperatorSettings)}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable not in variables:
            if SERVICE_LINK.search(variable.removeprefix(ENVIRONMENT_PREFIX)):
                continue
            raise SettingsError(f"unknown variable {variable}{_nearest(variable, variables)}")
        stated.setdefault(variables[variable], (variable, text))
    return OperatorSettings(**{name: _value(where, text, hints[name]) for name, (where, text) in stated.items()})


def _value(where: str, text: str, hint: Any) -> Any:
    text = text.strip()
    if get_origin(hint) is tuple and get_args(hint)[0] is str:
        return tuple(word.strip() for word in text.split(",") if word.strip())
    if hint is bool:
        word = text.lower()
        if word not in TRUE_WORDS | FALSE_WORDS:
            raise SettingsError(f"{where} must be true or false, not {text!r}")
        return word in TRUE_WORDS
    try:
        return hint(text)
    except ValueError as error:
        raise SettingsError(f"{where} must be a number, not {text!r}") from error


def _nearest(variable: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(variable, known, n=1)
    return f": did you mean {near[0]}?" if near else ": --help lists all settings"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="delaymq-operator",
        description="Run DelayMQ brokers on Kubernetes according to Broker, Topic and DelayLevelConfig resources.",
        epilog=f"Each flag can also be set by an environment variable: --http-port is {variable_of('http_port')}.",
        allow_abbrev=False,
    )
    for one in fields(OperatorSettings):
        default = ",".join(one.default) if isinstance(one.default, tuple) else str(one.default)
        about = one.metadata["about"].replace("%", "%%") + (f" (default: {default})" if default else "")
        parser.add_argument(flag_of(one.name), metavar="VALUE", help=about)
    return parser


def reconcile_settings(settings: OperatorSettings, namespace: str) -> ReconcileSettings:
    """Return the settings of the reconcilers for an operator in `namespace`; empty: outside the cluster."""
    return ReconcileSettings(
        default_image=settings.default_image,
        analytics_image=settings.analytics_image,
        analytics_role=settings.analytics_role,
        analytics_role_kind=settings.analytics_role_kind,
        operator_namespace=namespace,
        cluster_domain=settings.cluster_domain,
        name_server_addresses=settings.name_server_addresses,
        status_interval_s=settings.status_interval_s,
        poll_interval_s=settings.poll_interval_s,
        progress_interval_s=settings.progress_interval_s,
        quiet_s=settings.quiet_s,
        withdraw_max_s=settings.withdraw_max_s,
        refuse_s=settings.refuse_s,
        drain_lease_s=settings.drain_lease_s,
        event_interval_s=settings.event_interval_s,
    )
