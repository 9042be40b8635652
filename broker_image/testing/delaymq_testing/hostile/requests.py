"""Requests with the structure of real ones and something wrong: in a field, in the body's tree, in the frame.

Mostly whole, so that what lies behind the first check is reached. The seed chooses the sequence.
"""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from delaymq_testing.hostile.frames import ONEWAY, RESPONSE, Request, Value
from delaymq_testing.hostile.stories import STORIES, Step
from delaymq_testing.hostile.words import BODIES, HEADERS, NUMBERS, OTHERS, PROPERTY_NAMES, TEXTS, TREES

Pairs = list[tuple[str, Value]]
Sign = Callable[[Pairs, bytes], Pairs]

_LEAVES: Sequence[Any] = [
    *(None, True, -1, 0, 2**31, 2**63 - 1, 2**63, -1e300, "", "x" * 300, "é\u0000\u2028", "\ud83d", [], {}),
]
A_STORY_IN = 30
"""One in this number of requests begins a story."""
_FLAGS = (ONEWAY, ONEWAY, ONEWAY, RESPONSE, 4, 2**31 - 1, 0)
_ODD_CHARACTERS = (1, 2, 10, 48, 65, 233, 0x20AC, 0x1F600)


@functools.cache
def _fields_of(code: int) -> list[tuple[str, str]]:
    header = HEADERS.get(code)
    fields = msgspec.structs.fields(header) if header is not None else ()
    return [(field.encode_name, str(field.type)) for field in fields]


