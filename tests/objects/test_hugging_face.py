"""Hugging Face's detectors with queries, small and with random weights."""

import pytest
import torch

from oodlit.errors import InvalidArgumentError
from oodlit.objects.adapters import reader_of
from tests.objects.networks import CLASSES, HUGGING_FACE, hugging_face

pytest.importorskip("transformers")
IMAGES = [torch.rand(3, h, w, generator=torch.Generator().manual_seed(h)) for h, w in ((60, 80), (90, 50))]


@pytest.fixture(params=HUGGING_FACE, scope="module")
def reader(request):
    return hugging_face(request.param)


@torch.no_grad()
def read(reader, images=IMAGES, layers=(), **options):
    return reader.read(images, dict.fromkeys(layers, 3), **options)


def test_head_of_features_is_logits_without_no_object(reader) -> None:
    found = read(reader)
    assert reader.head_problem == ""
    assert reader.head().num_classes == CLASSES
    for boxes in found:
        assert boxes.logits.shape[1] == CLASSES
        torch.testing.assert_close(reader.head()(boxes.features), boxes.logits, atol=1e-5, rtol=1e-5)


def test_boxes_are_those_of_the_models_own_post_processing(reader) -> None:
    image = IMAGES[0]
    (found,) = read(reader, [image])
    pixels = (image * 255).round().to(torch.uint8)
    with torch.no_grad():
        outputs = reader.network(**reader.processor(images=[pixels], return_tensors="pt"))
    (own,) = reader.processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=[(60, 80)])
    # a model may list a query once for each of its classes; ours has the surest of them
    for box, confidence, label in zip(found.boxes, found.confidence, found.predictions, strict=True):
        same = (own["boxes"] - box).abs().amax(dim=1) < 1e-3
        same &= ((own["scores"] - confidence).abs() < 1e-6) & (own["labels"] == label)
        assert bool(same.any()) or float(confidence) <= float(own["scores"].min()) + 1e-6
    assert bool((found.confidence[:-1] >= found.confidence[1:]).all())


def test_a_box_does_not_depend_on_the_other_images(reader) -> None:
    together, alone = read(reader), [read(reader, [image])[0] for image in IMAGES]
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.logits, other.logits)
        assert torch.equal(one.boxes, other.boxes)


def test_low_confidence_is_left_out(reader) -> None:
    (every,) = read(reader, IMAGES[:1])
    cut = float(every.confidence.median())
    (some,) = read(reader, IMAGES[:1], min_confidence=cut)
    assert torch.equal(some.logits, every.logits[every.confidence >= cut])
    assert len(read(reader, IMAGES[:1], min_confidence=1.0)[0]) == 0


def test_a_hidden_layer_within_each_box() -> None:
    (found,) = read(hugging_face("rt_detr"), IMAGES[:1], layers=["feature_map"])
    assert found.hidden["feature_map"].shape == (len(found), 8, 3, 3)
    with pytest.raises(InvalidArgumentError, match="expected a feature map"):
        read(hugging_face("yolos"), IMAGES[:1], layers=["vit.layernorm"])


def test_a_processor_is_needed() -> None:
    network = hugging_face("yolos").network
    with pytest.raises(InvalidArgumentError, match=r"HuggingFaceReader\(network, processor\)"):
        reader_of(network)
