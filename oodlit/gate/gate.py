"""The gate: which images a classifier should answer for, and which it should refuse."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oodlit.backbones.facts import place_of
from oodlit.base.fractions import ShareLike
from oodlit.base.plan import RunPlan
from oodlit.detectors import Detector, FitOrigin
from oodlit.detectors.contract.placement import place_large
from oodlit.errors import NonFiniteScoreError
from oodlit.gate.backbone import load_module, lock_of, precision_context
from oodlit.gate.export import export_program
from oodlit.gate.folder import load_gate, load_run, save_gate
from oodlit.gate.inputs import ImageLike, batches_of
from oodlit.gate.monitor import Monitor
from oodlit.gate.record import GateRecord
from oodlit.gate.threshold import Threshold
from oodlit.gate.verdict import Verdict
from oodlit.module import OODModule
from oodlit.outputs import Outputs


class Gate:
    """One detector of a run with its network, transform and threshold: images in, verdicts out.

    Made by `Gate.load`. Calls from several threads are allowed, also of several gates around one network: pictures are
    decoded side by side, and they take turns with the network. The network is used as it is given, in eval mode, and
    nothing else may run it meanwhile. An image gets the same decision alone and among others, and the same score up to
    rounding.

    Args:
        module: The network with its transform.
        detector: Fitted on it.
        record: What else is known.
        device: Where it computes, such as "cuda:0"; None (default) = where the network is.

    Example:
        >>> gate = Gate.load("oodlit-demo", detector="mahalanobis", model=network)  # doctest: +SKIP
        >>> gate(Image.open("seven.png"))  # doctest: +SKIP
        [Verdict(accepted=False, score=-301.2, threshold=-153.3, class_index=2, class_name='two', probability=0.61)]
    """

    def __init__(
        self, module: OODModule, detector: Detector, record: GateRecord, *, device: str | torch.device | None = None
    ) -> None:
        # Lightning knows the device of a module that it has moved itself.
        self.module = module.to(place_of(module.network)[0] if device is None else device)
        self.detector, self.record = detector, record
        place_large({detector.key(): detector}, self.module.device)
        self.threshold: Threshold = record.threshold
        self._precision = precision_context(record.precision)
        self._plan = RunPlan(
            module.transform,
            extra_outputs=detector.required_needs & {"images", "hidden", "model"},
            hidden_layers=detector.required_layers,
        )
        self._lock = lock_of(module.network)

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        detector: str | None = None,
        model: OODModule | nn.Module | str | None = None,
        transform: Callable[..., Any] | None = None,
        tpr: ShareLike | None = None,
        fpr: ShareLike | None = None,
        dataset: str | None = None,
        device: str | torch.device | None = None,
    ) -> "Gate":
        """A gate from the folder of a run, or from one that `save` wrote.

        A network that the run was given by name, or by a configuration, is made again; others are given here. Load
        folders that you trust: what they name is imported and called.

        Args:
            directory: The folder.
            detector: Name of the detector; None where there is one only.
            model: The network, as nn.Module or OODModule, or the dotted path of what makes it. Its weights must be
                those of the run; a saved gate has its own.
            transform: From an RGB image to a tensor, as in the run; only where the record does not say how it is made.
            tpr: Share of ID images that is accepted at least. None: that of the run.
            fpr: In place of `tpr`: share of the images of `dataset` that is accepted at most.
            dataset: An OOD set or unit tests of the run, for `fpr`.
            device: Where the gate computes; None (default) = where the network is.

        Raises:
            FingerprintError: Weights, head or transform are not those that the detector was fitted with.
            InvalidArgumentError: Something has to be given; a share is out of range; a saved gate has its threshold.
            UnknownNameError: There is no such detector or data set.
            DataError: The folder holds no run and no gate.
        """
        folder = Path(directory)
        weights, loaded, record = load_gate(folder, detector, asked=(tpr, fpr, dataset)) or load_run(
            folder, detector, tpr=tpr, fpr=fpr, dataset=dataset
        )
        module = load_module(record.backbone, model=model, transform=transform, weights=weights, source=folder)
        return cls(module, loaded, record.made_by(model) if isinstance(model, str) else record, device=device)

    @torch.inference_mode()
    def __call__(
        self, images: ImageLike | Sequence[ImageLike] | Tensor | Any, *, keys: Sequence[str] | None = None
    ) -> list[Verdict]:
        """One verdict for each image, in their order.

        Args:
            images: Pictures (PIL), bytes of image files, or tensors as the transform gives them, shape
                (channels, height, width): one, a list, or a tensor (batch, channels, height, width).
            keys: Identities of the images. Only MC-dropout reads them: its masks follow from the key, in a run
                `dataset/key`, and from the pixels where there is none.

        Raises:
            InvalidArgumentError: An image is of another kind, or has NaN or infinite values.
            DataError: An image cannot be read.
            NonFiniteScoreError: A score is NaN: nothing can be decided.
        """
        verdicts: list[Verdict] = []
        shape = self.record.backbone.input_shape
        one_shape = self.record.backbone.one_shape
        for batch, names in batches_of(images, keys, self.module.transform, shape, one_shape=one_shape):
            with self._lock:
                outputs = self._outputs(batch, names)
                scores = self.detector.score(outputs).cpu().tolist()
            if undecided := [len(verdicts) + place for place, score in enumerate(scores) if math.isnan(score)]:
                raise NonFiniteScoreError(
                    f"Gate: {self.record.detector} gives NaN for image {', '.join(map(str, undecided[:5]))};"
                    " nothing can be decided - look at the image and at what the network makes of it"
                )
            verdicts += map(self._verdict, scores, _classes(outputs))
        return verdicts

    def _outputs(self, batch: Tensor, keys: list[str] | None) -> Outputs:
        images = batch.to(self.module.device)
        with self._precision(images.device):
            return self.module.outputs({"image": images, "key": keys}, self._plan)

    def _verdict(self, score: float, of_class: tuple[int | None, float]) -> Verdict:
        names, (index, probability) = self.record.class_names, of_class
        name = names[index] if index is not None and index < len(names) else ""
        return Verdict(score >= self.threshold.cut, score, self.threshold.value, index, name, probability)

    def monitor(self, *, confidence: float | None = None) -> Monitor:
        """The gate as a `Monitor`, which counts refusals and warns when they leave what the ID set predicts."""
        return Monitor(self, confidence=confidence)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write all that `load` needs to a new folder: weights, detector, threshold, classes; no image of the run.

        Raises:
            InvalidArgumentError: The folder is not empty, or the network has weights that are no plain tensors.
        """
        origin = FitOrigin(self.record.backbone.fingerprint)
        save_gate(Path(directory), self.record, self.module.network, self.detector, origin)

    def export(self, file: str | os.PathLike[str]) -> None:
        """Write the gate as one program of `torch.export`, which runs without oodlit.

        It takes transformed images (batch, channels, height, width), of any number, and gives `accepted`, `score`,
        `class_index` and `probability`, shape (batch,) each.

        Args:
            file: A name that ends in .pt2, or in .onnx for a program of ONNX. Its folder is made if need be.

        Raises:
            InvalidArgumentError: The name ends in neither.
            MissingExtraError: The file ends in .onnx, and the packages of the extra "onnx" are not installed.
            RequirementError: The detector reads more than logits and features, or something cannot be exported.
        """
        export_program(self.module, self.detector, self.threshold, self.record, Path(file))

    def __repr__(self) -> str:
        """Detector, network and threshold."""
        return f"Gate({self.detector!r} on {self.module.name}, {self.threshold})"


def _classes(outputs: Outputs) -> list[tuple[int | None, float]]:
    """Index and probability of the predicted class, for each image."""
    if outputs.logits is None:
        return [(None, math.nan)] * len(outputs)
    return list(zip(outputs.predictions.tolist(), outputs.max_probabilities.tolist(), strict=True))
