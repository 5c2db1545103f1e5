"""Hashes of images, equal on every machine, in every process and version."""

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from oodlit.base.outputs import Outputs


def hash_rows(outputs: Outputs) -> Tensor:
    """Return a 63-bit hash per image, int64: of its key or, without keys, of its features or logits."""
    if outputs.keys is not None:
        return hash_strings(outputs.keys)
    return hash_contents(outputs.features if outputs.features is not None else outputs.require("logits"))


def hash_contents(rows: Float[Tensor, "batch columns"]) -> Tensor:
    """Return 63-bit hashes of the bits of every row, int64; equal on every device and in every process.

    Sum over columns of the bits times an odd 64-bit number of the column, modulo 2^64, then mixed: one pass over the
    rows instead of a call per row.

    Example:
        >>> same, other = torch.ones(2, 3), torch.tensor([[1.0, 1.0, 2.0]])
        >>> a, b, c = hash_contents(torch.cat([same, other])).tolist()
        >>> a == b, a == c
        (True, False)
    """
    bits = rows.detach().contiguous().view(torch.int64 if rows.dtype == torch.float64 else torch.int32)
    columns = torch.arange(1, bits.shape[1] + 1, device=bits.device)
    factors = _mixed(columns * 0x9E3779B97F4A7C1) | 1
    return (_mixed((bits * factors).sum(dim=1)) & 0x7FFFFFFFFFFFFFFF).cpu()


def _mixed(values: Tensor) -> Tensor:
    """Spread the bits of int64 values over all 64 (shifts and odd factors, modulo 2^64)."""
    for factor in (0x7F4A7C15F39CC061, 0x1CE4E5B9BF58476D):
        values = (values ^ (values >> 31)) * factor
    return values ^ (values >> 29)


def hash_strings(contents: Sequence[str | bytes]) -> Tensor:
    """Return 63-bit hashes, int64; equal in every process and version."""
    # File names that are not valid text contain lone surrogates.
    plain = (content.encode(errors="surrogatepass") if isinstance(content, str) else content for content in contents)
    digests = (hashlib.blake2b(content, digest_size=8).digest() for content in plain)
    return torch.tensor([int.from_bytes(d, "big") >> 1 for d in digests], dtype=torch.int64)
