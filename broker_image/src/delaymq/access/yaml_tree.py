"""Parsing of YAML to lists, dictionaries and scalars, event by event.

PyYAML's loaders recurse, so that a file of open brackets would crash the process. Anchors and tags are rejected: a few
lines can expand to gigabytes, or create objects of any class. The library is loaded when the first file is read.
"""

from __future__ import annotations

from typing import Any, Final

from delaymq.access.errors import AccessError

MAX_DEPTH: Final = 16
"""Maximum nesting; a rule file has five levels."""
MAX_EVENTS: Final = 2_000_000
"""Maximum events; a file of maximum size has fewer, unless it consists of brackets."""
MAX_NUMBER_CHARACTERS: Final = 64
"""Limit of a number's length, because parsing YAML's base-60 numbers takes quadratic time."""

Scalar = str | int | float | bool | None
Tree = Scalar | list["Tree"] | dict[str, "Tree"]
Member = tuple[str, Scalar | tuple[Scalar, ...]]
"""Key and value of a mapping: a scalar, or a sequence of scalars."""


def read_yaml(text: str) -> Tree:
    """Parse the first document; None for an empty one. Raises AccessError with the line of an error."""
    import yaml

    loader = (getattr(yaml, "CSafeLoader", None) or yaml.SafeLoader)(text)
    try:
        return _build(loader, yaml)
    except yaml.YAMLError as error:
        raise AccessError(f"is not valid YAML: {_place(error)}") from error
    except (ValueError, OverflowError) as error:  # a number that Python rejects
        raise AccessError("contains an invalid value: put it in quotes") from error
    finally:
        loader.dispose()


def _build(loader: Any, yaml: Any) -> Tree:
    # Each level is [container, pending key].
    levels: list[list[Any]] = []
    root: list[Any] = []
    for _ in range(MAX_EVENTS):
        if not loader.check_event():
            break
        event = loader.get_event()
        kind = type(event)
        if kind is yaml.AliasEvent or getattr(event, "anchor", None) is not None:
            raise AccessError(f"{_line(event)}: anchors and aliases (& and *) are not supported: write the values out")
        if kind is yaml.ScalarEvent:
            _put(levels, root, _scalar(loader, yaml, event), event)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            _refuse_tag(event)
            made: dict[str, Any] | list[Any] = {} if kind is yaml.MappingStartEvent else []
            _put(levels, root, made, event)
            levels.append([made, None])
            if len(levels) > MAX_DEPTH:
                raise AccessError(f"{_line(event)}: nesting is deeper than {MAX_DEPTH} levels")
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            levels.pop()
        elif kind is yaml.DocumentEndEvent:
            return root[0] if root else None
    else:
        raise AccessError("contains too many values")
    return root[0] if root else None


def _put(levels: list[list[Any]], root: list[Any], value: Any, event: Any) -> None:
    if not levels:
        root.append(value)
        return
    container, key = levels[-1]
    if isinstance(container, list):
        container.append(value)
    elif key is None:
        if isinstance(value, dict | list):
            raise AccessError(f"{_line(event)}: a key must be a scalar")
        levels[-1][1] = "" if value is None else str(value)
        if levels[-1][1] in container:
            # Text after a colon without a blank is part of the key, and may be a secret.
            key = levels[-1][1].partition(":")[0][:64]
            raise AccessError(f"{_line(event)}: duplicate key {key!r}")
    else:
        container[key] = value
        levels[-1][1] = None


def _scalar(loader: Any, yaml: Any, event: Any) -> Scalar:
    text: str = event.value
    tag = event.tag
    if tag not in (None, "!", "tag:yaml.org,2002:str"):
        _refuse_tag(event)
    if tag is not None or not event.implicit[0]:
        return text
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    kind = tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind in ("bool", "int", "float"):
        if len(text) > MAX_NUMBER_CHARACTERS:
            raise AccessError(
                f"{_line(event)}: the number has more than {MAX_NUMBER_CHARACTERS} digits: put it in quotes"
            )
        node = yaml.ScalarNode(tag, text)
        construct = getattr(yaml.constructor.SafeConstructor(), f"construct_yaml_{kind}")
        value: bool | int | float = construct(node)
        return value
    return text


def _refuse_tag(event: Any) -> None:
    if event.tag is not None and event.tag not in ("!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        # The tag is not shown, because a secret that starts with an exclamation mark is parsed as one.
        raise AccessError(f"{_line(event)}: tags (!…) are not supported: use the plain value, or put it in quotes")


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"


def _place(error: Any) -> str:
    # The error's text quotes the file, and a line may contain a secret.
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or "invalid syntax"
    return f"{problem}" + (f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else "")
