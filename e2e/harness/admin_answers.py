"""Responses of RocketMQ's administration API without run-specific values; everything else is compared."""

import json
import re
from typing import Any

from harness import mqadmin_output as output

MEASURED = re.compile(
    r"(?i)tps$|timestamp$|timestamps$|time$|ratio(_.*)?$|pt$|rt$|sum$|counter$|latency\d*$|EntireTimeMax$|Mills$"
    r"|^(commitLogMaxOffset|commitLogDirCapacity|runtime|remainHowManyDataToFlush|dispatchBehindBytes)$"
    r"|^(putMessageAverageSize|putMessageDistributeTime|putMessageSizeTotal|putMessageTimesTotal)$"
    r"|^(msg(Put|Get)Total\w+|clientAddr|remoteIP|subVersion|storeSize|commitLogOffset|dataVersion)$"
)
"""Rates, times, ratios, sums over the current minute, and Java-specific settings of a client."""
FIRST_TIME_MS = 1_500_000_000_000
OWN_TOPIC = "rmq_sys_delaymq_marks"
BROKER_SETTINGS = ("brokerName", "brokerClusterName", "brokerId", "brokerRole", "flushDiskType", "fileReservedTime")
CLIENT_PROPERTIES = ("PROP_CONSUMEORDERLY", "PROP_CONSUME_TYPE", "PROP_CLIENT_VERSION")


def normalised(answer: Any) -> list[str]:
    """Return lines of sorted JSON, with placeholders as in mqadmin's output."""
    text = json.dumps(_plain(answer), indent=1, sort_keys=True)
    return output.common(text)


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return _of_map(value)
    if isinstance(value, list):
        kept = [each for each in value if each != OWN_TOPIC]
        return sorted((_plain(each) for each in kept), key=lambda each: json.dumps(each, sort_keys=True))
    if key and value is not None and MEASURED.search(key):
        return "MEASURED"
    return "TIME" if isinstance(value, int) and value > FIRST_TIME_MS else value


def _of_map(fields: dict[str, Any]) -> dict[str, Any]:
    if "storePathRootDir" in fields:  # a broker's configuration: each implementation has keys of its own
        fields = {key: fields[key] for key in BROKER_SETTINGS}
    if "PROP_CLIENT_VERSION" in fields:  # settings of the client, independent of the broker
        fields = {key: fields[key] for key in CLIENT_PROPERTIES}
    return {_without_path(key): _plain(value, key) for key, value in fields.items() if not _comes_and_goes(key)}


def _comes_and_goes(key: str) -> bool:
    """Remove values that only DelayMQ has, and internal producers of clients or producers left by other tests."""
    return key.startswith(("__DMQ_", output.OF_ROCKETMQ_5, "CLIENT_INNER_PRODUCER", "producers-"))


def _without_path(key: str) -> str:
    return re.sub(r"_/.*", "_PATH", key)
