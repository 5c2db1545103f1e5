"""Networks as people have them: wrapped, compiled, frozen, with other outputs, or not usable at all."""

import copy
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn

from oodlit import OODModule, Role
from oodlit.detectors import MSP, ODIN, Mahalanobis
from oodlit.errors import DataError, InvalidArgumentError, RequirementError
from oodlit.testing.backbones import TinyConvNet
from tests.callbacks.support import run, stream

IMAGES = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Flat(nn.Module):
    """One linear layer; `give` decides what comes out."""

    def __init__(self, give=lambda logits: logits) -> None:
        super().__init__()
        self.fc, self.give = nn.Linear(192, 4), give

    def forward(self, images):
        return self.give(self.fc(images.flatten(1)))


def plain() -> nn.Module:
    """Without the shape checks of the test networks, which speak before the network does."""
    return nn.Sequential(nn.Conv2d(3, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(200, 4))


class ByKeyword(Flat):
    """Calls its head by keyword."""

    def forward(self, images):
        return self.fc(input=images.flatten(1))


class Nested(nn.Module):
    """The head lies within others, and a layer that only training uses comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"body": nn.Flatten(), "top": nn.Sequential(nn.Dropout(0.1), nn.Linear(192, 4))})
        self.auxiliary = nn.Linear(192, 3)

    def forward(self, images):
        return self.model["top"](self.model["body"](images))


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda network: nn.DataParallel(nn.DataParallel(network))])
def test_wrapper_of_data_parallel_is_removed(wrap):
    """Without the wrapper, names, fingerprint and head are those of the network."""
    network = TinyConvNet(6)
    module, plain = OODModule(wrap(copy.deepcopy(network)), head="head"), OODModule(network)
    assert module.name == plain.name
    assert module.head_layers == plain.head_layers == ("head",)
    assert module.fingerprint == plain.fingerprint


def test_wrapper_of_distributed_data_parallel_is_removed():
    """Wrappers are removed without relying on attribute names."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        module = OODModule(nn.parallel.DistributedDataParallel(TinyConvNet(6)))
        assert isinstance(module.network, TinyConvNet)
        assert module.head_layers == ("head",)
    finally:
        torch.distributed.destroy_process_group()


@torch.no_grad()  # as in a run; Dynamo itself warns of gradients otherwise
def test_compiled_network_is_the_same_backbone():
    network = plain()
    module, eager = OODModule(torch.compile(network, backend="eager")), OODModule(network)
    assert module.name == eager.name
    assert module.fingerprint == eager.fingerprint
    for _ in range(3):
        images = torch.rand(2, 3, 8, 8)
        ours, theirs = module(images), eager(images)
        assert torch.equal(ours.features, theirs.features)
    assert not module.head_problem


def test_head_that_is_called_by_keyword():
    module = OODModule(ByKeyword())
    made = module(IMAGES)
    assert torch.equal(made.features, IMAGES.flatten(1))
    assert not module.head_problem


@pytest.mark.parametrize("head", [None, "model.top.1", "model.top"])
def test_head_within_nested_modules_before_an_unused_layer(head):
    module = OODModule(Nested(), head=head)
    assert module(IMAGES).features.shape == (2, 192)
    assert module.head_layers == ("model.top.1",)
    assert not module.head_problem


def test_layer_that_is_used_twice_is_taken_where_the_logits_come_from():
    class Twice(Flat):
        def forward(self, images):
            self.fc(images.flatten(1) * 0.5)
            return self.fc(images.flatten(1))

    module = OODModule(Twice())
    assert torch.equal(module(IMAGES).features, IMAGES.flatten(1))
    assert not module.head_problem


def test_one_layer_under_two_names():
    network = Flat()
    network.alias = network.fc
    module = OODModule(network, head="alias")
    module(IMAGES)
    assert not module.head_problem


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda y: {"logits": y, "loss": None}, "expected logits .*got dict with keys 'logits', 'loss'"),
        (lambda _: {}, r"expected logits .*got dict with keys \(none\)"),
        (lambda y: OrderedDict(logits=y), "expected logits .*got OrderedDict with"),
        (lambda y: (y, {"attention": y}), r"expected logits .*got tuple of 2 .*\(Tensor, dict\)"),
        (lambda y: y[:, 0], r"shape \(2,\)"),
        (lambda y: y.argmax(dim=1, keepdim=True), "expected logits.*torch.int64"),
        (lambda y: y.repeat(2, 1), "expected 2 rows of logits, one per image, got 4"),
        (lambda _: None, "expected logits .*got NoneType"),
    ],
)
def test_network_without_plain_logits_says_what_it_gives(give, message):
    with pytest.raises(InvalidArgumentError, match=message):
        OODModule(Flat(give))(IMAGES)


@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_nan_logits_are_noticed_by_the_probe():
    with pytest.raises(InvalidArgumentError, match="Flat returned NaN for the first images"):
        OODModule(Flat(lambda y: y * torch.nan)).probe(IMAGES)


@pytest.mark.parametrize(
    "images", [IMAGES.byte(), IMAGES.double(), IMAGES.permute(0, 2, 3, 1), IMAGES[:, :1], IMAGES[None]]
)
def test_images_that_the_network_cannot_take_are_named(images):
    with pytest.raises(InvalidArgumentError, match=r"failed on \d images? of shape .* and dtype .* transform must"):
        OODModule(plain()).probe(images)


