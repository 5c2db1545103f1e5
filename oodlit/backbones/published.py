"""Under which name timm publishes a network."""

import math
from typing import Any

from torch import nn


def published_as(network: nn.Module, transform: object) -> dict[str, Any] | None:
    """Under which name, size and crop timm publishes what this network does with this transform; None if it does not.

    Returns:
        `model`, `img_size`, `crop_pct`; None for networks that are not timm's, and for transforms that are not those
        of an evaluation by timm: a resize, a centre crop, and a normalisation.
    """
    config = getattr(network, "pretrained_cfg", None) or {}
    steps = {type(step).__name__: step for step in getattr(transform, "transforms", [])}
    resize, crop = steps.get("Resize"), steps.get("CenterCrop")
    if not config.get("tag") or not config.get("architecture") or resize is None or crop is None:
        return None
    sizes = [size if isinstance(size, int) else min(size) for size in (resize.size, crop.size)]
    shares = [share for share in (config.get("crop_pct"), config.get("test_crop_pct"), 1.0) if share]
    # timm resizes to floor(size / crop_pct): several shares give one size, and the network's own is meant
    fitting = [share for share in shares if math.floor(sizes[1] / share) == sizes[0]]
    name = f"{config['architecture']}.{config['tag']}"
    return {"model": name, "img_size": sizes[1], "crop_pct": fitting[0]} if fitting else None
