"""Any properties text is parsed as pairs, which survive a round trip."""

import random

import pytest
from delaymq.message.properties import decode_properties, encode_properties, format_properties, parse_properties
from delaymq_testing.hostile.words import OTHERS, PROPERTY_NAMES
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

pytestmark = pytest.mark.timeout(120 + FUZZ_INPUTS // 100)

_PIECES = [
    *PROPERTY_NAMES,
    *OTHERS,
    "\x01",
    "\x01",
    "\x02",
    "\x02",
    "\x01\x02",
    "\x00",
    "=",
    "\n",
    "é",
    "\ud800",
    "x" * 300,
]


def test_random_properties_are_pairs_that_survive_a_round_trip() -> None:
    chance = random.Random(f"{SEED} properties")
    pairs_seen = 0
    for number in range(FUZZ_INPUTS):
        text = "".join(chance.choices(_PIECES, k=chance.randrange(12)))
        data = text.encode(errors="replace") + chance.randbytes(chance.choice((0, 0, 1, 9)))
        pairs = decode_properties(data)
        pairs_seen += len(pairs)
        assert decode_properties(encode_properties(pairs)) == pairs, f"input {number} of DELAYMQ_SEED={SEED}: {data!r}"
        as_text = parse_properties(text)
        assert parse_properties(format_properties(as_text)) == as_text, (
            f"input {number} of DELAYMQ_SEED={SEED}: {text!r}"
        )
    assert pairs_seen > FUZZ_INPUTS // 20