def test_a_data_set_that_the_network_cannot_take_is_named():
    """Tensors are used without the transform, so each data set may have its own size."""
    streams = [stream("val", Role.ID), stream("far", Role.OOD, image=torch.rand(3, 9, 9))]
    message = (
        r"data set 'far', .*'far/0': tiny: .*failed on 4 images of shape \(3, 9, 9\) and dtype torch.float32:"
        r" mat1 and mat2 .* size that the network accepts"
    )
    with pytest.raises(DataError, match=message) as caught:
        run([MSP()], streams=streams, module=OODModule(plain(), name="tiny"))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_full_memory_is_not_explained_as_a_wrong_size():
    def full(_):
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        OODModule(Flat(full)).predict_step({"image": IMAGES, "key": ["val/0"]}, 0)


def test_meta_device_has_no_values():
    with torch.device("meta"):
        network = TinyConvNet(6)
    with pytest.raises(InvalidArgumentError, match="parameters are on the meta device, without values; load"):
        OODModule(network)


def test_parameters_of_inference_mode_can_be_differentiated():
    with torch.inference_mode():
        network = TinyConvNet(6)
    module = OODModule(network)
    images = IMAGES.clone().requires_grad_(True)
    module.logits(images).sum().backward()
    assert images.grad is not None
    assert module.fingerprint == OODModule(TinyConvNet(6)).fingerprint


def test_features_of_changed_images_carry_gradients():
    module = OODModule(TinyConvNet(6))
    images = IMAGES.clone().requires_grad_()
    features = module.features(images)
    torch.testing.assert_close(module.head(features), module.logits(IMAGES))
    features.sum().backward()
    assert images.grad.abs().sum() > 0


@pytest.mark.filterwarnings("ignore:.*the features do not determine")
def test_features_that_cannot_be_read_are_refused_with_the_reason():
    class NoLayers(torch.nn.Module):
        def forward(self, images):
            return 9 * images.flatten(1)[:, :4] - 5

    module = OODModule(torch.jit.trace(NoLayers(), IMAGES))
    with pytest.raises(
        RequirementError, match=r"the features of .* cannot be read: the network is compiled by torch.jit"
    ):
        module.features(IMAGES)


def test_channels_last_is_the_same_backbone():
    assert (
        OODModule(TinyConvNet(6).to(memory_format=torch.channels_last)).fingerprint
        == OODModule(TinyConvNet(6)).fingerprint
    )


def test_kept_features_do_not_keep_the_tokens_alive():
    """The class token is a view of all tokens of all images, and would keep them in memory."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, images):
            return self.fc(images.flatten(1).reshape(len(images), -1, 8)[:, 0])

    features = OODModule(Tokens())(IMAGES).features
    assert features.untyped_storage().nbytes() == features.nbytes


def test_labels_of_any_kind():
    module = OODModule(TinyConvNet(6))
    assert module.predict_step((IMAGES, [1, 2]), 0).labels.tolist() == [1, 2]
    with pytest.raises(InvalidArgumentError, match=r"expected labels to be integers.*\(2,\) and dtype torch.float32"):
        module.predict_step((IMAGES, torch.tensor([1.0, 2.0])), 0)


class Augmented(nn.Module):
    """Averages the logits of an image and its mirror image, which pass through the layers as one batch."""

    def __init__(self, *, is_averaged: bool) -> None:
        super().__init__()
        self.network, self.is_averaged = TinyConvNet(6), is_averaged

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = self.network(torch.cat([images, images.flip(-1)]))
        return logits.view(2, len(images), -1).mean(dim=0) if self.is_averaged else logits


def test_augmentation_inside_the_network_leaves_the_logits():
    module, images = OODModule(Augmented(is_averaged=True)), torch.rand(4, 3, 8, 8)
    facts = module.probe(images)
    assert (facts.num_classes, facts.width) == (6, 0)
    message = "expected one row per image as input of layer 'network.head', got 8 rows for 4 images"
    assert facts.head_problem.startswith(message)
    with torch.no_grad():
        made = module(images)
        torch.testing.assert_close(made.logits, module.network.eval()(images))
    assert made.features is None
    with pytest.warns(UserWarning, match="'mahalanobis' is skipped: it needs features"):
        results = run([MSP(), Mahalanobis()], module=module).results
    assert results.detectors == ("msp",)


def test_augmentation_that_is_not_averaged_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"^Augmented: expected 4 rows of logits, one per image, got 8$"):
        OODModule(Augmented(is_averaged=False)).probe(torch.rand(4, 3, 8, 8))


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_of_a_module_that_was_used_in_a_run_works(make_copy):
    module = OODModule(TinyConvNet(6))
    results = run([MSP(), ODIN()], module=module).results
    copied = make_copy(module)
    assert copied.fingerprint == module.fingerprint
    with torch.no_grad():
        copied.network.head.weight.zero_()
    assert run([MSP(), ODIN()], module=module).results.scores.equals(results.scores)
    assert run([MSP(), ODIN()], module=make_copy(module)).results.scores.equals(results.scores)


def test_a_module_is_not_a_network():
    """Its transform, head and output would be lost without a word."""
    module = OODModule(Flat(), transform=lambda image: image)
    for network in (module, copy.deepcopy(module)):
        with pytest.raises(InvalidArgumentError, match="expected a network, got an OODModule"):
            OODModule(network)
