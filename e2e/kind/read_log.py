"""Reader that runs in a broker's pod, after the source of harness/commitlog.py: prints a topic's records in the log.

    ["delayed", keys, unique_key, level (0: timed), due_ms, stored_ms, [stored_ms of each delivered copy]]
    ["plain", keys, unique_key, stored_ms]
    ["end", {"records": n}]

Arguments: the store's directory, the topic, the delay level table.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the source that precedes this one
    from harness.commitlog import delayed_messages, mark_of, records, timed_messages


def _say(*words: object) -> None:
    print(json.dumps(words, separators=(",", ":")))


def _main(store_path: str, topic: str, level_table: str) -> None:
    store = Path(store_path)
    for unique_key, messages in delayed_messages(store, level_table, real_topic=topic).items():
        for message in messages:
            properties = message.scheduled.properties
            copies = [copy.stored_ms for copy in message.copies]
            _say(
                "delayed", properties.get("KEYS", ""), unique_key, int(properties["DELAY"]), message.due_ms,
                message.scheduled.stored_ms, copies,
            )  # fmt: skip
    count = 0
    has_timed = False
    for record in records(store):
        count += 1
        if record.topic == topic and not record.is_copy and mark_of(record) is None:
            _say("plain", record.properties.get("KEYS", ""), record.unique_key, record.stored_ms)
        has_timed = has_timed or (record.is_timed and record.properties.get("REAL_TOPIC") == topic)
    # Reads the log once more, and keeps the timed messages of all topics in memory.
    for timed in timed_messages(store, real_topic=topic).values() if has_timed else ():
        record, copies = timed.record, [copy.stored_ms for copy in timed.copies]
        keys = record.properties.get("KEYS", "")
        _say("delayed", keys, record.unique_key, 0, timed.due_ms, record.stored_ms, copies)
    _say("end", {"records": count})


_main(*sys.argv[1:])
