"""Signed requests, and what attackers, networks and broken clients make of them before a server gets them.

Half are whole. Nothing here says which ones count: that is for the rule (`second_signatures.py`).
"""

from __future__ import annotations

import random
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Final

from delaymq_testing.hostile.frames import Request, signed
from delaymq_testing.hostile.second_signatures import MAX_COUNTER, Challenge, Rule, reading, second_signature

REMEMBERED: Final = 60
"""Requests that may be sent again."""
COUNTERS: Final = ["0", "-1", "+7", "07", " 7", "7 ", "7.0", "1e3", "0x7", "٧", "7_0", "", "x", str(2**63), str(2**64)]
CODES: Final = [10, 17, 28, 50, 101, 202, 215, 310]


class SignatureTricks:
    """An endless sequence of requests for a server's connections. Asks for challenges where there are none."""

    def __init__(self, seed: str, draw: Callable[[], Request], rule: Rule) -> None:
        self.random = random.Random(seed)
        self.tried = Counter[str]()
        """How often each trick was played."""
        self._draw = draw
        self._rule = rule
        self._sent: list[Request] = []
        self._former = [Challenge(bytes(16), bytes(16), "broker/C/b/0/10.0.0.1:10911")]
        self._late: dict[int, Request] = {}
        self._tricks = {
            name.removeprefix("_trick_"): getattr(self, name) for name in dir(self) if name.startswith("_trick_")
        }

    def next(self, connection: int) -> Request:
        """The next request that a server gets on a connection."""
        late = self._late.pop(connection, None)
        if late is not None:
            return late
        challenge = self._rule.challenges.get(connection)
        worn_out = challenge is None or challenge.counter == MAX_COUNTER
        trick = self.random.choice(list(self._tricks)) if self.random.randrange(2) else "none"
        if worn_out and self.random.randrange(4):
            trick = "question"
        self.tried[trick] += 1
        if trick == "none":
            request = self._whole(connection)
        else:
            request = self._tricks[trick](connection)
        self._sent = [*self._sent[1 - REMEMBERED :], request]
        return deepcopy(request)

    # Signing

    def _whole(
        self,
        connection: int,
        *,
        counter: int | None = None,
        text: str | None = None,
        challenge: Challenge | None = None,
        wrong_secret: bool = False,
    ) -> Request:
        """Signed for the connection; `text` stands for the counter in the request."""
        challenge = challenge or self._challenge(connection)
        access_key, owner = self.random.choice(list(self._rule.owners.items()))
        counter = challenge.counter + 1 if counter is None else counter
        request = self._draw()
        request.fields += [("AccessKey", access_key), ("DmqCounter", str(counter) if text is None else text)]
        return self._signed(request, challenge, access_key, owner.secret + "x" * wrong_secret, counter)

    def _signed(self, request: Request, challenge: Challenge, access_key: str, secret: str, counter: int) -> Request:
        try:
            stated = second_signature(challenge, access_key, secret, counter, reading(request))
        except UnicodeEncodeError:
            stated = "lone surrogates"
        request.fields.append(("DmqSignature", stated))
        return request

    def _challenge(self, connection: int) -> Challenge:
        return self._rule.challenges.get(connection) or self._former[0]

    def _stripped(self, request: Request, *names: str) -> Request:
        request.fields = [(name, value) for name, value in request.fields if name not in names]
        return request

    # Tricks

    def _trick_question(self, connection: int) -> Request:
        """For a new challenge, seldom with a nonce that is none; it ends the one before."""
        if connection in self._rule.challenges:
            self._former = [*self._former[-5:], replace(self._rule.challenges[connection])]
        nonce = b64encode(self.random.randbytes(16 if self.random.randrange(8) else 15)).decode()
        return Request(101, [("namespace", "DELAYMQ"), ("key", "challenge"), ("nonce", nonce)])

    def _trick_gap(self, connection: int) -> Request:
        return self._whole(connection, counter=self._challenge(connection).counter + self.random.randrange(2, 1000))

    def _trick_huge_counter(self, connection: int) -> Request:
        return self._whole(connection, counter=MAX_COUNTER - self.random.choice((0, 0, 1, 5)))

    def _trick_used_counter(self, connection: int) -> Request:
        return self._whole(connection, counter=max(self._challenge(connection).counter - self.random.randrange(3), 1))

    def _trick_odd_counter(self, connection: int) -> Request:
        text = self.random.choice(COUNTERS)
        try:
            number = min(int(text), 2**64 - 1)
        except ValueError:
            number = self._challenge(connection).counter + 1
        return self._whole(connection, counter=number, text=text)

    def _trick_sent_again(self, connection: int) -> Request:
        """On this connection or another."""
        return self.random.choice(self._sent) if self._sent else self._whole(connection)

    def _trick_late(self, connection: int) -> Request:
        """Behind one that was signed later."""
        first = self._whole(connection)
        self._late[connection] = first
        return self._whole(connection, counter=self._challenge(connection).counter + 2)

    def _trick_another_challenge(self, connection: int) -> Request:
        """One from before, another connection's, or this one with another nonce or another server's name."""
        here = self._challenge(connection)
        others = [*self._former, *self._rule.challenges.values(), replace(here, nonce=bytes(16))]
        chosen = self.random.choice([*others, replace(here, server=here.server + "1")])
        return self._whole(connection, challenge=chosen, counter=here.counter + 1)

    def _trick_another_secret(self, connection: int) -> Request:
        return self._whole(connection, wrong_secret=True)

    def _trick_absent_field(self, connection: int) -> Request:
        names = ("AccessKey", "DmqCounter", "DmqSignature")
        return self._stripped(self._whole(connection), *self.random.sample(names, self.random.choice((1, 1, 2, 3))))

    def _trick_rocketmqs_signature(self, connection: int) -> Request:
        access_key, owner = self.random.choice(list(self._rule.owners.items()))
        request = self._draw()
        request.fields = signed(access_key, owner.secret, list(reading(request).fields.items()), request.body)
        return request

    def _trick_both_signatures(self, connection: int) -> Request:
        """RocketMQ's signed first, then covered by the second one."""
        request = self._trick_rocketmqs_signature(connection)
        challenge = self._challenge(connection)
        access_key = reading(request).fields["AccessKey"]
        request.fields.append(("DmqCounter", str(challenge.counter + 1)))
        secret = self._rule.owners[access_key].secret
        return self._signed(request, challenge, access_key, secret, challenge.counter + 1)

    def _trick_second_one_taken_off(self, connection: int) -> Request:
        return self._stripped(self._trick_both_signatures(connection), "DmqSignature")

    def _trick_another_code(self, connection: int) -> Request:
        return replace(self._whole(connection), code=self.random.choice(CODES))

    def _trick_another_header(self, connection: int) -> Request:
        request = self._whole(connection)
        match self.random.randrange(5):
            case 0:
                return replace(request, opaque=request.opaque + 1)
            case 1:
                return replace(request, flag=request.flag ^ 4)
            case 2:
                return replace(request, version=request.version + 1)
            case 3:
                return replace(request, language="GO")
            case _:
                return replace(request, remark="x")

    def _trick_another_body(self, connection: int) -> Request:
        request = self._whole(connection)
        return replace(request, body=self.random.choice((request.body + b"x", request.body[:-1], b"")))

    def _trick_another_field(self, connection: int) -> Request:
        """A value changed, a field more or less, or text moved from one value into another."""
        request = self._whole(connection)
        pairs = request.fields
        at = self.random.randrange(len(pairs))
        name, value = pairs[at]
        match self.random.randrange(5):
            case 0:
                pairs[at] = (name, f"{value}x")
            case 1:
                del pairs[at]
            case 2:
                pairs.append((self.random.choice(("extra", "bname", "Signature")), self.random.choice(("", "x"))))
            case 3:
                pairs.append((name, "x"))
            case _:
                after = (at + 1) % len(pairs)
                if isinstance(value, str) and isinstance(pairs[after][1], str):
                    pairs[at] = (name, value[:-1])
                    pairs[after] = (pairs[after][0], value[-1:] + str(pairs[after][1]))
        return request

    def _trick_another_signature(self, connection: int) -> Request:
        """The text that stands for it written otherwise."""
        request = self._whole(connection)
        name, value = request.fields[-1]
        text = str(value)
        others = ("", text[:-1], text + "=", text + "\n", text.swapcase(), f" {text}", "é", text[:20], text * 2)
        request.fields[-1] = (name, self.random.choice(others))
        return request

    def _trick_another_form(self, connection: int) -> Request:
        """The same request with its fields in another order, or in the other form of header."""
        request = self._whole(connection)
        if self.random.randrange(2):
            request.fields = list(reading(request).fields.items())
            self.random.shuffle(request.fields)
            return request
        return replace(request, is_binary=not request.is_binary)
