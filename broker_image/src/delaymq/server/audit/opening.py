"""Creation of a server's audit log from its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from delaymq.audit.log import AuditLog
from delaymq.config import BrokerConfig, NamesrvConfig

AUDIT_INTERVAL_MS: Final = 1_000
"""Interval between syncs: a power failure loses at most the lines of about this time."""


def audit_log(config: BrokerConfig | NamesrvConfig, server: str, now_ms: Callable[[], int], part: str = "") -> AuditLog:
    """Return the audit log of a server; `server` is its name in the lines, `part` a folder in that of the settings."""
    folder = config.audit_folder
    return AuditLog(
        folder / part if folder is not None and part else folder,
        server,
        max_bytes=config.audit_log_max_bytes,
        max_files=config.audit_log_files,
        now_ms=now_ms,
    )
