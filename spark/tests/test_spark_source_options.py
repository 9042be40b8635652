"""Options of `rocketmq_store` without Spark: sizes, columns, and messages for invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest
from delaymq_spark.source.data_source import RocketMqStoreSource
from delaymq_spark.source.options import DEFAULT_SPLIT_BYTES, OptionError, SourceOptions, parse_options
from delaymq_spark.source.schema import COLUMNS, DEFAULT_COLUMNS, SKIPPED

pytestmark = pytest.mark.core


def parsed(**options: str) -> SourceOptions:
    return parse_options({"path": "/var/lib/store", **options})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("134217728", 1 << 27), ("4096", 4096), ("16k", 1 << 14), ("16 KB", 1 << 14), ("5000b", 5000),
        (" 128m ", 1 << 27), ("2GB", 2 << 30),
    ],
)  # fmt: skip
def test_all_sizes_accept_the_same_notations(text: str, expected: int) -> None:
    found = parsed(splitBytes=text, maxBytesPerTrigger=text)
    assert (found.split_bytes, found.max_trigger_bytes) == (expected, expected)


@pytest.mark.parametrize("name", ["splitBytes", "maxBytesPerTrigger"])
@pytest.mark.parametrize("text", ["lots", "4095", "3k", "1t", "-5m", "1.5g", "9" * 16, "0"])
def test_invalid_size_is_rejected_with_examples(name: str, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parsed(**{name: text})
    assert str(caught.value) == f"{name} is {text!r}: use at least 4096 bytes, such as 134217728 or 128m"


def test_sizes_default_to_the_usual_partition_and_unbounded_batches() -> None:
    for found in (parsed(), parsed(maxBytesPerTrigger=" ")):
        assert (found.split_bytes, found.max_trigger_bytes) == (DEFAULT_SPLIT_BYTES, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", DEFAULT_COLUMNS),
        ("topic, size", ("topic", "size")),
        ("size,topic,size", ("size", "topic")),
        ("*", tuple(COLUMNS)),
        ("skipped", (SKIPPED,)),
        ("skipped,topic", ("topic", SKIPPED)),
        ("topic, skipped ,size", ("topic", "size", SKIPPED)),
        ("skipped,*", (*COLUMNS, SKIPPED)),
    ],
)
def test_skipped_is_the_last_column_when_requested(text: str, expected: tuple[str, ...]) -> None:
    assert parsed(columns=text).columns == expected
    source = RocketMqStoreSource({"path": "/var/lib/store", "columns": text})
    assert tuple(source.schema().fieldNames()) == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "topic,boddy"}, "columns: unknown column 'boddy': did you mean body?"),
        ({"columns": "topic,skiped"}, "columns: unknown column 'skiped': did you mean skipped?"),
        ({"maxBytePerTriger": "1m"}, "unknown option 'maxBytePerTriger': did you mean maxBytesPerTrigger?"),
    ],
)
def test_misspelt_name_is_rejected_with_the_closest_match(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        parsed(**options)
    assert str(caught.value) == said


def test_stream_reader_accepts_its_limit_in_any_case(tmp_path: Path) -> None:
    source = RocketMqStoreSource({"path": str(tmp_path), "MAXBYTESPERTRIGGER": "1m"})
    assert source.streamReader(source.schema()).options.max_trigger_bytes == 1 << 20
