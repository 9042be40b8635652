"""Generator of the tables in docs/operations/configuration.md; `make docs` runs it."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from delaymq.config.build import to_text
from delaymq.config.known_keys import FOLDERS, REFUSED, WITHOUT_MEANING
from delaymq.config.layers import keys_of
from delaymq.config.model import STANDALONE_DEFAULTS, BrokerConfig, NamesrvConfig

_BLOCK = re.compile(r"(<!-- (\w+): written by `make docs` -->\n\n).*?(\n<!-- end -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """Return the page with its tables regenerated; the text between them is kept."""
    tables = {
        "broker": _table(keys_of(BrokerConfig), STANDALONE_DEFAULTS),
        "namesrv": _table(keys_of(NamesrvConfig), {}),
        "ignored": _ignored(),
        "refused": _refused(),
    }
    return _BLOCK.sub(lambda found: found[1] + tables[found[2]] + found[3], text)


def limits_of(item: dataclasses.Field[Any]) -> str:
    """Return the valid range or choices of a key; empty for a text."""
    if "low" in item.metadata:
        return f"{item.metadata['low']} to {item.metadata['high']}"
    return ", ".join(item.metadata.get("choices", ()))


def _table(keys: Mapping[str, dataclasses.Field[Any]], standalone: Mapping[str, str]) -> str:
    lines = ["| key | default | range | hot | description |", "|---|---|---|---|---|"]
    for key, item in keys.items():
        default = to_text(item.default)  # type: ignore[arg-type]
        about = ("**DelayMQ**: " if item.metadata["ours"] else "") + item.metadata["about"]
        if key in standalone:
            about += f" (`standalone`: {standalone[key]})"
        cells = [
            f"`{key}`",
            f"`{default}`" if default else "",
            limits_of(item),
            "yes" if item.metadata["hot"] else "",
            about,
        ]
        lines.append("".join(f"| {cell} " if cell else "| " for cell in cells) + "|")
    return "\n".join([*lines, ""])


def _ignored() -> str:
    keys_by_reason: dict[str, list[str]] = {}
    for key, why in WITHOUT_MEANING.items():
        keys_by_reason.setdefault(why, []).append(f"`{key}`")
    rows = (f"| {' '.join(keys)} | {why} |\n" for why, keys in keys_by_reason.items())
    return "".join(["| keys | reason |\n|---|---|\n", *rows])


def _refused() -> str:
    rows = ["| key | accepted value | error message for other values |\n|---|---|---|\n"]
    for key, refusal in REFUSED.items():
        accepted = ", ".join(f"`{value}`" for value in sorted(refusal.harmless) if value)
        if key in FOLDERS:
            accepted = f"the folder `{FOLDERS[key]}` of `storePathRootDir`"
        rows.append(f"| `{key}` | {accepted or 'nothing'} | {refusal.why} |\n")
    return "".join(rows)


if __name__ == "__main__":
    _file = Path(sys.argv[1])
    _file.write_text(with_tables(_file.read_text()))
