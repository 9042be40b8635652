"""YAML of a file to plain lists, dictionaries and scalars, event by event.

PyYAML's loaders recurse: a file of open brackets ends the process. Anchors and tags are not read: a few lines of them
can stand for gigabytes, or for objects of any class. The library is loaded when the first file is read.
"""

from __future__ import annotations

from typing import Any, Final

from delaymq.access.errors import AccessError

MAX_DEPTH: Final = 16
"""A rule file has five levels."""
MAX_EVENTS: Final = 2_000_000
"""A file of the largest size that is read has fewer, unless it is made of brackets."""
MAX_NUMBER_CHARACTERS: Final = 64
"""YAML has numbers to the base 60, whose value takes time that grows with the square of their length."""

Scalar = str | int | float | bool | None
Tree = Scalar | list["Tree"] | dict[str, "Tree"]


def read_yaml(text: str) -> Tree:
    """The first document; None for an empty one. AccessError says in which line it is wrong."""
    import yaml

    loader = (getattr(yaml, "CSafeLoader", None) or yaml.SafeLoader)(text)
    try:
        return _build(loader, yaml)
    except yaml.YAMLError as error:
        raise AccessError(f"is no YAML: {_place(error)}") from error
    except (ValueError, OverflowError) as error:  # a number that Python does not take
        raise AccessError("has a value that cannot be read: put it in quotes") from error
    finally:
        loader.dispose()


def _build(loader: Any, yaml: Any) -> Tree:
    # Each level is [container, pending key]; a mapping's key waits for its value.
    levels: list[list[Any]] = []
    root: list[Any] = []
    for _ in range(MAX_EVENTS):
        if not loader.check_event():
            break
        event = loader.get_event()
        kind = type(event)
        if kind is yaml.AliasEvent or getattr(event, "anchor", None) is not None:
            raise AccessError(f"{_line(event)}: anchors and aliases (& and *) are not read here: write the values out")
        if kind is yaml.ScalarEvent:
            _put(levels, root, _scalar(loader, yaml, event), event)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            _refuse_tag(event)
            made: dict[str, Any] | list[Any] = {} if kind is yaml.MappingStartEvent else []
            _put(levels, root, made, event)
            levels.append([made, None])
            if len(levels) > MAX_DEPTH:
                raise AccessError(f"{_line(event)}: is nested deeper than {MAX_DEPTH} levels")
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            levels.pop()
        elif kind is yaml.DocumentEndEvent:
            return root[0] if root else None
    else:
        raise AccessError("has too many values")
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
            raise AccessError(f"{_line(event)}: a key must be a word")
        levels[-1][1] = "" if value is None else str(value)
        if levels[-1][1] in container:
            # What stands behind a colon without a blank is part of the key, and may be a secret.
            key = levels[-1][1].partition(":")[0][:64]
            raise AccessError(f"{_line(event)}: the key {key!r} stands there twice")
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
            raise AccessError(f"{_line(event)}: a number has at most {MAX_NUMBER_CHARACTERS} digits: put it in quotes")
        node = yaml.ScalarNode(tag, text)
        construct = getattr(yaml.constructor.SafeConstructor(), f"construct_yaml_{kind}")
        value: bool | int | float = construct(node)
        return value
    return text


def _refuse_tag(event: Any) -> None:
    if event.tag is not None and event.tag not in ("!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        # The tag is not shown: a secret that begins with an exclamation mark is one.
        raise AccessError(f"{_line(event)}: tags (!…) are not read here: write the plain value, or put it in quotes")


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"


def _place(error: Any) -> str:
    # The error's own text quotes the file, and a line of the file may be a secret.
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or "it cannot be read"
    return f"{problem}" + (f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else "")
