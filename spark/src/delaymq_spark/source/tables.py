"""Tables of Spark's catalogue: `CREATE TABLE … USING rocketmq_store`.

Spark passes the options of the statement to the data source only when it requests the schema, mixed with properties of
the table. A later SELECT has only the schema, which therefore carries them as metadata of its first column.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from delaymq_spark.store.address import StorePathError, check_store_path, is_address

_METADATA: Final = "rocketmq_store.options"
_OF_TABLES: Final = ("provider", "owner")
"""Spark's names for parts of the statement; they are absent without a catalogue."""
_STATED: Final = "option."


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a CREATE TABLE from those that Spark passes, or None for the options of a read.

    StorePathError.
    """
    options = {name.lower(): str(value) for name, value in given.items()}
    if not any(name in options for name in _OF_TABLES):
        return None
    stated = {name.removeprefix(_STATED): value for name, value in options.items() if name.startswith(_STATED)}
    if "token" in stated:
        raise StorePathError(
            "a table cannot store a token: remove it, and set DELAYMQ_HTTP_TOKEN in the environment of the driver "
            "and all executors"
        )
    if "path" in options:
        # Spark has made it a qualified path in Hadoop's form, which contains no escapes.
        path = options["path"]
        path = "/" + path[len("file:") :].lstrip("/") if path.lower().startswith("file:/") else check_store_path(path)
        if not (is_address(path) or os.path.isabs(path)):
            raise StorePathError(f"{path[:200]}: the LOCATION of a table must be absolute: use the full path")
        stated["path"] = path
    return stated


def with_table_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema to store in the catalogue, with the options as metadata."""
    first, *others = schema.fields
    metadata = {**first.metadata, _METADATA: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def read_options(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: `given`, and those of the table if a table is read. StorePathError."""
    options = {name.lower(): str(value) for name, value in given.items()}
    if "path" in options or "paths" in options:
        return options
    kept = next((field.metadata[_METADATA] for field in schema.fields if _METADATA in field.metadata), None)
    if kept is None:
        raise StorePathError(
            "the option `path` is missing: pass the folder of a broker's store, or http://HOST:PORT, to load(). "
            "A table must be created without a list of columns, since Spark loses the path otherwise: name the columns "
            "in OPTIONS (columns '…') instead"
        )
    return {**json.loads(kept), **options}
