"""Boxes that an object detector predicts for some images: a box is a row of `Outputs`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.outputs import Outputs
from oodlit.base.text.singular import singular

CORNERS = ["xmin", "ymin", "xmax", "ymax"]
"""Columns of the corners of a box in tables."""
_PER_BOX = ("boxes", "confidence", "image", "predictions", "index")
"""Tensors with a row per box."""


@dataclass(frozen=True, eq=False)
class Detections:
    """Predicted boxes of some images; row i of every field except `keys` and `sizes` belongs to the same box.

    `keys` lists every image, including those without boxes. A box has an identity, `dataset/image#index`, that does not
    depend on the selection of rows; the keys of `outputs` are these identities.

    Args:
        boxes: xmin, ymin, xmax, ymax in pixels of the original image, floating point, shape (boxes, 4).
        confidence: Confidence of the object detector, in [0, 1], shape (boxes,).
        image: Position in `keys` of the image of every box, shape (boxes,).
        keys: `dataset/image` of all images, including those without boxes.
        sizes: Width and height of all images in pixels, shape (images, 2); None = unknown.
        predictions: Index of the predicted ID class of every box, shape (boxes,). None = argmax of the logits, or -1
            for all boxes without logits.
        outputs: Logits over the ID classes (no background), features and the like, one row per box; None = unknown.
        index: Number of the box within its image, shape (boxes,). None = in the order of the rows.

    Raises:
        InvalidArgumentError: A shape or type is wrong, a key or a box occurs twice, a coordinate is not finite, a
            confidence is outside [0, 1], or a box ends before it begins.

    Example:
        >>> found = Detections(torch.tensor([[0.0, 0, 4, 4], [1, 1, 3, 9]]), torch.tensor([0.9, 0.2]),
        ...     torch.tensor([1, 1]), keys=["val/a", "val/b"], predictions=torch.tensor([3, 0]))
        >>> found.box_keys, found.counts.tolist(), found.above(0.5).box_keys
        (['val/b#0', 'val/b#1'], [0, 2], ['val/b#0'])
    """

    boxes: Tensor
    confidence: Tensor
    image: Tensor
    keys: Sequence[str]
    sizes: Tensor | None = None
    predictions: Tensor | None = None
    outputs: Outputs | None = None
    index: Tensor | None = None

    def __post_init__(self) -> None:
        """Check shapes, types and values; fill in derived fields."""
        _convert(self, "boxes", (-1, 4), floating=True)
        n = len(self.boxes)
        _convert(self, "confidence", (n,), floating=True)
        if n and not 0 <= float(self.confidence.min()) <= float(self.confidence.max()) <= 1:
            raise InvalidArgumentError(
                "Detections: expected confidence to be in [0, 1], got"
                f" {float(self.confidence.min()):g} to {float(self.confidence.max()):g}"
            )
        _convert(self, "image", (n,))
        object.__setattr__(self, "keys", tuple(self.keys))
        _check_image_keys(self.keys)
        if n and not 0 <= int(self.image.min()) <= int(self.image.max()) < len(self.keys):
            raise InvalidArgumentError(
                f"Detections: expected image=... to contain positions in keys (0 to {len(self.keys) - 1}), got"
                f" {int(self.image.min())} to {int(self.image.max())}"
            )
        if self.sizes is not None:
            sizes = torch.as_tensor(self.sizes)
            if sizes.shape != (len(self.keys), 2) or sizes.dtype.is_floating_point:
                raise InvalidArgumentError(
                    f"Detections: expected sizes to be integers of shape ({len(self.keys)}, 2), width and height of"
                    f" every image, got shape {tuple(sizes.shape)} and dtype {sizes.dtype}"
                )
            object.__setattr__(self, "sizes", sizes.long())
        self._fill_index(n)
        self._fill_rows(n)
        ends = (self.boxes[:, 2:] < self.boxes[:, :2]).any(dim=1)
        if bool(ends.any()):
            first = int(ends.nonzero()[0])
            raise InvalidArgumentError(
                f"Detections: {int(ends.sum())} boxes have xmax < xmin or ymax < ymin (first: {self.box_keys[first]},"
                f" {self.boxes[first].tolist()}); expected (xmin, ymin, xmax, ymax), not (x, y, width, height)"
            )

    def _fill_index(self, n: int) -> None:
        if self.index is None:
            object.__setattr__(self, "index", position_within(self.image))
            return
        _convert(self, "index", (n,))
        if n and int(self.index.min()) < 0:
            raise InvalidArgumentError("Detections: expected index to be >= 0, got negative numbers")
        order = torch.argsort(self.index, stable=True)
        order = order[torch.argsort(self.image[order], stable=True)]
        image, index = self.image[order], self.index[order]
        twice = ((image[1:] == image[:-1]) & (index[1:] == index[:-1])).nonzero().flatten()
        if len(twice):
            first = int(order[twice[0]])
            raise InvalidArgumentError(
                f"Detections: box {self.keys[int(self.image[first])]}#{int(self.index[first])} occurs twice"
            )

    def _fill_rows(self, n: int) -> None:
        if self.outputs is not None:
            if len(self.outputs) != n:
                raise InvalidArgumentError(
                    f"Detections: expected one row of outputs for each of {n} boxes, got {len(self.outputs)} rows"
                )
            if self.outputs.keys is not None and list(self.outputs.keys) != self.box_keys:
                raise InvalidArgumentError(
                    "Detections: expected outputs.keys to equal the keys of the boxes (`dataset/image#index`); omit"
                    " outputs.keys to have them filled in"
                )
            if self.outputs.keys is None:
                object.__setattr__(self, "outputs", replace(self.outputs, keys=self.box_keys))
        if self.predictions is not None:
            _convert(self, "predictions", (n,))
        elif self.outputs is not None and self.outputs.logits is not None and self.outputs.logits.shape[1]:
            object.__setattr__(self, "predictions", self.outputs.predictions.to(self.boxes.device))
        else:
            object.__setattr__(self, "predictions", torch.full((n,), -1, device=self.boxes.device))

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self.boxes)

    @property
    def num_images(self) -> int:
        """Number of images, including those without boxes."""
        return len(self.keys)

    @cached_property
    def box_keys(self) -> list[str]:
        """`dataset/image#index` of every box."""
        return [f"{self.keys[i]}#{k}" for i, k in zip(self.image.tolist(), self.numbers.tolist(), strict=True)]

    @property
    def numbers(self) -> Int[Tensor, " boxes"]:
        """Number of every box within its image."""
        assert self.index is not None  # set in __post_init__
        return self.index

    @property
    def classes(self) -> Int[Tensor, " boxes"]:
        """Predicted ID class of every box; -1 = unknown."""
        assert self.predictions is not None  # set in __post_init__
        return self.predictions

    @property
    def counts(self) -> Int[Tensor, " images"]:
        """Number of boxes of every image."""
        return torch.bincount(self.image, minlength=len(self.keys))

    def select(self, rows: Tensor | slice) -> "Detections":
        """Select boxes by a slice, an index or a mask; all images and the identities of the boxes stay."""
        outputs = None if self.outputs is None else self.outputs.select(rows)
        return replace(self, outputs=outputs, **{name: getattr(self, name)[rows] for name in _PER_BOX})

    def above(self, confidence: float) -> "Detections":
        """Select boxes with a confidence of at least `confidence` (t*)."""
        # In float64: a float32 confidence equal to the threshold must not fall below it.
        return self.select(self.confidence.double() >= confidence)

    def to(self, device: torch.device | str) -> "Detections":
        """Copy the boxes to another device."""
        known = {name: value for name in (*_PER_BOX, "sizes", "outputs") if (value := getattr(self, name)) is not None}
        return replace(self, **{name: value.to(device) for name, value in known.items()})

    @staticmethod
    def cat(parts: Sequence["Detections"]) -> "Detections":
        """Join parts with different images, such as the batches of a data set.

        Raises:
            InvalidArgumentError: There is no part, an image is in two of them, or their fields differ.

        Example:
            >>> none = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64), ["val/a"])
            >>> one = Detections(torch.ones(1, 4), torch.ones(1), torch.zeros(1, dtype=torch.int64), ["val/b"])
            >>> both = Detections.cat([none, one])
            >>> both.keys, both.box_keys
            (('val/a', 'val/b'), ['val/b#0'])
        """
        if not parts:
            raise InvalidArgumentError("Detections.cat: expected at least one part, got none")
        offset, image = 0, []
        for part in parts:
            image.append(part.image + offset)
            offset += part.num_images
        sizes = [part.sizes for part in parts if part.sizes is not None]
        outputs = [part.outputs for part in parts if part.outputs is not None]
        for name, known in (("sizes", sizes), ("outputs", outputs)):
            if 0 < len(known) < len(parts):
                raise InvalidArgumentError(
                    f"Detections.cat: {len(known)} of {len(parts)} parts have {name}; expected {name} in all or none"
                )
        return Detections(
            torch.cat([part.boxes for part in parts]),
            torch.cat([part.confidence for part in parts]),
            torch.cat(image),
            [key for part in parts for key in part.keys],
            sizes=torch.cat(sizes) if sizes else None,
            predictions=torch.cat([part.classes for part in parts]),
            outputs=_cat_outputs(outputs) if outputs else None,
            index=torch.cat([part.numbers for part in parts]),
        )

    def __repr__(self) -> str:
        """Counts, never values."""
        return singular(f"Detections({len(self)} boxes, {self.num_images} images, outputs={self.outputs!r})")


def _cat_outputs(parts: Sequence[Outputs]) -> Outputs:
    """Join the rows of several outputs, without images and access to the network."""
    tensors: dict[str, Any] = {}
    for name in ("logits", "features", "labels", "groups"):
        known = [value for part in parts if (value := getattr(part, name)) is not None]
        if 0 < len(known) < len(parts) or len({value.shape[1:] for value in known}) > 1:
            shapes = [None if (v := getattr(part, name)) is None else tuple(v.shape) for part in parts]
            raise InvalidArgumentError(
                f"Detections.cat: expected {name} in all parts or in none, with equal shapes except for the first"
                f" dimension; got shapes {', '.join(map(str, shapes[:6]))}"
            )
        tensors[name] = torch.cat(known) if known else None
    maps = [part.hidden for part in parts if part.hidden is not None]
    hidden = None
    if len(maps) == len(parts):
        hidden = {name: torch.cat([one[name] for one in maps]) for name in maps[0]}
    keys = [key for part in parts for key in part.keys or ()]
    backbones = {part.backbone for part in parts}
    if len(backbones) > 1:
        raise InvalidArgumentError(
            f"Detections.cat: expected parts of one network, got outputs of {len(backbones)} networks (fingerprints:"
            f" {', '.join(sorted(backbone or 'unknown' for backbone in backbones))})"
        )
    return Outputs(**tensors, keys=keys, hidden=hidden, backbone=backbones.pop())


def position_within(image: Int[Tensor, " boxes"]) -> Int[Tensor, " boxes"]:
    """Number of earlier rows of the same image, for each row."""
    order = image.argsort(stable=True)
    counts = torch.bincount(image)
    starts = (counts.cumsum(0) - counts)[image[order]]
    position = torch.empty_like(image)
    position[order] = torch.arange(len(image), device=image.device) - starts
    return position


def _convert(self: Detections, name: str, shape: tuple[int, ...], *, floating: bool = False) -> None:
    """Check type, shape (-1 = any length) and NaN of a field; convert it to int64, or to float32 or wider."""
    value: Any = getattr(self, name)
    fits = isinstance(value, Tensor) and value.dtype.is_floating_point == floating and value.ndim == len(shape)
    if not fits or any(n not in (-1, m) for n, m in zip(shape, value.shape, strict=True)):
        found = (
            f"shape {tuple(value.shape)} and dtype {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        )
        wanted, kind = str(shape).replace("-1", "boxes"), "a floating-point" if floating else "an integer"
        raise InvalidArgumentError(f"Detections: expected {name} to be {kind} tensor of shape {wanted}, got {found}")
    if floating:
        value = value.detach() if value.dtype.itemsize >= 4 else value.detach().float()
        if wrong := int((~value.isfinite()).sum()):
            raise InvalidArgumentError(f"Detections: {wrong} values of {name} are NaN or infinite")
    object.__setattr__(self, name, value if floating else value.long())


def _check_image_keys(keys: Sequence[str]) -> None:
    if wrong := [key for key in keys if "/" not in key]:
        raise InvalidArgumentError(f"Detections: expected keys of the form `dataset/image`, got {wrong[0]!r}")
    if len(set(keys)) < len(keys):
        twice = sorted(key for key, count in Counter(keys).items() if count > 1)
        raise InvalidArgumentError(f"Detections: these image keys occur more than once: {', '.join(twice[:5])}")
