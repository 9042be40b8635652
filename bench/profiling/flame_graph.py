"""Functions of a flame graph that py-spy wrote: own and total samples, as a text summary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from profiling.errors import ProfileError

FUNCTIONS = 25
"""Functions in each table of a summary."""
ENTRY_SHARE = 0.9
"""Functions with a larger share of the samples, such as the event loop, call all others: they are not listed."""
_SVG = "{http://www.w3.org/2000/svg}"
_EXACT = "{http://github.com/jonhoo/inferno}"
"""Namespace of a frame's position and width in samples; the other attributes are rounded."""
_SAMPLES = re.compile(r" \([\d,]+ samples, [\d.]+%\)$")
_BLOCKED = re.compile(r"(PyThread_acquire_lock_timed|pthread_cond_(timed)?wait|epoll_p?wait) \(")
"""C functions that wait for a lock, for the GIL, or for sockets. py-spy takes some of these threads for active."""
_WAIT = re.compile(
    r"_worker \(concurrent/futures/thread\.py|(Condition\.)?wait \(threading\.py|EpollSelector\.select \(selectors\.py"
)
"""Python functions that wait if they call no other Python function."""


@dataclass
class Frame:
    """A function and its callers: one box of the flame graph."""

    name: str
    start: int
    samples: int
    """Samples of the function and of those that it calls."""
    callees: list[Frame] = field(default_factory=list)

    @property
    def own(self) -> int:
        """Samples of the function alone."""
        return self.samples - sum(callee.samples for callee in self.callees)

    @property
    def waiting(self) -> int:
        """Samples in which the function or one that it calls waited for a lock or a socket."""
        if _BLOCKED.match(self.name):
            return self.samples
        return self.own * bool(_WAIT.match(self.name)) + sum(callee.waiting for callee in self.callees)


@dataclass(frozen=True)
class Functions:
    """Samples by function, without those that waited."""

    samples: int
    waiting: int
    own: Counter[str]
    total: Counter[str]


def read(path: Path) -> Frame:
    """Return the root frame of a flame graph; ProfileError if it has another form."""
    try:
        drawing = ElementTree.parse(path).getroot().find(f"{_SVG}svg[@id='frames']")
        if drawing is None:
            raise ValueError("no frames")
        levels: dict[int, list[Frame]] = {}
        for box in drawing.iter(f"{_SVG}g"):
            title, shape = box.find(f"{_SVG}title"), box.find(f"{_SVG}rect")
            if title is None or shape is None:
                raise ValueError("a frame without a title")
            name = _SAMPLES.sub("", title.text or "")
            frame = Frame(name, int(shape.attrib[f"{_EXACT}x"]), int(shape.attrib[f"{_EXACT}w"]))
            levels.setdefault(int(float(shape.attrib["y"])), []).append(frame)
        ordered = [sorted(levels[y], key=lambda frame: frame.start) for y in sorted(levels)]
        for callers, callees in pairwise(ordered):
            _connect(callers, callees)
        (root,) = ordered[0]
    except (OSError, ElementTree.ParseError, KeyError, ValueError, IndexError) as e:
        raise ProfileError(f"{path} is not a flame graph of the pinned version of py-spy: {e!r}") from e
    return root


def _connect(callers: list[Frame], callees: list[Frame]) -> None:
    """Add each callee to the caller that contains its samples; both lists are ordered by their first sample."""
    index = 0
    for callee in callees:
        while callee.start >= callers[index].start + callers[index].samples:
            index += 1
        callers[index].callees.append(callee)


def functions(root: Frame) -> Functions:
    """Return the samples of each function. A recursive function is counted once in a sample."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for frame, callers in _frames(root, frozenset()):
        if frame.waiting < frame.samples:
            own[frame.name] += 0 if _WAIT.match(frame.name) else frame.own
            if frame.name not in callers:
                total[frame.name] += frame.samples - frame.waiting
    del total[root.name]
    return Functions(root.samples - root.waiting, root.waiting, +own, +total)


def _frames(frame: Frame, callers: frozenset[str]) -> Iterator[tuple[Frame, frozenset[str]]]:
    """Yield each frame with the names of its callers, without the frames below a C function that waits."""
    yield frame, callers
    if not _BLOCKED.match(frame.name):
        for callee in frame.callees:
            yield from _frames(callee, callers | {frame.name})


def summary(found: Functions) -> list[str]:
    """Return the lines of two tables: the functions with the most own samples, and with the most in total."""
    lines = [f"{found.samples:,} samples; {found.waiting:,} more, in which a thread waited, are not counted"]
    total = Counter({name: count for name, count in found.total.items() if count < found.samples * ENTRY_SHARE})
    for title, order in (("own time", found.own), ("total time", total)):
        lines += ["", f"Functions by {title}:", "", "  own %  total %  function"]
        lines += [
            f"{_percent(found.own[name], found):7.1f}{_percent(found.total[name], found):9.1f}  {name}"
            for name, _ in order.most_common(FUNCTIONS)
        ]
    return lines


def _percent(samples: int, found: Functions) -> float:
    return samples * 100 / found.samples if found.samples else 0.0