class HostileRequests:
    """An endless sequence of requests of the given codes."""

    def __init__(
        self,
        seed: str,
        codes: Iterable[int],
        weights: Mapping[int, float] | None = None,
        *,
        texts: Mapping[str, Sequence[str]] | None = None,
        sign: Sign | None = None,
    ) -> None:
        """`texts` replace or add to the values by field name; `sign` is given every whole request's fields and body."""
        self.random = random.Random(seed)
        self.codes = [int(code) for code in codes]
        self._weights = [(weights or {}).get(code, 1.0) for code in self.codes]
        self._texts: Mapping[str, Sequence[str]] = {**TEXTS, **(texts or {})}
        self._sign = sign
        self._may_repeat = True
        self._stories = [story for story in STORIES if {code for code, *_ in story} <= set(self.codes)]
        self._steps: list[Step] = []
        """What is left of the story that is being told."""
        self._stored = {"offset": "0", "number": "0", "id": "0" * 32, "handle": ""}
        """The last message that was stored, for stories."""
        self.names_stored = False
        """Whether the last request names that message, which a client does after its answer: when it is on the disk."""
        self.offsets: list[int] = [0]
        """Offsets of the log that are worth naming."""
        self.is_whole = True
        """Whether the last frame's lengths are right."""

    def request(self) -> tuple[int, Pairs, bytes]:
        """Code, fields and body; occasionally of the next step of a story, whose steps build on each other."""
        if self._stories and not self._steps and not self.random.randrange(A_STORY_IN):
            self._steps = list(self.random.choice(self._stories))
        self.names_stored = False
        if self._steps:
            code, stated, body = self._steps.pop(0)
            pairs: Pairs = [(name, value.format_map(self._stored)) for name, value in stated.items()]
            self.names_stored = pairs != list(stated.items())
            return code, self._surprised(pairs), self._damaged(body)
        (code,) = self.random.choices(self.codes, self._weights)
        return code, self._fields(code), self._body(code)

    def drawn(self, opaque: int, surprise: int) -> Request:
        """A request without a signature; `surprise`, of 60, says what is odd about its header."""
        chance = self.random
        code, fields, body = self.request()
        drawn = Request(code, fields, body, opaque, _FLAGS[min(surprise, 6)])
        drawn.is_binary = chance.randrange(5) < 2
        if not drawn.is_binary:
            drawn.language = chance.choice(("JAVA", "CPP", "", None, 5))
        if surprise == 7:
            drawn.remark = chance.randbytes(6) if drawn.is_binary else chance.choice(("", "\x00" * 50, None))
        return drawn

    def frame(self, opaque: int = 0) -> bytes:
        """A whole frame; one in sixty is broken or is no request."""
        surprise = self.random.randrange(60)
        drawn = self.drawn(opaque, surprise)
        if self._sign is not None and self.random.randrange(12):
            drawn.fields = self._sign(drawn.fields, drawn.body)
        self.is_whole = surprise != 8
        return drawn.frame() if self.is_whole else self._broken(drawn.frame())

    def learn(self, told: Mapping[str, str]) -> None:
        """Takes from the fields of an answer what later requests may name."""
        msg_id = told.get("msgId", "")
        if len(msg_id) == 32:
            offset = int(msg_id[16:], 16)
            self.offsets = [*self.offsets[-20:], offset]
            self._stored |= {"offset": str(offset), "number": told["queueOffset"], "id": msg_id}
        self._stored["handle"] = told.get("recallHandle", self._stored["handle"])

    def _fields(self, code: int) -> Pairs:
        pairs: Pairs = []
        for name, kind in _fields_of(code):
            surprise = self.random.randrange(60)
            if surprise:
                pairs.append((name, self._value(name, kind, surprise)))
        return self._surprised(pairs)

    def _surprised(self, pairs: Pairs) -> Pairs:
        """The fields, one time in ten with one that does not belong there."""
        surprise = self.random.randrange(40)
        if surprise == 0:
            pairs.append((self._odd_text(9), self._odd_text(9)))
        elif surprise == 1 and pairs:
            name, _ = self.random.choice(pairs)
            pairs.append((name, self.random.choice(self.random.choice(list(self._texts.values())))))
        elif surprise == 2 and pairs:
            at = self.random.randrange(len(pairs))
            pairs[at] = (pairs[at][0], self.random.choice((None, True, 5, -1.5, 2**62)))
        elif surprise == 3:
            pairs += [(f"f{number}", "v") for number in range(self.random.choice((30, 500, 520)))]
        return pairs

    def _value(self, name: str, kind: str, surprise: int) -> str:
        chance = self.random
        if surprise == 1:
            return self._odd_text(9)
        if "bool" in kind:
            return chance.choice(("true", "true", *["false"] * 8, "", "1"))
        if name in ("properties", "i") and chance.randrange(2):
            return self._properties()
        if name in self._texts:
            return chance.choice(self._texts[name])
        if "str" in kind:
            return chance.choice(OTHERS)
        if name == "endTimestamp":
            return str(2**62)
        if name == "tranStateTableOffset":
            return str(chance.randrange(8))
        if name in ("offset", "commitLogOffset"):
            return str(chance.choice(self.offsets) + chance.choice((0, 0, 0, 1, -1, 88, 91, 300)))
        return str(chance.choice(NUMBERS) if surprise < 5 else chance.choice((0, 0, 1, 1, 2, 3)))

    def _properties(self) -> str:
        """A message's properties: known names with values of their own and of others."""
        pairs = []
        for _ in range(self.random.choice((1, 1, 2, 5, 40))):
            name = self.random.choice(PROPERTY_NAMES)
            values: Sequence[Any] = self.random.choice((OTHERS, NUMBERS, self._texts["topic"], ("true", "1", "3")))
            pairs.append(f"{name}\x01{self.random.choice(values)}")
        return "\x02".join(pairs)

    def _odd_text(self, length: int) -> str:
        return "".join(chr(self.random.choice(_ODD_CHARACTERS)) for _ in range(length))

    def _body(self, code: int) -> bytes:
        chance = self.random
        if code in TREES and (code not in BODIES or chance.randrange(3)):
            tree = copy.deepcopy(chance.choice(TREES[code]))
            self._may_repeat = True
            for _ in range(chance.choice((0, 0, 1, 1, 2, 5))):
                tree = self._changed(tree)
            body = json.dumps(tree).encode(errors="replace")
        else:
            body = chance.choice(BODIES.get(code, [b"", b"x"]))
        return self._damaged(body)

    def _damaged(self, body: bytes) -> bytes:
        """The body, one time in four with a byte changed, an end missing or a part repeated."""
        chance = self.random
        surprise = chance.randrange(12)
        if surprise == 0 and body:
            at = chance.randrange(len(body))
            return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
        if surprise == 1 and body:
            return body[: chance.randrange(len(body))]
        if surprise == 2 and body:
            at = chance.randrange(len(body))
            return body[:at] + body[at:][: chance.randrange(200)] * chance.choice((2, 20)) + body[at:]
        return body

    def _changed(self, tree: Any) -> Any:
        """The tree with one node changed: replaced, omitted, repeated, nested, or under another name."""
        if isinstance(tree, dict) and tree and self.random.randrange(8):
            key = self.random.choice(list(tree))
            surprise = self.random.randrange(8)
            if surprise == 0:
                del tree[key]
            elif surprise == 1:
                tree[self._odd_text(3)] = tree.pop(key)
            else:
                tree[key] = self._changed(tree[key])
            return tree
        if isinstance(tree, list) and tree and self.random.randrange(8):
            at = self.random.randrange(len(tree))
            if self.random.randrange(4) == 0 and self._may_repeat:
                self._may_repeat = False  # repetitions of repetitions would take gigabytes
                return tree * self.random.choice((2, 50))
            tree[at] = self._changed(tree[at])
            return tree
        surprise = self.random.randrange(20)
        if surprise == 0:
            for _ in range(70):
                tree = [tree]
            return tree
        if surprise < 4 and isinstance(tree, str):
            return self.random.choice(self.random.choice(list(self._texts.values())))
        if isinstance(tree, int) and surprise < 10:
            return self.random.choice(NUMBERS)
        return copy.copy(self.random.choice(_LEAVES))

    def _broken(self, frame: bytes) -> bytes:
        """The frame with a length that does not fit, bytes changed, or an end that is missing."""
        chance = self.random
        at = chance.randrange(8) if chance.randrange(2) else chance.randrange(len(frame))
        match chance.randrange(3):
            case 0:
                return frame[:at] + chance.randbytes(1) + frame[at + 1 :]
            case 1:
                return frame[:at] + chance.randbytes(3) + frame[at:]
            case _:
                return frame[: at + 4]
