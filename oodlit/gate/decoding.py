"""Decode image files as the run of a gate did."""

from typing import NoReturn

from oodlit.base.errors import FingerprintError, InvalidArgumentError
from oodlit.datamodules.decode import Decode, decode_image
from oodlit.datamodules.stream_identity import decoder_of
from oodlit.gate.gate_record import GateRecord


def decoder_for(record: GateRecord, decode: Decode | None) -> Decode:
    """Return the decoder of a gate.

    Args:
        record: Names the decoder of the run.
        decode: A decoder; None = the default one if the run had it, or else one that refuses every file.

    Raises:
        FingerprintError: The decoder is another one than that of the run.
    """

    def refuse(data: bytes) -> NoReturn:
        raise InvalidArgumentError(
            f"Gate: the run decoded files with {record.decoder}; pass this decoder as Gate.load(..., decode=...), or"
            " pass PIL images that it decoded"
        )

    if decode is None and record.decoder:
        return refuse
    decode = decode_image if decode is None else decode
    if (found := decoder_of(decode)) != record.decoder:
        names = (name or "decode_image" for name in (record.decoder, found))
        raise FingerprintError(
            "Gate: expected decode={}, as in the run, got {}; pass the decoder of the run, or evaluate again".format(
                *names
            )
        )
    return decode
