"""Readers of torchvision's detectors and of functions: a kept box has the logits and features it was made from."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.models.detection.transform import resize_boxes
from torchvision.ops import clip_boxes_to_image

from oodlit.errors import InvalidArgumentError, RequirementError, UnknownNameError
from oodlit.objects.adapters import DenseReader, FunctionReader, ImageBoxes, reader_of
from oodlit.objects.adapters.calls import calls_of, inside_boxes
from tests.objects.networks import CLASSES, TORCHVISION, backbone, faster_rcnn, retinanet, ssd

IMAGES = [torch.rand(3, h, w, generator=torch.Generator().manual_seed(h)) for h, w in ((60, 80), (90, 50))]


@pytest.fixture(params=list(TORCHVISION), scope="module")
def reader(request):
    return TORCHVISION[request.param]()


@torch.no_grad()
def read(reader, images=IMAGES, layers=(), **options):
    return reader.read(images, dict.fromkeys(layers, 3), **options)


def test_boxes_are_the_networks_own(reader) -> None:
    for image, found in zip(IMAGES, read(reader), strict=True):
        with torch.no_grad():
            (own,) = reader.network([image])
        first = int(getattr(reader, "background", True))
        assert len(found) > 3
        assert torch.equal(found.boxes, own["boxes"])
        assert torch.equal(found.confidence, own["scores"])
        assert torch.equal(found.predictions + first, own["labels"])
        assert found.logits.shape == (len(found), CLASSES)


def test_a_box_does_not_depend_on_the_other_images(reader) -> None:
    together, alone = read(reader), [read(reader, [image])[0] for image in IMAGES]
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.boxes, other.boxes)
        assert torch.equal(one.logits, other.logits)


def test_low_confidence_is_left_out(reader) -> None:
    (every,) = read(reader, IMAGES[:1])
    cut = float(every.confidence.median())
    (some,) = read(reader, IMAGES[:1], min_confidence=cut)
    assert 0 < len(some) < len(every)
    assert torch.equal(some.logits, every.logits[every.confidence >= cut])
    (none,) = read(reader, IMAGES[:1], layers=["feature_map"], min_confidence=1.0)
    assert len(none) == 0
    assert none.logits.shape == (0, CLASSES)
    assert none.hidden["feature_map"].shape[0] == 0


def test_an_image_without_candidates_has_no_boxes(reader, monkeypatch) -> None:
    network = reader.network
    heads = [network.rpn, network.roi_heads] if hasattr(network, "rpn") else [network]
    for head in heads:  # no proposals, then proposals of which no class is certain enough
        with monkeypatch.context() as patched:
            patched.setattr(head, "score_thresh", 1.0)
            (none, _) = read(reader, layers=["feature_map"])
        assert len(none) == 0
        assert none.boxes.shape == (0, 4)
        assert none.logits.shape == (0, CLASSES)
        assert none.features is None or none.features.shape[0] == 0
        assert none.hidden["feature_map"].shape[0] == 0
    assert len(read(reader)[0]) > 3


def test_a_hidden_layer_within_each_box(reader) -> None:
    (found,) = read(reader, IMAGES[:1], layers=["feature_map", "backbone"])
    assert found.hidden["feature_map"].shape[0] == len(found) > 0
    assert found.hidden["backbone"].shape[2:] == (3, 3)
    assert torch.equal(found.hidden["feature_map"], found.hidden["backbone"])
    with pytest.raises(UnknownNameError, match=r"did you mean 'backbone'"):
        read(reader, IMAGES[:1], layers=["backbones"])


def test_logits_are_those_of_the_proposal_that_gave_box_and_confidence() -> None:
    reader = faster_rcnn()
    network = reader.network
    taps = {"heads": network.roi_heads, "predictor": network.roi_heads.box_predictor}
    (found,) = read(reader, IMAGES[:1])
    with torch.no_grad(), calls_of(taps) as calls:
        network(IMAGES[:1])
    logits, deltas = calls["predictor"][0].output
    proposals, (size,) = calls["heads"][0].inputs[1:3]
    boxes = clip_boxes_to_image(network.roi_heads.box_coder.decode(deltas, proposals), size)
    for i in range(len(found)):
        (row,) = (logits[:, 1:] == found.logits[i]).all(dim=1).nonzero().flatten().tolist()
        label = int(found.predictions[i]) + 1
        assert float(logits[row].softmax(0)[label]) == pytest.approx(float(found.confidence[i]))
        resized = resize_boxes(boxes[row, label][None], list(size), list(IMAGES[0].shape[-2:]))
        torch.testing.assert_close(resized[0], found.boxes[i])


def test_logits_of_a_sigmoid_give_the_confidence() -> None:
    (found,) = read(retinanet(), IMAGES[:1])
    own = found.logits.sigmoid().gather(1, found.predictions[:, None])[:, 0]
    torch.testing.assert_close(own, found.confidence)
    (found,) = read(ssd(), IMAGES[:1])  # the largest class is the largest logit: the background takes from all alike
    best = found.logits.argmax(dim=1) == found.predictions
    assert bool(best.any())
    assert bool((found.confidence[best].min() > 0).all())


def test_head_of_features_is_logits() -> None:
    reader = faster_rcnn()
    (found, _) = read(reader)
    assert reader.head_problem == ""
    assert reader.head().num_classes == CLASSES
    torch.testing.assert_close(reader.head()(found.features), found.logits, atol=1e-6, rtol=1e-5)


def test_a_class_layer_that_is_not_linear_is_no_head() -> None:
    reader = faster_rcnn()
    predictor = reader.network.roi_heads.box_predictor
    predictor.cls_score = nn.Sequential(nn.Linear(64, CLASSES + 1), nn.Tanh())
    reader = reader_of(reader.network)
    (found,) = read(reader, IMAGES[:1])
    assert "not a linear function" in reader.head_problem
    assert found.features is not None
    with pytest.raises(RequirementError, match="no class layer"):
        reader.head()


def test_one_stage_detectors_say_why_they_have_no_head() -> None:
    reader = retinanet()
    assert "over several positions" in reader.head_problem
    with pytest.raises(RequirementError, match="no class layer: one-stage"):
        reader.head()


def test_a_network_that_chooses_its_boxes_otherwise_is_refused() -> None:
    reader = faster_rcnn()
    heads = reader.network.roi_heads
    original = heads.postprocess_detections
    heads.postprocess_detections = lambda *args: [[part.flip(0) for part in column] for column in original(*args)]
    with pytest.raises(RequirementError, match="cannot be traced"):
        read(reader)


def test_the_background_of_a_one_stage_detector_is_never_a_class() -> None:
    network = retinanet().network
    with torch.no_grad():  # its labels begin at 0, and it predicts them
        network.head.classification_head.cls_logits.bias[::CLASSES] += 5
    with pytest.raises(InvalidArgumentError, match="background=False"):
        read(DenseReader(network))
    with pytest.raises(InvalidArgumentError, match="an SSD requires background=True"):
        DenseReader(ssd().network, background=False)


def test_networks_of_no_known_kind_are_told_the_way() -> None:
    with pytest.raises(InvalidArgumentError, match="FunctionReader"):
        reader_of(backbone())
    assert reader_of(TORCHVISION["fcos"]().network).head_problem


def test_a_function_must_give_boxes_for_each_image() -> None:
    with pytest.raises(InvalidArgumentError, match="missing network"):
        FunctionReader(lambda images: [])
    with pytest.raises(InvalidArgumentError, match=r"per image \(2\), but the function returned 0 objects$"):
        FunctionReader(lambda images: [], network=backbone()).read(IMAGES, {})
    boxes = ImageBoxes(torch.zeros(1, 4), torch.ones(1), torch.zeros(1).long(), torch.zeros(1, 2))
    reader = FunctionReader(lambda images: [boxes], network=backbone())
    assert reader.head_problem == "no class layer was given"
    with pytest.raises(RequirementError, match="reads layer 'conv', but the function does not return it"):
        reader.read(IMAGES[:1], {"conv": 9})


def test_fields_of_different_lengths_are_refused() -> None:
    boxes = torch.zeros(1, 4), torch.ones(1), torch.zeros(1).long()
    with pytest.raises(InvalidArgumentError, match=r"logits of shape \(1, classes\), .* got shape \(2, 2\)"):
        ImageBoxes(*boxes, torch.zeros(2, 2))
    with pytest.raises(InvalidArgumentError, match=r"hidden\['conv'\] of shape \(1, \.\.\.\), .* got shape \(2, 5\)"):
        ImageBoxes(*boxes, torch.zeros(1, 2), hidden={"conv": torch.zeros(2, 5)})
    with pytest.raises(InvalidArgumentError, match=r"confidence of shape \(1,\), .* got shape \(1, 1\)"):
        ImageBoxes(torch.zeros(1, 4), torch.ones(1, 1), torch.zeros(1).long(), torch.zeros(1, 2))
    with pytest.raises(InvalidArgumentError, match=r"\(boxes, 4\)"):
        ImageBoxes(torch.zeros(4), torch.ones(1), torch.zeros(1).long(), torch.zeros(2, 2))


@given(x=st.floats(4, 20), y=st.floats(4, 20), width=st.floats(4, 10), height=st.floats(4, 10), cells=st.integers(1, 9))
def test_the_mean_within_a_box_of_a_ramp_is_its_middle(x, y, width, height, cells) -> None:
    ys, xs = torch.meshgrid(torch.arange(20.0), torch.arange(24.0), indexing="ij")
    map_of = torch.stack([xs, ys])[None]  # half the size of the input
    inside = inside_boxes(map_of, torch.tensor([[x, y, x + width, y + height]]), (40, 48), layer="ramp", cells=cells)
    middle = torch.tensor([(x + width / 2) / 2 - 0.5, (y + height / 2) / 2 - 0.5])  # a pixel's value is at its centre
    torch.testing.assert_close(inside.mean(dim=(2, 3))[0], middle, atol=1e-3, rtol=1e-4)


def test_of_a_pyramid_the_finest_map_is_taken_and_vectors_are_refused() -> None:
    maps = {"1": torch.zeros(1, 2, 4, 4), "0": torch.ones(1, 2, 8, 8)}
    assert bool((inside_boxes(maps, torch.tensor([[0.0, 0, 9, 9]]), (16, 16), layer="fpn", cells=2) == 1).all())
    with pytest.raises(InvalidArgumentError, match=r"'fc': expected a feature map .* got \(1, 7\)"):
        inside_boxes(torch.zeros(1, 7), torch.zeros(1, 4), (16, 16), layer="fc", cells=2)


@given(
    name=st.sampled_from(list(TORCHVISION)),
    seed=st.integers(0, 99),
    threshold=st.sampled_from([0.0, 0.05, 0.3, 0.45]),
    overlap=st.sampled_from([0.1, 0.5, 0.9]),
    limit=st.integers(1, 40),
    size=st.tuples(st.integers(20, 90), st.integers(20, 90)),
)
@settings(max_examples=30)
def test_boxes_are_traced_whatever_the_network_chooses(name, seed, threshold, overlap, limit, size) -> None:
    reader = NETWORKS[name]
    chooser = getattr(reader.network, "roi_heads", reader.network)
    chooser.score_thresh, chooser.nms_thresh, chooser.detections_per_img = threshold, overlap, limit
    (found,) = read(reader, [torch.rand(3, *size, generator=torch.Generator().manual_seed(seed))])
    assert len(found) <= limit
    assert bool((found.confidence > threshold).all())
    largest = found.logits.sigmoid().amax(dim=1) if name in ("retinanet", "fcos") else found.confidence
    # FCOS takes the root of the product with the centredness: it may be above the score of the class, its square not.
    bound = found.confidence.square() if name == "fcos" else found.confidence
    assert bool((largest >= bound - 1e-6).all())


NETWORKS = {name: make() for name, make in TORCHVISION.items()}
