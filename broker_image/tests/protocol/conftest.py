"""The golden frames: what a real broker, NameServer and Java client sent each other."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from delaymq.protocol.command import Command, decode_command

FRAMES = Path(__file__).parent.parent / "golden" / "frames.jsonl.gz"


@dataclass(frozen=True)
class GoldenFrame:
    connection: int
    sender: str
    code: int
    flag: int
    frame: bytes

    @property
    def header(self) -> dict[str, object]:
        """The header as an independent JSON parser reads it."""
        header_bytes = int.from_bytes(self.frame[4:8], "big")
        header: dict[str, object] = json.loads(self.frame[8 : 8 + header_bytes])
        return header

    @property
    def command(self) -> Command:
        return decode_command(self.frame[4:])


@pytest.fixture(scope="session")
def golden_frames() -> list[GoldenFrame]:
    with gzip.open(FRAMES) as lines:
        rows = [json.loads(line) for line in lines]
    return [
        GoldenFrame(row["connection"], row["sender"], row["code"], row["flag"], bytes.fromhex(row["frame"]))
        for row in rows
    ]


@pytest.fixture(scope="session")
def golden_exchanges(golden_frames: list[GoldenFrame]) -> list[tuple[Command, Command | None]]:
    """Each request with its response, None for one-way requests and pulls that were held at the end."""
    responses = {
        (each.connection, each.sender, each.command.opaque): each.command
        for each in golden_frames
        if each.command.is_response
    }
    other = {"client": "server", "server": "client"}
    return [
        (each.command, responses.get((each.connection, other[each.sender], each.command.opaque)))
        for each in golden_frames
        if not each.command.is_response
    ]
