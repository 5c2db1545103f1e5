"""Problems for tests: training, in-distribution and out-of-distribution outputs of a tiny network."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from oodlit.base.errors import MissingExtraError
from oodlit.base.outputs import Head, Outputs
from oodlit.detectors import BackboneFacts
from oodlit.testing.backbones import TinyConvNet, arithmetic

NUM_CLASSES = 6
_PER_CLASS = 25
_PER_CLASS_ID = 5
_NUM_OOD = 30
_TENSORS = ("logits", "features", "labels", "groups", "images")


class TinyModel:
    """The interface of `Outputs.model` for a `TinyConvNet`.

    Args:
        network: The bare network in eval mode.

    Attributes:
        std: Standard deviation of the transform's normalization, shape (channels,).
    """

    def __init__(self, network: TinyConvNet) -> None:
        self.network = network
        self.std = torch.tensor([0.5, 0.5, 0.25])

    @property
    def linear(self) -> nn.Linear:
        """The linear head of the network."""
        linear = self.network.get_submodule(self.network.head_name)
        assert isinstance(linear, nn.Linear)
        return linear

    def logits(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch classes"]:
        """Logits of transformed images."""
        logits: Tensor = self.network(images)
        return logits

    def features(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        """Features of transformed images."""
        features: Tensor = self.network.pool(self.network.feature_map(images))
        return features

    def logits_from_map(
        self, feature_map: Float[Tensor, "batch features height width"]
    ) -> Float[Tensor, "batch classes"]:
        """Logits from the last block's map."""
        return self.network.logits_from_map(feature_map)

    def outputs(self, images: Tensor, *, labels: Tensor | None = None, keys: Sequence[str] | None = None) -> Outputs:
        """All outputs that a detector can use, with the hidden activations of every named layer."""
        with torch.no_grad():
            maps = self.network.feature_map(images)
            features = self.network.pool(maps)
            logits = self.network.logits_from_map(maps)
        hidden = {"feature_map": maps, "conv": maps, "act": maps, "pool": features, "local_tokens": maps}
        groups = None if labels is None else torch.where(labels < 0, 0, -1)
        return Outputs(logits, features, labels, groups, keys, images, hidden, self)


@dataclass(frozen=True, eq=False)
class Problem:
    """A tiny classifier with its training set and test sets.

    Args:
        train: Outputs of all training images, with labels and keys.
        id: Outputs of in-distribution images, with labels and keys.
        ood: Outputs of out-of-distribution images; their label is -1.
        head: The linear head: head(features) == logits.
        model: Access to the network.
        facts: Facts about the backbone before the first batch.
    """

    train: Outputs
    id: Outputs
    ood: Outputs
    head: Head
    model: TinyModel
    facts: BackboneFacts

    @property
    def tests(self) -> Outputs:
        """In-distribution and out-of-distribution images, interleaved so that batches contain both."""
        return select(join([self.id, self.ood]), _interleaved(len(self.id), len(self.ood)))

    @property
    def tests_are_id(self) -> Tensor:
        """Whether each image of `tests` is in-distribution, shape (images,)."""
        flags = torch.cat([torch.ones(len(self.id)), torch.zeros(len(self.ood))]).bool()
        return flags[_interleaved(len(self.id), len(self.ood))]

    def mapped(self, change: Callable[[Outputs], Outputs], head: Head | None = None) -> "Problem":
        """The same problem with changed outputs, and optionally another head."""
        return replace(self, train=change(self.train), id=change(self.id), ood=change(self.ood), head=head or self.head)

    def with_features(self, change: Callable[[Tensor], Tensor], head: Head) -> "Problem":
        """The same problem with changed features and the logits of a head for them."""

        def changed(outputs: Outputs) -> Outputs:
            features = change(outputs.require("features"))
            return replace(outputs, features=features, logits=head(features))

        return self.mapped(changed, head)

    def without_unused_features(self) -> "Problem":
        """The same problem with some features switched off: zero in all outputs and in the weights of the head."""
        used = self.head.weight.amax(dim=0) > 0.5
        return self.with_features(lambda x: x * used, Head(self.head.weight * used, self.head.offset))


ProblemFactory: TypeAlias = Callable[[], Problem]
"""Builds a new problem. Checks that start processes import it by module and name."""


def separated_problem() -> Problem:
    """A problem that every published detector solves, with non-negative features, dropout and feature maps.

    Each class activates its own two features at different positions of the map. OOD images activate unused features
    at all positions, and leave the classifier undecided. One of 25 training images per class mostly shows another
    class, so that the classifier makes some errors. Test images are closer to their class mean than the outermost
    training images.

    Example:
        >>> problem = separated_problem()
        >>> problem.train, problem.head.num_classes
        (Outputs(logits=(150, 6), features=(150, 16), labels=(150,), groups=(150,), keys=list, images=(150, 3, 8, 8), hidden=dict, model=TinyModel), 6)
    """  # noqa: E501
    return _build(TinyConvNet(NUM_CLASSES, dropout=0.2), signed=False)


def signed_problem() -> Problem:
    """The same problem with features of both signs, as in vision transformers.

    Example:
        >>> bool((signed_problem().train.features < 0).any())
        True
    """
    return _build(TinyConvNet(NUM_CLASSES, dropout=0.2, signed=True), signed=True)


