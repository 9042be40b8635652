"""mqadmin's output without run-specific values: times, ports, IDs, measurements, DelayMQ's own properties.

Everything else is compared: names, counts, offsets, sizes, versions, permissions, order of messages.
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
"""Runtime statistics of a broker that depend on the machine or on the time."""

OF_ROCKETMQ_5 = "getTransferredTps"
"""A statistic that RocketMQ 4.9 reports only under a misspelt name; DelayMQ reports both names."""


def common(text: str) -> list[str]:
    """Return lines with single blanks, and placeholders for times, addresses and ids."""
    lines = []
    for raw in text.splitlines():
        line = " ".join(raw.split())
        line = MESSAGE_ID.sub("ID", ADDRESS.sub("ADDRESS", CLIENT_ID.sub("CLIENT", TIME.sub("TIME", line))))
        lines.append(_sorted_properties(line))
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _sorted_properties(line: str) -> str:
    """Sort properties, whose order is that of a Java map; remove DelayMQ's own, named __DMQ_…."""
    match = PROPERTIES.match(line)
    if match is None:
        return line
    pairs = sorted(pair for pair in match[2].split(", ") if not pair.startswith("__DMQ_"))
    return f"{match[1]}{{{', '.join(pairs)}}}"


def cluster_list(lines: list[str]) -> list[str]:
    """Replace measured values: load, waiting times, age of the oldest message and disk usage."""
    return [line if line.startswith("#") else " ".join([*line.split()[:5], "MEASURED"]) for line in lines]


def topic_list(lines: list[str]) -> list[str]:
    """Sort topics, whose order is that of a hash set; a headline, if any, stays first."""
    return sorted(lines)


def broker_status(lines: list[str]) -> list[str]:
    """Keep the names of statistics, without their values."""
    known = [line for line in lines if not line.startswith(OF_ROCKETMQ_5)]
    return [MEASURED.sub(lambda m: f"{re.sub('_/.*', '_PATH', m[1])} : MEASURED", line) for line in known]


def delay_offsets(lines: list[str]) -> list[str]:
    """Keep only the delay levels of a broker's statistics."""
    return [line for line in lines if line.startswith("scheduleMessageOffset_")]


def consumer_progress(lines: list[str]) -> list[str]:
    return ["Consume TPS: MEASURED" if line.startswith("Consume TPS:") else line for line in lines]


def all_progress(lines: list[str]) -> list[str]:
    """Normalise group, count, version, type, model, TPS (measured), difference."""
    return [
        line if line.startswith("#") or not line else " ".join([*line.split()[:5], "MEASURED", *line.split()[6:]])
        for line in lines
    ]


def settings(*keys: str) -> "Normaliser":
    """Keep only these keys of a configuration, sorted; values that name paths or addresses are replaced."""

    def normalise(lines: list[str]) -> list[str]:
        pairs = sorted(line.partition("= ")[::2] for line in lines if "= " in line or line.endswith("="))
        found = {key.rstrip(" ="): value for key, value in pairs}
        return [f"{key} = {_without_place(key, found[key])}" if key in found else f"no {key}" for key in sorted(keys)]

    return normalise


def _without_place(key: str, value: str) -> str:
    return "PLACE" if key.endswith(("Path", "List", "Dir")) else value


def headlines(lines: list[str]) -> list[str]:
    """Keep only the lines that name the owner of a configuration."""
    return [line for line in lines if line.startswith("=")]


_VOLATILE = re.compile(
    r"(?i)tps$|timestamp$|^exportTime$|ratio$|cpuNum$|totalMemKBytes$|counter$|dataVersion$|averageSize$"
)
"""Keys of rates, times, ratios and counters of changes."""


def exported(lines: list[str]) -> list[str]:
    """Sort the JSON of an export; replace measured values and counters of changes."""
    return json.dumps(_exported(json.loads("\n".join(lines))), indent=1, sort_keys=True).splitlines()


