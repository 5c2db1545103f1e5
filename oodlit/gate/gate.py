"""The gate: accept or refuse an image before a classifier answers."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from oodlit.backbones.facts import place_of
from oodlit.backbones.identity import WeightsWatch
from oodlit.backbones.loading import eval_mode
from oodlit.base.errors import FingerprintError, InvalidArgumentError, NonFiniteScoreError
from oodlit.base.fractions import ShareLike
from oodlit.base.outputs import Outputs
from oodlit.base.plan import RunPlan
from oodlit.datamodules.decode import Decode
from oodlit.detectors import Detector, FitOrigin
from oodlit.detectors.contract.placement import place_large
from oodlit.gate.calibration import Calibration, Decision
from oodlit.gate.drift import DriftTest
from oodlit.gate.gate_folder import WEIGHTS, load_gate, load_run, save_gate
from oodlit.gate.gate_record import GateRecord
from oodlit.gate.inputs import ImageLike, batches_of, decoder_for
from oodlit.gate.monitor import Monitor
from oodlit.gate.program import export_program
from oodlit.gate.rebuilding import NetworkFiles, load_module, lock_of, precision_context
from oodlit.gate.threshold import Threshold
from oodlit.gate.verdict import Verdict
from oodlit.module import OODModule


class Gate:
    """One detector of a run with its network, transform and threshold: images in, verdicts out.

    Create one with `Gate.load`. Several threads may call one gate, or several gates on one network: they decode in
    parallel and take turns with the network. The gate does not copy the network; nothing else may run it during a call.
    The decision about an image does not depend on the other images of the call, and its score only up to rounding.

    Args:
        module: The network with its transform.
        detector: A detector that was fitted on it.
        record: Threshold, class names and description of the network.
        calibration: Calibration of p-values; None (default) = no p-values.
        device: Device to compute on, such as "cuda:0"; None (default) = the device of the network.
        decode: See `load`.

    Example:
        >>> gate = Gate.load("oodlit-demo", detector="mahalanobis", model=network)  # doctest: +SKIP
        >>> gate(Image.open("seven.png"))  # doctest: +SKIP
        [Verdict(accepted=False, score=-301.2, threshold=-153.3, class_index=2, class_name='two', probability=0.61,
        p_value=0.004)]
    """

    def __init__(
        self,
        module: OODModule,
        detector: Detector,
        record: GateRecord,
        *,
        calibration: Calibration | None = None,
        device: str | torch.device | None = None,
        decode: Decode | None = None,
    ) -> None:
        # Lightning only knows the device of modules that it has moved itself.
        self.module = module.to(place_of(module.network)[0] if device is None else device)
        self.detector, self.record = detector, record
        place_large({detector.key(): detector}, self.module.device)
        self.threshold: Threshold = record.threshold
        self.calibration = calibration
        self._decide = Decision(record.threshold, calibration, record.backbone.num_classes)
        self._decode = decoder_for(record.decoder, decode)
        self._precision = precision_context(record.precision)
        self._plan = RunPlan(
            module.transform,
            extra_outputs=detector.required_needs & {"images", "hidden", "model"},
            hidden_layers=detector.required_layers,
        )
        self._lock = lock_of(module.network)
        self._watch = WeightsWatch(module.network)

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
        alpha: ShareLike | None = None,
        calibration: ShareLike | None = None,
        per_class: bool = False,
        device: str | torch.device | None = None,
        decode: Decode | None = None,
    ) -> "Gate":
        """Load a gate from the folder of a run, or from a folder that `save` wrote.

        A network that the run received by name or by a configuration is rebuilt; any other must be passed. Only load
        folders that you trust: the classes and functions that they name are imported and called.

        Args:
            directory: The folder.
            detector: Name of the detector; None (default) = the only one.
            model: The network, as nn.Module or OODModule, or the dotted path of a class or function that builds it. Its
                weights must be those of the run; those of a saved gate are loaded into a copy of it.
            transform: From an RGB image to a tensor, as in the run; only required if the record does not describe it.
            tpr: Minimum fraction of accepted ID images, in (0, 1]; None (default) = the one of the run.
            fpr: Maximum fraction of accepted images of `dataset`, in [0, 1); replaces `tpr`.
            dataset: Name of an OOD set or of unit tests of the run, for `fpr`.
            alpha: Refuse images with a p-value of at most alpha, in (0, 1); replaces `tpr`. On average, this refuses at
                most a fraction alpha of images like the ID images; see `Calibration`.
            calibration: Fraction of the ID images that p-values are computed from, in (0, 1], chosen by a hash of their
                keys; None (default) = all. With `alpha`, the other images count the refused ID images of the threshold.
            per_class: Whether to compare an image only with ID images of its predicted class; requires `alpha`.
            device: Device to compute on; None (default) = the device of the network.
            decode: Decoder of the bytes of image files, if the run had a custom one; it must be the same.

        Raises:
            FingerprintError: Weights, head, transform or decoder differ from those that the detector was fitted with.
            InvalidArgumentError: A required argument is missing; a fraction is out of range; or a saved gate, which has
                its threshold, is loaded with settings of one; or there are too few ID images for `alpha`.
            UnknownNameError: The detector or data set does not exist.
            DataError: The folder contains neither a run nor a gate.
        """
        folder = Path(directory)
        asked: dict[str, Any] = {"tpr": tpr, "fpr": fpr, "dataset": dataset, "alpha": alpha}
        asked |= {"calibration": calibration, "per_class": per_class}
        found = load_gate(folder, detector, asked=[*asked.values()]) or load_run(folder, detector, **asked)
        files = NetworkFiles(folder, found.started_in, found.folder and found.folder / WEIGHTS)
        module = load_module(found.record.backbone, model=model, transform=transform, files=files)
        record = found.record.made_by(model) if isinstance(model, str) else found.record
        return cls(module, found.detector, record, calibration=found.calibration, device=device, decode=decode)

    @torch.inference_mode()
    def __call__(
        self, images: ImageLike | Sequence[ImageLike] | Tensor | Any, *, keys: Sequence[str] | None = None
    ) -> list[Verdict]:
        """Return one verdict per image, in the order of the images.

        Args:
            images: PIL images, bytes of image files, or transformed tensors of shape (channels, height, width): one, a
                list, or a tensor (batch, channels, height, width). Tensors of any floating-point type are converted to
                that of the network.
            keys: One key per image. Only MC-dropout reads them: its masks depend on the key (`dataset/key` in a run),
                or on the pixels if there are no keys.

        Raises:
            InvalidArgumentError: An image has another type or shape, or contains NaN or infinite values.
            FingerprintError: The weights of the network have changed since the gate was loaded.
            DataError: An image cannot be read.
            NonFiniteScoreError: A score is NaN, so there is no decision.
        """
        verdicts: list[Verdict] = []
        known, dtype = self.record.backbone, place_of(self.module.network)[1]
        how: dict[str, Any] = {"one_shape": known.one_shape, "decode": self._decode, "dtype": dtype}
        for batch, names in batches_of(images, keys, self.module.transform, known.input_shape, **how):
            with self._lock, eval_mode(self.module.network):  # the user may have called train() since
                self._check_weights()
                with self._precision(self.module.device):
                    outputs = self.module.outputs({"image": batch.to(self.module.device), "key": names}, self._plan)
                scores = self.detector.score(outputs).cpu()
            if undecided := [len(verdicts) + place for place in scores.isnan().nonzero().flatten().tolist()]:
                raise NonFiniteScoreError(
                    f"Gate: {self.record.detector} returned NaN for {len(undecided)} images (first positions:"
                    f" {', '.join(map(str, undecided[:5]))}); check the pixels and the outputs of the network"
                )
            verdicts += self._verdicts(scores, outputs)
        return verdicts

    def _check_weights(self) -> None:
        if not self._watch.is_unchanged():
            raise FingerprintError(
                f"Gate: the weights of {self.module.name} have changed since Gate.load, so the threshold no longer"
                " applies. To train further, pass a copy: Gate.load(..., model=copy.deepcopy(network))"
            )

    def _verdicts(self, scores: Tensor, outputs: Outputs) -> list[Verdict]:
        names, classes = self.record.class_names, _classes(outputs)
        predictions = None if outputs.logits is None else outputs.predictions.cpu()
        decided = zip(scores.tolist(), *(part.tolist() for part in self._decide(scores, predictions)), strict=True)
        return [
            Verdict(
                accepted,
                score,
                threshold,
                index,
                names[index] if index is not None and index < len(names) else "",
                probability,
                None if math.isnan(p_value) else p_value,
            )
            for (score, accepted, threshold, p_value), (index, probability) in zip(decided, classes, strict=True)
        ]

    @property
    def no_p_value(self) -> Mapping[int, str]:
        """The reason for each class that has no p-values, by index; only with `per_class`."""
        return self._decide.no_p_value

    def monitor(
        self,
        *,
        confidence: float | None = None,
        false_alarm_rate: ShareLike = 0.01,
        state: str | os.PathLike[str] | None = None,
    ) -> Monitor:
        """Return a `Monitor`, which counts refusals and tests the scores for drift.

        Args:
            confidence: See `Monitor`.
            false_alarm_rate: Largest probability of a false alarm about drift over unlimited time, in (0, 1). A gate
                that was saved by an earlier version has no ID scores, so its monitor does not test for drift.
            state: File that `Monitor.save` wrote, to continue; if it does not exist, the monitor starts from scratch.

        Raises:
            InvalidArgumentError: A fraction is out of range, or the file belongs to another gate.
            DataError: The file is damaged.
        """
        known = self.calibration
        drift = None if known is None else DriftTest(known.scores, false_alarm_rate=false_alarm_rate)
        monitor = Monitor(self, confidence=confidence, drift=drift)
        if state is not None and Path(state).exists():
            monitor.restore(state)
        return monitor

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write everything that `load` requires to a new folder: weights, detector, threshold and class names.

        `load` opens no other file, unless the class of a custom network does.

        The folder contains no images of the run.

        Raises:
            InvalidArgumentError: The folder is not empty, or a weight of the network is not a plain tensor.
            FingerprintError: The weights of the network have changed since the gate was loaded.
        """
        self._check_weights()
        origin = FitOrigin(self.record.backbone.fingerprint)
        save_gate(Path(directory), self.record, self.module, self.detector, self.calibration, origin)

    def export(self, file: str | os.PathLike[str]) -> None:
        """Write the gate as one `torch.export` program, which runs without oodlit.

        It accepts transformed images (batch, channels, height, width) in batches of any size, and returns `accepted`,
        `score`, `class_index` and `probability`, each of shape (batch,). The program of a gate that was loaded with
        `alpha` also returns `p_value`; NaN if there is none.

        Args:
            file: A file name that ends in .pt2, or in .onnx for ONNX. Missing folders are created.

        Raises:
            InvalidArgumentError: The name has another ending.
            MissingExtraError: The name ends in .onnx, and the packages of the extra "onnx" are not installed.
            RequirementError: The detector reads more than logits and features, or the gate cannot be exported.
            FingerprintError: The weights of the network have changed since the gate was loaded.
        """
        self._check_weights()
        export_program(self.module, self.detector, self.calibration, self.record, Path(file))

    def __reduce__(self) -> NoReturn:
        """Refuse `pickle` and `copy.deepcopy`, which cannot copy the lock that gates on one network share.

        Raises:
            InvalidArgumentError: Always.
        """
        raise InvalidArgumentError(
            "Gate: a gate cannot be pickled or copied, because all gates on a network share one lock; call"
            " gate.save(folder), and then Gate.load(folder) in each process"
        )

    def __repr__(self) -> str:
        """Return detector, network and threshold in one line."""
        return f"Gate({self.detector!r} on {self.module.name}, {self.threshold})"


def _classes(outputs: Outputs) -> list[tuple[int | None, float]]:
    """Return index and probability of the predicted class for each image."""
    if outputs.logits is None:
        return [(None, math.nan)] * len(outputs)
    return list(zip(outputs.predictions.tolist(), outputs.max_probabilities.tolist(), strict=True))
