"""Entries of tables that have one for each queue of a topic, written from a template.

A template is bytes for the operator `%`, with one `%d` for each number. What it makes equals what `fastjson.dumps`
writes of the same MessageQueue and body, byte for byte, at a tenth of the cost: these tables have up to 16,384 entries.
"""

from __future__ import annotations

import msgspec

from delaymq.protocol.bodies.base import Body


def queue_template(broker_name: str, topic: str) -> bytes:
    """A MessageQueue of this topic, without its id."""
    return b'{"brokerName":%b,"queueId":%%d,"topic":%b}' % (_text(broker_name), _text(topic))


def entry_template(broker_name: str, topic: str, value: type[Body]) -> bytes:
    """An entry with a queue as its key: the queue's id, then the fields of `value`, which are all integers."""
    return b"%b:{%b}" % (queue_template(broker_name, topic), _figures(value))


def offset_template(broker_name: str, topic: str) -> bytes:
    """An entry of ResetOffset: the queue's id and its offset."""
    return queue_template(broker_name, topic) + b":%d"


def listed_offset_template(broker_name: str, topic: str) -> bytes:
    """The same in ResetOffset's form for clients that read no objects as keys: the offset, then the queue's id."""
    return b'{"brokerName":%b,"offset":%%d,"queueId":%%d,"topic":%b}' % (_text(broker_name), _text(topic))


def element_template(broker_name: str, topic: str, value: type[Body]) -> bytes:
    """An element of a list: the queue as the first field of `value`, then its other fields, which are all integers."""
    first, _, others = _figures(value).partition(b"%d,")
    return b"{%b%b,%b}" % (first, queue_template(broker_name, topic), others)


def text(value: str) -> bytes:
    """A string as JSON."""
    return msgspec.json.encode(value)


def _text(value: str) -> bytes:
    return text(value).replace(b"%", b"%%")


def _figures(value: type[Body]) -> bytes:
    return b",".join(b'"%b":%%d' % field.encode_name.encode() for field in msgspec.structs.fields(value))