def _exported(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _exported(part, name) for name, part in value.items()}
    return "MEASURED" if _VOLATILE.search(key) and value is not None else value


def send_times(lines: list[str]) -> list[str]:
    """Normalise cluster, broker, milliseconds (measured), sent, failed."""
    return [line if line.startswith("#") else re.sub(r" \d+\.\d+ ", " MEASURED ", line) for line in lines]


_OF_A_SEND = re.compile(r"rt=\d+ms|queueId=\d+|queueOffset=\d+|msgId=\w+|offsetMsgId=\w+")


def send_results(lines: list[str]) -> list[str]:
    """Keep what does not depend on time or on the order of queues."""
    return [_OF_A_SEND.sub("MEASURED", line) for line in lines]


def all_statistics(lines: list[str]) -> list[str]:
    """Keep topic, group and lag; rates are measured, and counts are those of the last full minute."""
    return [line if line.startswith("#") else " ".join([*line.split()[:3], "MEASURED"]) for line in lines]


def producers(*groups: str) -> "Normaliser":
    """Keep only members of these producer groups; tools have groups of their own."""

    def normalise(lines: list[str]) -> list[str]:
        kept = [line for line in lines if any(f"({group})" in line for group in groups)]
        return [re.sub(r"lastUpdateTimestamp=\d+", "lastUpdateTimestamp=TIME", line) for line in kept]

    return normalise


_OF_A_RUNNING_CLIENT = re.compile(r"\d{13,17}/?|(?<!\w)\d+\.\d\d(?!\w)|\S*@[0-9a-f]+$")


def running(lines: list[str]) -> list[str]:
    """Normalise a client's state without times, rates and addresses of Java objects."""
    return [_OF_A_RUNNING_CLIENT.sub("MEASURED", line) for line in lines]


def resets(lines: list[str]) -> list[str]:
    """Replace the requested time; sort queues, whose order is that of a hash table."""
    return sorted(re.sub(r"\[\d{13}\]", "[TIME]", line) for line in lines)


def of(word: str) -> "Normaliser":
    """Keep only lines that contain a word, and the headlines."""
    return lambda lines: [line for line in lines if word in line or line.startswith("#")]


_OF_A_RECORD = re.compile(
    r"(bornTimestamp|storeTimestamp|storeSize|commitLogOffset|bodyCRC|bornHost|storeHost)=[^,\]]*"
)
_MAP = re.compile(r"properties=\{(.*?)\}")


def messages(lines: list[str]) -> list[str]:
    """Normalise messages as printed by Java: without times and positions, properties and queues sorted."""
    return sorted(_MAP.sub(_of_map, _OF_A_RECORD.sub(r"\1=ANY", line)) for line in lines if not line.startswith("---"))


def _of_map(match: re.Match[str]) -> str:
    pairs = sorted(pair for pair in match[1].split(", ") if not pair.startswith("__DMQ_"))
    return f"properties={{{', '.join(pairs)}}}"


def entries(lines: list[str]) -> list[str]:
    """Replace a subscription's version, a time, and `eval`, which RocketMQ sets only with consume queue extensions."""
    return [re.sub(r'(?<="subVersion":)\d+|(?<=eval=)\w+', "ANY", line) for line in lines]


def traces(lines: list[str]) -> list[str]:
    """Normalise traces without durations."""
    return [re.sub(r" \d+ms ", " MEASURED ", re.sub(r"TIME|\d+ms", "MEASURED", line)) for line in lines]


def round_trips(lines: list[str]) -> list[str]:
    """Keep broker, queue and status; the duration is measured."""
    return [
        line if line.startswith("#") else re.sub(r"(?<=true) \d+$|(?<=RT:) \S+$", " MEASURED", line) for line in lines
    ]


def plain(lines: list[str]) -> list[str]:
    return lines


Normaliser = Callable[[list[str]], list[str]]
