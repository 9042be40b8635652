"""Any broker.conf yields a configuration or one ConfigError, in bounded time."""

import random
from typing import Any

from delaymq.config import BrokerConfig, ConfigError, NamesrvConfig, build, keys_of, parse_properties_text
from delaymq_testing.repetitions import FUZZ_INPUTS as INPUTS
from delaymq_testing.repetitions import SEED

_PIECES = ["=", ":", "\n", "\\", "\\u00", "#", "!", " ", "1s", "9" * 30, "-1", "true", "\ud800", "SYNC_FLUSH", ";"]


def test_random_texts_yield_a_configuration_or_one_clear_error() -> None:
    source = random.Random(SEED)
    kinds: tuple[Any, ...] = (BrokerConfig, NamesrvConfig)
    pieces = _PIECES + [key for kind in kinds for key in keys_of(kind)]
    built = refused = 0
    for number in range(INPUTS):
        kind = kinds[number % 2]
        key = source.choice(list(keys_of(kind)))
        mutated = "".join(source.choices(pieces, k=source.randrange(6)))
        text = f"{key}={mutated}"
        if number % 20 == 0:  # seldom: naming the nearest key takes a millisecond
            text = source.choice([mutated, f"{key} : {source.choice(pieces)}\n{mutated}"])
        try:
            build(kind, parse_properties_text(text))
            built += 1
        except ConfigError as error:
            refused += 0 < len(str(error)) < 1_000
    assert built + refused == INPUTS
    assert min(built, refused) > INPUTS // 100
