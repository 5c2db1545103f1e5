"""Readers of what loggers have written, each in the format of its maker."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768


def wandb_records(folder: Path) -> Iterator[Any]:
    """The records of the run file of an offline run: a LevelDB log of protocol buffers.

    A header of 7 bytes, then blocks of 32 KiB; in a block, records of checksum (4), length (2), type (1) and data. Type
    1 is a whole record, 2, 3 and 4 are its first, further and last parts.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.rglob("*.wandb")
    data, at, parts = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at < len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts = (b"" if kind in (1, 2) else parts) + data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(parts)
            yield record


def wandb_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was logged, the last value of every name, and the config."""
    logged: dict[str, Any] = {}
    config: dict[str, Any] = {}
    for record in wandb_records(folder):
        for item in record.history.item:
            logged["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
        for item in (*record.run.config.update, *record.config.update):
            config["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return logged, config
