"""ObjectModule: any object detector as a LightningModule that returns boxes with logits, features and identity."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oodlit._lightning import Module
from oodlit.backbones.acceleration import Acceleration
from oodlit.backbones.facts import explain_pass, is_random, place_of
from oodlit.backbones.identity import WeightsHash
from oodlit.backbones.loading import class_name, eval_mode
from oodlit.base.checks import check_ints
from oodlit.base.errors import InvalidArgumentError, OodlitError
from oodlit.base.fingerprint import join
from oodlit.base.outputs import BackboneFacts, Head, Outputs
from oodlit.base.plan import plan_of
from oodlit.objects.adapters import BoxReader, ImageBoxes, reader_of
from oodlit.objects.detections import Detections
from oodlit.objects.files.box_bounds import are_outside, are_relative


class ObjectModule(Module):
    """Wrap an object detector for `trainer.predict`.

    A box is a row: its logits over the ID classes, without background, and the input of the class layer as features.
    Images pass through the network one by one, so that a box does not depend on its batch.

    Args:
        network: A torchvision detector (Faster R-CNN, RetinaNet, FCOS, SSD), or a `BoxReader`: `HuggingFaceReader` for
            DETR and similar detectors, `FunctionReader` for any other.
        class_names: Names of the ID classes in the order of the logits, without background; () = unknown, the classes
            of the data are in this order.
        name: Name of the object detector in results; by default the class of the network.
        min_confidence: Boxes with a lower confidence are dropped; t* must not be lower. Default 0.05.
        cells: Cells per side into which RoIAlign divides a box, for detectors that read a hidden layer. Default 9.

    Raises:
        InvalidArgumentError: The kind of the network is unknown, a number is out of range, or `class_names` are those
            of the network in another order.

    Example:
        >>> from torchvision.models.detection import ssdlite320_mobilenet_v3_large
        >>> network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
        >>> module = ObjectModule(network, class_names=["cat", "dog"], min_confidence=0.9)
        >>> module([torch.rand(3, 40, 60)])
        [ImageBoxes(0 boxes, logits (0, 2), features None)]
    """

    def __init__(
        self,
        network: nn.Module | BoxReader,
        class_names: Sequence[str] = (),
        *,
        name: str | None = None,
        min_confidence: float = 0.05,
        cells: int = 9,
    ) -> None:
        super().__init__()
        if not 0 <= min_confidence < 1:
            raise InvalidArgumentError(f"ObjectModule: expected min_confidence to be in [0, 1), got {min_confidence}")
        check_ints("ObjectModule", cells=cells)
        self.reader = reader_of(network)
        self.network = self.reader.network
        self.name = name or class_name(self.network)
        self.class_names = tuple(class_names)
        _check_order(self.class_names, getattr(self.reader, "class_names", ()))
        self.min_confidence, self.cells = min_confidence, cells
        self.acceleration = Acceleration(self.network)
        self._weights_hash = WeightsHash(self.network)

    @property
    def head(self) -> Head:
        """The class layer, without background.

        Raises:
            RequirementError: No linear layer computes the class logits; states why.
        """
        return self.reader.head()

    @property
    def head_problem(self) -> str:
        """Why there is no linear class layer; empty if there is one."""
        return self.reader.head_problem

    @property
    def fingerprint(self) -> str:
        """Identifies the weights and the reader; fitted detectors are valid only for this fingerprint."""
        return self._fingerprint(afresh=True)

    def _fingerprint(self, *, afresh: bool = False) -> str:
        return join(weights=self._weights_hash(afresh=afresh), head=type(self.reader).__name__)

    def forward(self, images: Sequence[Tensor]) -> list[ImageBoxes]:
        """Return the boxes of each image.

        Args:
            images: RGB in [0, 1], of any sizes, shape (3, height, width).
        """
        return self._read(images, ())

    def _read(self, images: Sequence[Tensor], layers: Sequence[str]) -> list[ImageBoxes]:
        with eval_mode(self.network), torch.no_grad():
            return self.reader.read(images, dict.fromkeys(layers, self.cells), min_confidence=self.min_confidence)

    def predict_step(self, batch: Mapping[str, Any], batch_idx: int, dataloader_idx: int = 0) -> Detections:
        """Return the boxes of one batch.

        Args:
            batch: `image`, a list of images, and `key`, `dataset/image` of each.
            batch_idx: Position of the batch, not used.
            dataloader_idx: Position of the stream, not used.
        """
        plan = plan_of(self)
        with explain_pass(self.name, self.network, batch):
            found = self._read(batch["image"], () if plan is None else plan.hidden_layers)
        # A run checks the fingerprint beforehand; outside of runs, outputs carry it.
        backbone = self._fingerprint() if plan is None else ""
        return as_detections(found, batch["key"], batch["image"], device=self.device, backbone=backbone)

    def exact_outputs(self, batch: Mapping[str, Any]) -> Detections:
        """Boxes of a batch from the plain network, in the precision of its weights.

        Args:
            batch: See `predict_step`; already on the device.
        """
        with torch.autocast(self.device.type, enabled=False):
            return self.predict_step(batch, 0)

    def probe(self, images: Sequence[Tensor], num_train: int = 0, *, layers: Sequence[str] = ()) -> BackboneFacts:
        """Run a few images to describe the object detector, before a run.

        Args:
            images: A few images.
            num_train: Approximate number of training boxes.
            layers: Hidden layers that OOD detectors read.

        Raises:
            InvalidArgumentError: The boxes are not in pixels of the images.
        """
        inputs = [image.to(place_of(self.network)[0]) for image in images]
        found = self._read(inputs, ())
        _check_places(self.name, found, images)
        logits, features = found[0].logits, found[0].features
        channels, problems = {}, {}
        for layer in layers:
            try:
                channels[layer] = self._read(inputs[:1], (layer,))[0].hidden[layer].shape[1]
            except OodlitError as error:
                problems[layer] = str(error)
        given = {"labels", "logits", "hidden"} | (set() if features is None else {"features"})
        return BackboneFacts(
            name=self.name,
            width=0 if features is None else features.shape[1],
            num_classes=logits.shape[1],
            head_problem=self.head_problem,
            signed_features=any(bool((boxes.features < 0).any()) for boxes in found if boxes.features is not None),
            num_train=num_train,
            available=frozenset(given if self.head_problem else given | {"head"}),
            channels=channels,
            layer_problems=problems,
            is_random=is_random(_values(found), _values(self._read(inputs, ())), self.name),
        )


def _values(found: Sequence[ImageBoxes]) -> list[Tensor]:
    return [value for boxes in found for value in (boxes.boxes, boxes.confidence, boxes.logits)]


def _check_order(names: tuple[str, ...], own: tuple[str, ...]) -> None:
    """Check that class names are in the order of the logits."""
    if names != own and sorted(names) == sorted(own):
        first = next(n for n, (one, other) in enumerate(zip(names, own, strict=True)) if one != other)
        raise InvalidArgumentError(
            f"class_names: expected the order of the network's logits, but class {first} is {names[first]!r} in"
            f" class_names and {own[first]!r} in the network; pass class_names=reader.class_names"
        )


def _check_places(name: str, found: Sequence[ImageBoxes], images: Sequence[Tensor]) -> None:
    """Reject boxes that are relative to the image, or in pixels of a larger one."""
    boxes = torch.cat([part.boxes for part in found]).double().cpu().numpy()
    sizes = np.array(
        [(i.shape[-1], i.shape[-2]) for part, i in zip(found, images, strict=True) for _ in range(len(part))],
        dtype=np.int64,
    ).reshape(-1, 2)
    if len(boxes) and (are_relative(boxes, sizes).all() or are_outside(boxes, sizes).mean() > 0.5):
        row = int((are_relative(boxes, sizes) | are_outside(boxes, sizes)).argmax())
        raise InvalidArgumentError(
            f"{name}: expected boxes (xmin, ymin, xmax, ymax) in pixels of the image, got {boxes[row].tolist()} in an"
            f" image of {sizes[row][0]} x {sizes[row][1]}; rescale the boxes to the size of the image"
        )


def as_detections(
    found: Sequence[ImageBoxes],
    keys: Sequence[str],
    images: Sequence[Tensor],
    *,
    device: torch.device | None = None,
    backbone: str = "",
) -> Detections:
    """Join the boxes of several images.

    Args:
        found: The boxes of each image.
        keys: `dataset/image` of each.
        images: The images, for their sizes.
        device: Device of empty tensors; None = the CPU.
        backbone: Fingerprint of the network, see `Outputs`.

    Example:
        >>> boxes = ImageBoxes(torch.tensor([[0.0, 0, 5, 5]]), torch.ones(1), torch.tensor([2]), torch.zeros(1, 3))
        >>> as_detections([boxes], ["val/a"], [torch.zeros(3, 8, 9)]).box_keys
        ['val/a#0']
    """
    if not found:  # every image of the batch was skipped
        none = torch.zeros(0, dtype=torch.int64, device=device)
        return Detections(torch.zeros(0, 4, device=device), torch.zeros(0, device=device), none, [])
    features = [boxes.features for boxes in found if boxes.features is not None]
    return Detections(
        torch.cat([boxes.boxes for boxes in found]),
        torch.cat([boxes.confidence for boxes in found]),
        torch.cat([torch.full_like(boxes.predictions, i) for i, boxes in enumerate(found)]),
        keys,
        sizes=torch.tensor([(image.shape[-1], image.shape[-2]) for image in images]),
        predictions=torch.cat([boxes.predictions for boxes in found]),
        outputs=Outputs(
            torch.cat([boxes.logits for boxes in found]),
            torch.cat(features) if len(features) == len(found) else None,
            hidden={n: torch.cat([boxes.hidden[n] for boxes in found]) for n in found[0].hidden} or None,
            backbone=backbone,
        ),
    )
