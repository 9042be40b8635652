"""RocketMQ's HA protocol: reports and ranges, cut anywhere."""

import pytest
from delaymq.protocol.errors import ProtocolError
from delaymq.protocol.ha import (
    MAX_RANGE_BYTES,
    RANGE_HEAD,
    RangeReader,
    ReportReader,
    encode_range,
    encode_ranges,
    encode_report,
)
from hypothesis import given
from hypothesis import strategies as st


def test_encoded_bytes_are_those_of_rocketmq() -> None:
    assert encode_report(0x0102030405060708) == bytes(range(1, 9))
    assert encode_range(258, b"log") == b"\0\0\0\0\0\0\x01\x02" + b"\0\0\0\x03" + b"log"
    assert encode_range(258) == b"\0\0\0\0\0\0\x01\x02" + b"\0\0\0\0"


@given(st.lists(st.tuples(st.integers(0, 2**62), st.binary(max_size=40))), st.lists(st.integers(1, 30)))
def test_ranges_survive_any_cut(ranges: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode_range(offset, data) for offset, data in ranges)
    received: list[tuple[int, bytes]] = []
    reader, position = RangeReader(), 0
    for size in [*cuts, len(stream)]:
        received += reader.feed(stream[position : position + size])
        position += size
    assert received == ranges


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, 7))
def test_reports_survive_any_cut(offsets: list[int], size: int) -> None:
    stream = b"".join(map(encode_report, offsets))
    reader, seen = ReportReader(), []
    for at in range(0, len(stream), size):
        reports = reader.feed(stream[at : at + size])
        if reports is not None:
            assert reports[0] == 1
            assert reports[1] == reports[2]
            seen.append(reports[1])
    assert seen == offsets
    assert ReportReader().feed(stream) == (len(offsets), offsets[0], offsets[-1])


def test_data_is_divided_into_ranges() -> None:
    stream = encode_ranges(100, b"0123456789", 4)
    assert list(RangeReader().feed(stream)) == [(100, b"0123"), (104, b"4567"), (108, b"89")]


@pytest.mark.parametrize(("offset", "size"), [(0, -1), (0, MAX_RANGE_BYTES + 1), (-1, 0), (0, 0x47455420)])
def test_impossible_head_is_an_error(offset: int, size: int) -> None:
    with pytest.raises(ProtocolError, match="are not a range"):
        list(RangeReader().feed(encode_range(5, b"ok") + RANGE_HEAD.pack(offset, size)))
