"""Persistence of changed settings in the configuration file, which is otherwise kept unchanged."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from delaymq.config.errors import ConfigError
from delaymq.config.properties_text import as_text, parse_properties_text, read_text, with_values
from delaymq.config.replacing import changing, replace_file


def rewrite(path: Path, values: Mapping[str, str]) -> None:
    """Write values into the file atomically; raise OSError if it cannot be written, ConfigError if it is invalid."""
    target = Path(os.path.realpath(path))
    with changing(target):
        text = with_values(read_text(target), dict(values))
        written = parse_properties_text(text)
        if any(written.get(key) != value for key, value in values.items()):
            raise ConfigError(f"{path}: each value must fit on one line")
        data = text.encode(errors="surrogatepass")
        as_text(target, data)
        replace_file(target, data, mode=stat.S_IMODE(target.stat().st_mode))
