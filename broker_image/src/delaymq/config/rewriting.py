"""Keeping a change in the configuration file: other values for some keys, all else as people wrote it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from delaymq.config.errors import ConfigError
from delaymq.config.properties_text import as_text, parse_properties_text, read_text, with_values
from delaymq.config.replacing import replace_file


def rewrite(path: Path, values: Mapping[str, str]) -> None:
    """The file has these values afterwards, or is as it was. OSError when it cannot be written, ConfigError if read."""
    target = Path(os.path.realpath(path))
    text = with_values(read_text(target), dict(values))
    written = parse_properties_text(text)
    if any(written.get(key) != value for key, value in values.items()):
        raise ConfigError(f"{path}: the values cannot be written as a line each")
    data = text.encode(errors="surrogatepass")
    as_text(target, data)
    replace_file(target, data, mode=stat.S_IMODE(target.stat().st_mode))
