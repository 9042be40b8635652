"""Random batches: plain, unusual and hostile."""

from __future__ import annotations

from random import Random

from delaymq.protocol.batch import BatchMessage, encode_batch

NAMES = ("UNIQ_KEY", "KEYS", "TAGS", "WAIT", "color", "größe", "CLUSTER")
RARE = (
    "RETRY_TOPIC",
    "__DMQ_MARK",
    "TIMER_DELAY_MS",
    "DELAY",
    "TRAN_MSG",
    "DELAY_KEY",
    "DELAY_SCHEDULE_ID",
    "DELAY_CRON",
)
VALUES = (
    "a",
    "paid",
    "a b  c",
    "Grüße 😀",
    "7F0000010A2B18B4AAC200000001",
    "true",
    "false",
    "\ufeffx",
    "0" * 300,
    "",
    "a\x01b",
)


def random_properties(chance: Random) -> bytes:
    """Properties as a client may send them: mostly well-formed, some with empty, repeated or reserved names."""
    names = [chance.choice(NAMES) for _ in range(chance.randrange(6))]
    if chance.random() < 0.03:
        names.append(chance.choice(RARE))
    pairs = [f"{name}\x01{chance.choice(VALUES)}" for name in names]
    if chance.random() < 0.1:
        pairs.insert(0, chance.choice(["", "\x01x", "alone", "x\x01", "TAGS\x01b\x01c"]))
    raw = "\x02".join(pairs).encode()
    if chance.random() < 0.01:
        raw += chance.choice(
            [
                b"\x02x\x01\xff\xfe",
                b"\x02KEYS\x01\xed\xa0\x80",
                b"\x02long\x01" + b"v" * chance.randrange(32_000, 33_000),
            ]
        )
    if chance.random() < 0.01:
        raw = b"\x02".join(
            b"n%d\x01v" % (number % chance.choice([20, 100])) for number in range(chance.randrange(60, 70))
        )
    return raw


def random_batch(chance: Random) -> bytes:
    """The body of a batch; one in ten is damaged."""
    count = chance.choice([1, 1, 2, 3, 8, 32, 127, 128, 129]) if chance.random() < 0.3 else chance.randrange(1, 12)
    body = encode_batch(
        BatchMessage(
            chance.choice([0, 1, -1, 2**31 - 1]),
            chance.randbytes(chance.randrange(200)),
            random_properties(chance)[:32_767],
        )
        for _ in range(count)
    )
    if chance.random() < 0.1:
        damaged = bytearray(body)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
        body = bytes(damaged[: chance.choice([len(damaged), len(damaged) - 1, chance.randrange(len(damaged))])])
    return body
