"""mqadmin's output without what differs from run to run: times, ports, ids, measured numbers, delaymq's own properties.

Everything else stays and is compared: names, counts, offsets, sizes, versions, permissions, order of messages.
"""

import re
from collections.abc import Callable

TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?")
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
MESSAGE_ID = re.compile(r"\b[0-9A-F]{32}\b")
CLIENT_ID = re.compile(r"127\.0\.0\.1@\S+")
PROPERTIES = re.compile(r"^(Properties: )\{(.*)\}$")

# Runtime figures of a broker that depend on the machine, the clock or the moment.
MEASURED = re.compile(
    r"^(bootTimestamp|runtime|commitLogDirCapacity|commitLogDiskRatio\S*|consumeQueueDiskRatio|\w+Tps|\w+EntireTimeMax"
    r"|putLatency\d+|putMessageDistributeTime|pageCacheLockTimeMills|\w+HeadWaitTimeMills|remainHowManyDataToFlush"
    r"|earliestMessageTimeStamp) ?:.*$"
)


def common(text: str) -> list[str]:
    """Lines with single blanks, and placeholders for times, addresses and ids."""
    lines = []
    for raw in text.splitlines():
        line = " ".join(raw.split())
        line = MESSAGE_ID.sub("ID", ADDRESS.sub("ADDRESS", CLIENT_ID.sub("CLIENT", TIME.sub("TIME", line))))
        lines.append(_sorted_properties(line))
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _sorted_properties(line: str) -> str:
    """The order of properties is a Java map's; those named __DMQ_… are delaymq's marks."""
    match = PROPERTIES.match(line)
    if match is None:
        return line
    pairs = sorted(pair for pair in match[2].split(", ") if not pair.startswith("__DMQ_"))
    return f"{match[1]}{{{', '.join(pairs)}}}"


def cluster_list(lines: list[str]) -> list[str]:
    """Load, waits, age of the oldest message and disk use are measured."""
    return [line if line.startswith("#") else " ".join([*line.split()[:5], "MEASURED"]) for line in lines]


def topic_list(lines: list[str]) -> list[str]:
    """Topics come in the order of a hash set; the headline, if any, is first anyway."""
    return sorted(lines)


def broker_status(lines: list[str]) -> list[str]:
    """The name of what is measured stays, and that it is reported at all."""
    return [MEASURED.sub(lambda m: f"{re.sub('_/.*', '_PATH', m[1])} : MEASURED", line) for line in lines]


def delay_offsets(lines: list[str]) -> list[str]:
    """Of a broker's figures only those of the delay levels."""
    return [line for line in lines if line.startswith("scheduleMessageOffset_")]


def consumer_progress(lines: list[str]) -> list[str]:
    return ["Consume TPS: MEASURED" if line.startswith("Consume TPS:") else line for line in lines]


def all_progress(lines: list[str]) -> list[str]:
    """Group, count, version, type, model, TPS (measured), difference."""
    return [
        line if line.startswith("#") or not line else " ".join([*line.split()[:5], "MEASURED", *line.split()[6:]])
        for line in lines
    ]


def plain(lines: list[str]) -> list[str]:
    return lines


Normaliser = Callable[[list[str]], list[str]]
