"""Boxes in pixels of their image: what cannot be is refused before it looks like a detector that misses everything."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from oodlit.errors import InvalidArgumentError
from oodlit.objects import ObjectModule
from oodlit.objects.adapters import FunctionReader, HuggingFaceReader, ImageBoxes
from oodlit.objects.files.box_bounds import are_outside, are_relative

IMAGES = [torch.zeros(3, 30, 40), torch.zeros(3, 20, 50)]
CORNERS = st.tuples(*[st.integers(-30, 90)] * 4)


@given(st.lists(CORNERS, max_size=5), st.integers(1, 60), st.integers(1, 60))
def test_outside_is_without_a_common_point(corners: list[tuple[int, ...]], width: int, height: int) -> None:
    boxes = [(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in corners]
    expected = [
        max(x0, -1) > min(x1, width + 1) or max(y0, -1) > min(y1, height + 1)  # a pixel is rounding
        for x0, y0, x1, y1 in boxes
    ]
    sizes = np.tile([width, height], (len(boxes), 1)).astype(np.int64).reshape(-1, 2)
    assert are_outside(np.array(boxes, dtype=float).reshape(-1, 4), sizes).tolist() == expected


def test_shares_of_an_image_are_seen_as_such() -> None:
    sizes, shares = np.array([[64, 48]] * 2), np.array([[0.1, 0.2, 0.9, 1.0], [0.0, -0.1, 1.1, 0.5]])
    assert are_relative(shares, sizes).all()
    assert not are_relative(shares * 2, sizes).any()
    assert not are_relative(shares, sizes // 8).any()  # pixels of a tiny image
    assert are_relative(shares[:0], sizes[:0]).shape == (0,)


def module(**changes: Callable[[torch.Tensor], torch.Tensor]) -> ObjectModule:
    """One box an image, the left half of it, with some fields changed."""
    layer = nn.Linear(3, 2)

    def read(images: list[torch.Tensor]) -> list[ImageBoxes]:
        found = []
        for image in images:
            features = torch.ones(1, 3)
            box = torch.tensor([[0.0, 0, image.shape[2] / 2, image.shape[1]]])
            fields = {"boxes": box, "confidence": torch.ones(1), "predictions": torch.ones(1).long()}
            fields |= {"logits": layer(features), "features": features}
            found.append(ImageBoxes(**{n: changes.get(n, lambda value: value)(v) for n, v in fields.items()}))
        return found

    return ObjectModule(FunctionReader(read, network=layer, class_layer=layer), name="mine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": lambda boxes: boxes / 50}, r"mine: expected .* got \[0\.0, 0\.0, 0\.4.*in an image of 40 x 30"),
        ({"boxes": lambda boxes: boxes + 100}, r"mine: expected .* in pixels of the image, got \[100\.0, "),
        ({"predictions": lambda labels: labels + 1}, r"predictions from 0 to 1 .*, got 2 to 2"),
        ({"predictions": lambda labels: labels - 2}, r"got -1 to -1"),
        ({"predictions": torch.Tensor.float}, r"predictions, got torch\.float32"),
        ({"confidence": lambda p: p * torch.nan}, r"in \[0, 1\], got nan to nan"),
        ({"confidence": lambda p: p * 88}, r"in \[0, 1\], got 88 to 88"),
    ],
)
def test_a_network_of_ones_own_that_misunderstands_is_told(change, message) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        module(**change).probe(IMAGES)


def test_the_example_is_a_box_outside_of_its_image() -> None:
    beyond = module(boxes=lambda boxes: boxes + 100 * (boxes[0, 3] == 20))  # in the second image and the third
    with pytest.raises(InvalidArgumentError, match=r"got \[100\.0, .* in an image of 50 x 20; rescale the boxes"):
        beyond.probe([*IMAGES, IMAGES[1]])


class _Network(nn.Module):
    """With the config of a network whose labels were sorted as text."""

    def __init__(self, labels: dict) -> None:
        super().__init__()
        self.config = SimpleNamespace(id2label=labels, num_labels=len(labels))


def test_names_are_in_the_order_of_the_logits() -> None:
    names = [f"class {n}" for n in range(12)]
    labels = {str(n): names[n] for n in sorted(range(12), key=str)}  # 0, 1, 10, 11, 2, ...
    reader = HuggingFaceReader(_Network(labels), dict)
    assert reader.class_names == tuple(names)
    assert ObjectModule(reader, class_names=reader.class_names).class_names == tuple(names)
    with pytest.raises(InvalidArgumentError, match="class 2 is 'class 10' in class_names and 'class 2' in the network"):
        ObjectModule(reader, class_names=list(labels.values()))
    other = [f"name {n}" for n in range(12)]
    assert ObjectModule(reader, class_names=other).class_names == tuple(other)  # the user's own names
    assert HuggingFaceReader(_Network({0: "cat", 2: "dog"}), dict).class_names == ()
    assert HuggingFaceReader(_Network({}), dict).class_names == ()


def test_a_network_of_ones_own_may_give_no_box() -> None:
    assert module().probe(IMAGES).num_classes == 2
    none = module(**{name: lambda v: v[:0] for name in ("boxes", "confidence", "predictions", "logits", "features")})
    assert none.probe(IMAGES).num_classes == 2
