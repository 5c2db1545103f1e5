"""The manifest of a cache of features: `cache.json`."""

from typing import Any

import msgspec

from oodlit.results.record_parts import AccelerationRecord, TimeRecord, written

FORMAT = 1
"""Version of the format; a new number means that older caches can no longer be read."""
OTHERWISE = "choose another folder for the cache, or delete this cache to record again"
"""What to do about a cache that does not fit; ends a message."""


class RecordedStream(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A complete stream of a cache.

    Args:
        name: Name of the stream.
        role: Role of the stream.
        images: Number of images of the run, including skipped ones.
        classes: Digest of the names of the classes.
        labels: Digest of the names of the labels.
        prepared: Whether the images had already been transformed.
        split: The split of a pool, as text; "None" for other streams.
        content: Digest of the source.
        sample: Digest of sampled images; empty in older caches and for sources that have checksums.
        whole: Number of images of the set; None = the number of images.
        class_names: Names of the classes.
        label_names: Names of the labels.
        parts: Files and their rows.
        checksums: CRC-32 of the files; empty in older caches.
        skipped: Keys of unusable images, and the reasons.
        loss: Largest rounding error of the dtype, by field; empty for float32.
    """

    name: str
    role: str
    images: int
    classes: str
    labels: str
    prepared: bool
    split: str = written(str)
    content: str
    sample: str = ""
    whole: int | None = None
    class_names: list[str]
    label_names: list[str]
    parts: list[tuple[str, int]]
    checksums: dict[str, str] = {}
    skipped: list[tuple[str, str]]
    loss: dict[str, float] = {}


class Pass(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One pass that recorded streams.

    Args:
        streams: Names of the streams.
        time: Time by activity; empty if it was interrupted after its last image.
        acceleration: The fast options of the pass, checked against the plain network.
    """

    streams: list[str]
    time: TimeRecord = TimeRecord()
    acceleration: AccelerationRecord = AccelerationRecord()


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Content of `cache.json`.

    Args:
        format: Version of the format.
        oodlit: Version of oodlit that created the cache.
        backbone: Name of the network.
        fingerprint: Fingerprint of weights and transform.
        dtype: "float32", "float16" or "bfloat16"; of features and logits.
        precision: Lightning's name of the precision.
        decoder: What decoded the images: "workers", with the name of a custom decoder, or the library of a device.
        head_problem: Why there is no linear head; empty if there is one.
        head_checksum: CRC-32 of the file of the head; empty if there is none, and in older caches.
        class_names: Names of the labels; empty if unknown.
        input_shape: Shape (channels, height, width) of the first transformed images; empty in older caches.
        rows: Folder of the parts.
        streams: The complete streams.
        loss: Largest rounding error of the dtype, by field.
        recordings: The passes that recorded the streams.
    """

    format: int = written(lambda: FORMAT)
    oodlit: str = ""
    backbone: str
    fingerprint: str
    dtype: str = ""
    precision: str = ""
    decoder: str = ""
    head_problem: str | None
    head_checksum: str = ""
    class_names: list[str]
    input_shape: list[int] = []
    rows: str
    streams: list[RecordedStream]
    loss: dict[str, float] = written(dict)
    recordings: list[Pass] = written(list)

    @property
    def how(self) -> dict[str, Any]:
        """Network and settings of the recording, by field."""
        fields = ("backbone", "fingerprint", "dtype", "precision", "decoder")
        return {name: value for name in fields if (value := getattr(self, name))}

    def stream(self, name: str) -> RecordedStream | None:
        """Return a stream by name; None if it is missing."""
        return next((entry for entry in self.streams if entry.name == name), None)
