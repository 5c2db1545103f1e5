"""Detections: boxes are rows, images without boxes count, identities survive every selection."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodlit import Outputs
from oodlit.errors import InvalidArgumentError
from oodlit.objects import Detections


def made(image: list[int], n_images: int = 3, *, dataset: str = "val", width: int = 4) -> Detections:
    n = len(image)
    corner = torch.arange(2 * n).reshape(n, 2).float()
    return Detections(
        torch.cat([corner, corner + 2], dim=1),
        torch.linspace(0.1, 0.9, n) if n else torch.zeros(0),
        torch.tensor(image, dtype=torch.int64),
        [f"{dataset}/{number}" for number in range(n_images)],
        sizes=torch.full((n_images, 2), 64),
        outputs=Outputs(torch.arange(n * width).reshape(n, width).float(), torch.ones(n, 2)),
    )


IMAGES = st.lists(st.integers(0, 2), max_size=10)


@given(IMAGES, st.floats(0, 1))
def test_a_cut_keeps_identities_and_images(image: list[int], cut: float) -> None:
    whole = made(image)
    kept = whole.above(cut)
    assert kept.keys == whole.keys
    assert set(kept.box_keys) == {k for k, c in zip(whole.box_keys, whole.confidence.double(), strict=True) if c >= cut}
    assert kept.counts.sum() == len(kept)
    assert kept.outputs is not None
    assert list(kept.outputs.keys or ()) == kept.box_keys
    assert whole.select(slice(None)).box_keys == whole.box_keys


@given(IMAGES, IMAGES)
def test_parts_are_joined_as_they_are(one: list[int], two: list[int]) -> None:
    parts = [made(one, dataset="val"), made(two, dataset="near")]
    joined = Detections.cat(parts)
    assert joined.keys == (*parts[0].keys, *parts[1].keys)
    assert joined.box_keys == [*parts[0].box_keys, *parts[1].box_keys]
    assert joined.counts.tolist() == [*parts[0].counts.tolist(), *parts[1].counts.tolist()]
    assert joined.outputs is not None
    assert parts[0].outputs is not None
    assert torch.equal(joined.outputs.require("logits")[: len(one)], parts[0].outputs.require("logits"))
    assert joined.sizes is not None
    assert joined.sizes.shape == (6, 2)


def test_boxes_are_numbered_within_their_image() -> None:
    found = made([2, 0, 2, 2, 0])
    assert found.box_keys == ["val/2#0", "val/0#0", "val/2#1", "val/2#2", "val/0#1"]
    assert found.counts.tolist() == [2, 0, 3]
    assert found.select(torch.tensor([3, 0])).box_keys == ["val/2#2", "val/2#0"]
    assert found.classes.tolist() == [3] * 5
    assert repr(found).startswith("Detections(5 boxes, 3 images, outputs=Outputs(logits=(5, 4)")


def test_half_precision_is_upcast_and_classes_may_be_unknown() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    found = Detections(torch.zeros(0, 4, dtype=torch.float16), torch.zeros(0, dtype=torch.bfloat16), none, ["a/b"])
    assert found.boxes.dtype == found.confidence.dtype == torch.float32
    one = Detections(torch.ones(1, 4), torch.ones(1), torch.zeros(1, dtype=torch.int64), ["a/b"])
    assert one.classes.tolist() == [-1]
    assert one.to("cpu").box_keys == ["a/b#0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": torch.zeros(2, 5)}, r"\(boxes, 4\), got shape \(2, 5\) and dtype torch.float32"),
        ({"boxes": torch.zeros(2, 4, dtype=torch.int64)}, "floating-point tensor .* dtype torch.int64"),
        (
            {"boxes": torch.tensor([[0.0, 0, 1, 1], [5, 5, 4, 6]])},
            r"1 box has xmax < xmin or ymax < ymin \(first: val/1#0",
        ),
        ({"boxes": torch.full((2, 4), torch.nan)}, "8 values of boxes are NaN or infinite"),
        ({"confidence": torch.zeros(3)}, r"confidence .* got shape \(3,\)"),
        ({"confidence": torch.tensor([20.0, 90.0])}, r"confidence to be in \[0, 1\], got 20 to 90"),
        ({"confidence": torch.tensor([-0.5, 0.5])}, r"confidence to be in \[0, 1\], got -0\.5 to 0\.5"),
        ({"image": torch.tensor([0, 7])}, r"positions in keys \(0 to 2\), got 0 to 7"),
        ({"image": torch.tensor([0.0, 1.0])}, "image to be an integer tensor"),
        ({"keys": ["val/0", "val/0", "val/1"]}, "these image keys occur more than once: val/0"),
        ({"keys": ["0", "1", "2"]}, "`dataset/image`, got '0'"),
        ({"sizes": torch.zeros(2, 2, dtype=torch.int64)}, r"sizes .* got shape \(2, 2\)"),
        ({"index": torch.tensor([0, -1])}, "index to be >= 0"),
        ({"image": torch.tensor([1, 1]), "index": torch.tensor([4, 4])}, "box val/1#4 occurs twice"),
        ({"outputs": Outputs(torch.zeros(3, 2))}, "outputs for each of 2 boxes, got 3"),
        ({"outputs": Outputs(torch.zeros(2, 2), keys=["a", "b"])}, "expected outputs.keys to equal"),
        ({"predictions": torch.zeros(1, dtype=torch.int64)}, r"predictions .* got shape \(1,\)"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], message: str) -> None:
    whole = replace(made([0, 1]), outputs=None, predictions=None, index=None)
    with pytest.raises(InvalidArgumentError, match=message):
        replace(whole, **change)


def test_parts_that_do_not_fit_are_refused() -> None:
    one, two = made([0]), made([1], dataset="near")
    with pytest.raises(InvalidArgumentError, match="at least one part"):
        Detections.cat([])
    with pytest.raises(InvalidArgumentError, match="these image keys occur more than once: val/0"):
        Detections.cat([one, one])
    with pytest.raises(InvalidArgumentError, match="1 of 2 parts has outputs"):
        Detections.cat([one, replace(two, outputs=None)])
    with pytest.raises(InvalidArgumentError, match="expected logits in all parts or in none, with equal shapes"):
        Detections.cat([one, made([1], dataset="near", width=5)])
    assert one.outputs is not None
    named = replace(one, outputs=replace(one.outputs, backbone="weights=ab12"))
    with pytest.raises(InvalidArgumentError, match=r"outputs of 2 networks \(fingerprints: unknown, weights=ab12\)"):
        Detections.cat([named, two])