def _build(network: TinyConvNet, *, signed: bool) -> Problem:
    model = TinyModel(network)
    labels = torch.arange(NUM_CLASSES * _PER_CLASS) % NUM_CLASSES
    hard = torch.arange(len(labels)) >= NUM_CLASSES * (_PER_CLASS - 1)
    id_labels = torch.arange(NUM_CLASSES * _PER_CLASS_ID) % NUM_CLASSES

    def outputs(name: str, maps: Tensor, classes: Tensor) -> Outputs:
        keys = [f"{name}/{i:04d}" for i in range(len(classes))]
        return model.outputs(_images(maps, signed=signed, salt=len(name)), labels=classes, keys=keys)

    train = outputs("train", _class_maps(labels, hard, spread=0.2, salt=10), labels)
    return Problem(
        train=train,
        id=outputs("id", _class_maps(id_labels, torch.zeros(len(id_labels)).bool(), spread=0.1, salt=20), id_labels),
        ood=outputs("ood", _ood_maps(_NUM_OOD, salt=30), torch.full((_NUM_OOD,), -1)),
        head=Head(model.linear.weight.detach().clone(), model.linear.bias.detach().clone()),
        model=model,
        facts=BackboneFacts(
            name=f"the network of oodlit.testing.{'signed' if signed else 'separated'}_problem",
            width=network.num_features,
            num_classes=NUM_CLASSES,
            signed_features=signed,
            has_dropout=True,
            feature_map=True,
            num_train=len(train),
        ),
    )


def _class_maps(labels: Tensor, hard: Tensor, *, spread: float, salt: int) -> Tensor:
    """Maps (images, features, 2, 2): feature 2c in the left half, 2c + 1 in the right half, others near zero."""
    n, width = len(labels), TinyConvNet.num_features
    maps = 0.2 * arithmetic(n, width, 2, 2, salt=salt)
    # different, so that the largest singular component of a map is unique
    strength = torch.tensor([9.0, 6.5]) * (1 + spread * (2 * arithmetic(n, 2, salt=salt + 1) - 1))
    other = (labels + 1) % NUM_CLASSES
    rows = torch.arange(n)
    for classes, weight in ((labels, torch.where(hard, 0.35, 1.0)), (other, torch.where(hard, 0.65, 0.0))):
        maps[rows, 2 * classes, :, 0] += (strength[:, 0] * weight)[:, None]
        maps[rows, 2 * classes + 1, :, 1] += (strength[:, 1] * weight)[:, None]
    return maps


def _ood_maps(n: int, *, salt: int) -> Tensor:
    """Maps (images, features, 2, 2): unused features, the same at every position."""
    width, used = TinyConvNet.num_features, 2 * NUM_CLASSES
    levels = torch.cat(
        [0.1 + 0.2 * arithmetic(n, used, salt=salt), 1.5 + arithmetic(n, width - used, salt=salt + 1)], dim=1
    )
    return levels[:, :, None, None] + 0.02 * arithmetic(n, width, 2, 2, salt=salt + 2)


def _images(maps: Tensor, *, signed: bool, salt: int) -> Tensor:
    """Images with these feature maps, up to noise on the pixels."""
    pixels = maps.repeat_interleave(3, dim=1)  # (images, 48, 2, 2)
    pixels = pixels + (0.4 if signed else 0.1) * (arithmetic(*pixels.shape, salt=salt + 40) - 0.5)
    return nn.functional.fold(pixels.flatten(2), output_size=(8, 8), kernel_size=4, stride=4).float()


def _interleaved(n_id: int, n_ood: int) -> Tensor:
    return torch.cat([torch.arange(n_id) * n_ood, torch.arange(n_ood) * n_id]).sort(stable=True).indices


def select(outputs: Outputs, rows: Tensor | slice) -> Outputs:
    """Copy the given rows, so that nothing is shared with `outputs`."""
    return change_tensors(outputs.select(rows), lambda _, tensor: tensor.clone())


def change_tensors(outputs: Outputs, change: Callable[[str, Tensor], Tensor]) -> Outputs:
    """Replace every tensor by `change(field, tensor)`; the field of hidden activations is "hidden".

    Example:
        >>> train = separated_problem().train
        >>> change_tensors(train, lambda field, tensor: tensor * 0 if field == "logits" else tensor).logits.unique()
        tensor([0.])
    """
    tensors: dict[str, Any] = {n: change(n, v) for n in _TENSORS if (v := getattr(outputs, n)) is not None}
    hidden = {n: change("hidden", v) for n, v in (outputs.hidden or {}).items()}
    return replace(outputs, hidden=hidden or None, **tensors)


def join(parts: Sequence[Outputs]) -> Outputs:
    """Join batches; fields that are missing in one of them are left out."""
    shared = (n for n in _TENSORS if all(getattr(p, n) is not None for p in parts))
    fields: dict[str, Any] = {n: torch.cat([getattr(p, n) for p in parts]) for n in shared}
    keys = [k for p in parts for k in p.keys or ()]
    names = set.intersection(*(set(p.hidden or ()) for p in parts))
    hidden = {n: torch.cat([(p.hidden or {})[n] for p in parts]) for n in sorted(names)}
    return Outputs(
        **fields, keys=keys if len(keys) == sum(map(len, parts)) else None, hidden=hidden or None, model=parts[0].model
    )


def cut(outputs: Outputs, sizes: Sequence[int], order: Sequence[int] | None = None) -> Iterator[Outputs]:
    """Split the images into batches of the given sizes, optionally after reordering them.

    Example:
        >>> [len(batch) for batch in cut(separated_problem().id, [10, 1, 19])]
        [10, 1, 19]
    """
    rows = torch.arange(len(outputs)) if order is None else torch.tensor(order)
    for part in torch.split(rows, list(sizes)):
        yield select(outputs, part)


def import_extra(module: str) -> ModuleType:
    """Import a module of the `testing` extra.

    Raises:
        MissingExtraError: It is not installed; the message has the pip command.

    Example:
        >>> import_extra("hypothesis").__name__
        'hypothesis'
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, package):
            raise
        raise MissingExtraError.of(f"oodlit.testing with {package}", "testing") from error
