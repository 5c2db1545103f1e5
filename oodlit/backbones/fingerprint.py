"""What a fit belongs to: a hash of weights and transform."""

import hashlib

import torch
from torch import nn

__all__ = ["describe", "fingerprint"]


def fingerprint(network: nn.Module, transform: object) -> str:
    """Hash of all weights, buffers and the transform: fitted detectors belong to exactly this backbone."""
    digest = hashlib.blake2b(digest_size=16)
    # The name that `torch.compile` puts around a network says nothing about its weights.
    state = {name.replace("_orig_mod.", ""): value for name, value in network.state_dict().items()}
    for name, value in sorted(state.items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
        data = value.detach().cpu().contiguous().flatten()
        digest.update(data.view(torch.uint8).numpy() if data.numel() else b"")
    digest.update(describe(transform).encode())
    return digest.hexdigest()


def describe(transform: object) -> str:
    """A transform as text that stays the same from run to run."""
    # The address in the default repr of objects and functions changes from run to run; the name does not.
    text = repr(transform)
    if " at 0x" in text:
        return f"{getattr(transform, '__module__', '')}.{getattr(transform, '__qualname__', type(transform).__name__)}"
    return text
