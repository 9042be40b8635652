"""Assembly of a NameServer from its state and its table of requests."""

from collections.abc import Callable

from delaymq.config import NamesrvConfig
from delaymq.config.running import RunningSettings
from delaymq.namesrv.nameserver import NameServer
from delaymq.namesrv.table import PROCESSORS


def open_name_server(
    config: NamesrvConfig,
    now_ms: Callable[[], int],
    steady_ms: Callable[[], int] | None = None,
    settings: RunningSettings[NamesrvConfig] | None = None,
) -> NameServer:
    """Return a NameServer with its saved key-value settings; raise NamesrvError if they cannot be read."""
    return NameServer(config, PROCESSORS, now_ms, steady_ms, settings)
