"""mqadmin's output without run-specific values: times, ports, IDs, measurements, DelayMQ's own properties.

Everything else stays and is compared: names, counts, offsets, sizes, versions, permissions, order of messages.
"""

import json
import re
from collections.abc import Callable
from typing import Any

TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d{3})?")
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
MESSAGE_ID = re.compile(r"\b[0-9A-F]{32}\b")
CLIENT_ID = re.compile(r"127\.0\.0\.1@\S+")
PROPERTIES = re.compile(r"^(Properties: )\{(.*)\}$")

MEASURED = re.compile(
    r"^(bootTimestamp|runtime|commitLogDirCapacity|commitLogDiskRatio\S*|consumeQueueDiskRatio|\w+Tps|\w+EntireTimeMax"
    r"|putLatency\d+|putMessageDistributeTime|pageCacheLockTimeMills|\w+HeadWaitTimeMills|remainHowManyDataToFlush"
    r"|earliestMessageTimeStamp) ?:.*$"
)
"""Runtime figures of a broker that depend on the machine, the clock or the moment."""

OF_ROCKETMQ_5 = "getTransferredTps"
"""A figure that RocketMQ 4.9 only has misspelt; ours has both."""


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
    known = [line for line in lines if not line.startswith(OF_ROCKETMQ_5)]
    return [MEASURED.sub(lambda m: f"{re.sub('_/.*', '_PATH', m[1])} : MEASURED", line) for line in known]


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


def settings(*keys: str) -> "Normaliser":
    """Of a configuration only these keys, by name; what names a place is each one's own."""

    def normalise(lines: list[str]) -> list[str]:
        pairs = sorted(line.partition("= ")[::2] for line in lines if "= " in line or line.endswith("="))
        found = {key.rstrip(" ="): value for key, value in pairs}
        return [f"{key} = {_without_place(key, found[key])}" if key in found else f"no {key}" for key in sorted(keys)]

    return normalise


def _without_place(key: str, value: str) -> str:
    return "PLACE" if key.endswith(("Path", "List", "Dir")) else value


def headlines(lines: list[str]) -> list[str]:
    """Whose configuration it is."""
    return [line for line in lines if line.startswith("=")]


_VOLATILE = re.compile(
    r"(?i)tps$|timestamp$|^exportTime$|ratio$|cpuNum$|totalMemKBytes$|counter$|dataVersion$|averageSize$"
)
"""Rates, times, shares and what counts changes, by key."""


def exported(lines: list[str]) -> list[str]:
    """JSON of an export: sorted, with placeholders for what is measured or counts changes."""
    return json.dumps(_exported(json.loads("\n".join(lines))), indent=1, sort_keys=True).splitlines()


def _exported(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _exported(part, name) for name, part in value.items()}
    return "MEASURED" if _VOLATILE.search(key) and value is not None else value


def send_times(lines: list[str]) -> list[str]:
    """Cluster, broker, milliseconds (measured), sent, failed."""
    return [line if line.startswith("#") else re.sub(r" \d+\.\d+ ", " MEASURED ", line) for line in lines]


_OF_A_SEND = re.compile(r"rt=\d+ms|queueId=\d+|queueOffset=\d+|msgId=\w+|offsetMsgId=\w+")


def send_results(lines: list[str]) -> list[str]:
    """Of sends what does not depend on the moment or on the order of queues."""
    return [_OF_A_SEND.sub("MEASURED", line) for line in lines]


def all_statistics(lines: list[str]) -> list[str]:
    """Topic, group, lag; rates are measured, and counts are those of the last full minutes."""
    return [line if line.startswith("#") else " ".join([*line.split()[:3], "MEASURED"]) for line in lines]


def producers(*groups: str) -> "Normaliser":
    """The members of these producer groups; tools have groups of their own."""

    def normalise(lines: list[str]) -> list[str]:
        kept = [line for line in lines if any(f"({group})" in line for group in groups)]
        return [re.sub(r"lastUpdateTimestamp=\d+", "lastUpdateTimestamp=TIME", line) for line in kept]

    return normalise


_OF_A_RUNNING_CLIENT = re.compile(r"\d{13,17}/?|(?<!\w)\d+\.\d\d(?!\w)|\S*@[0-9a-f]+$")


def running(lines: list[str]) -> list[str]:
    """A client's state without times, rates and the addresses of Java's objects."""
    return [_OF_A_RUNNING_CLIENT.sub("MEASURED", line) for line in lines]


def resets(lines: list[str]) -> list[str]:
    """The requested time is the test's; queues come in the order of a hash table."""
    return sorted(re.sub(r"\[\d{13}\]", "[TIME]", line) for line in lines)


def of(word: str) -> "Normaliser":
    """The lines with a word, and the headlines."""
    return lambda lines: [line for line in lines if word in line or line.startswith("#")]


_OF_A_RECORD = re.compile(
    r"(bornTimestamp|storeTimestamp|storeSize|commitLogOffset|bodyCRC|bornHost|storeHost)=[^,\]]*"
)
_MAP = re.compile(r"properties=\{(.*?)\}")


def messages(lines: list[str]) -> list[str]:
    """Messages as Java prints them: without times and places, properties in order, queues in order."""
    return sorted(_MAP.sub(_of_map, _OF_A_RECORD.sub(r"\1=ANY", line)) for line in lines if not line.startswith("---"))


def _of_map(match: re.Match[str]) -> str:
    pairs = sorted(pair for pair in match[1].split(", ") if not pair.startswith("__DMQ_"))
    return f"properties={{{', '.join(pairs)}}}"


def entries(lines: list[str]) -> list[str]:
    """A subscription's version is a time. RocketMQ evaluates it only with consume queue extensions; ours always."""
    return [re.sub(r'(?<="subVersion":)\d+|(?<=eval=)\w+', "ANY", line) for line in lines]


def traces(lines: list[str]) -> list[str]:
    """Traces without how long it took."""
    return [re.sub(r" \d+ms ", " MEASURED ", re.sub(r"TIME|\d+ms", "MEASURED", line)) for line in lines]


def round_trips(lines: list[str]) -> list[str]:
    """Broker, queue, whether it was sent, and how long it took (measured)."""
    return [
        line if line.startswith("#") else re.sub(r"(?<=true) \d+$|(?<=RT:) \S+$", " MEASURED", line) for line in lines
    ]


def plain(lines: list[str]) -> list[str]:
    return lines


Normaliser = Callable[[list[str]], list[str]]
