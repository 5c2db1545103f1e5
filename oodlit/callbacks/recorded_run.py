"""`evaluate_arrays`: evaluate detectors on features and logits that were computed before."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oodlit._lightning import LIGHTNING_LOGGERS, silent_trainer
from oodlit.backbones.loading import quiet_loggers
from oodlit.callbacks.detection import OODDetection
from oodlit.detectors.contract.every import every_detector
from oodlit.detectors.contract.fitting import GivenDetectors
from oodlit.recorded.arrays import Given, GivenHead
from oodlit.recorded.data import RecordedData
from oodlit.recorded.from_arrays import KEYS, recorded_parts
from oodlit.recorded.module import RecordedModule
from oodlit.results import Results


def evaluate_arrays(
    *,
    id: Given,
    ood: Mapping[str, Given] | Given | None = None,
    train: Given | None = None,
    shift: Mapping[str, Given] | None = None,
    unit_tests: Mapping[str, Given] | None = None,
    head: GivenHead | None = None,
    class_names: str | Path | Sequence[str] | None = None,
    detectors: GivenDetectors | None = None,
    out: str | Path | None = None,
    name: str = "recorded outputs",
    batch_size: int = 4096,
    **evaluation: Any,
) -> Results:
    """Fit, score and evaluate detectors on recorded outputs of a backbone, without images and network.

    A set is a mapping of arrays or tensors, `Outputs`, or a file: `.npz`, `.safetensors`, Parquet, or a folder of
    `.npy` files, which are memory-mapped. Its parts are "features" (images, features) and "logits" (images, classes),
    of which at least one must be given, and optionally "labels" (int, -1 = none), "groups" (number or name of the OOD
    class), "class_names" (of numbered groups; default: their numbers) and "keys" (identity of the image; else they are
    numbered). Detectors that do not apply, such as those that need images, are left out with the reason in
    `results.run.not_applicable`.

    Args:
        id: The ID validation images: the positive class of every metric.
        ood: OOD sets by name; one set without a name is called "ood".
        train: Training images with labels, for detectors that are fitted.
        shift: Sets of known classes under input shift, by name.
        unit_tests: Sets of synthetic images by name.
        head: Weight (classes, features) and bias (classes,) of the last layer, where features are its input: a `Head`,
            an `nn.Linear`, a pair, or a file with "weight" and "bias". None (default): detectors that need it are left
            out, and logits must be given.
        class_names: Names of the labels, see `OODDataModule`.
        detectors: Objects or names; None (default) = every detector that has defaults for its settings and applies.
        out: Folder for results, scores, fitted detectors and the page; None (default) = nothing is written.
        name: How results call the backbone.
        batch_size: Rows that are scored at a time; results do not depend on it.
        evaluation: Further arguments of `OODDetection`, such as `tpr`.

    Raises:
        InvalidArgumentError: Arrays do not fit each other.
        DataError: A file cannot be read, or labels do not fit.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(200, 3)).astype("float32")
        >>> results = evaluate_arrays(
        ...     id={"logits": 4 * logits[:100]},
        ...     ood={"near": {"logits": logits[100:], "groups": ["cat", "dog"] * 50}},
        ... )
        >>> results.value("mean_auroc", dataset="near", detector="msp") > 0.7
        True
    """
    arguments = locals()  # before any other variable: the arguments as they were given
    module, data = recorded_parts(**{key: arguments[key] for key in KEYS})
    return run_recorded(module, data, detectors, out=out, **evaluation)


def run_recorded(
    module: RecordedModule,
    data: RecordedData,
    detectors: GivenDetectors | None = None,
    *,
    out: str | Path | None = None,
    **evaluation: Any,
) -> Results:
    """One `trainer.predict` over recorded outputs, on the CPU.

    Args:
        module: Knows the shape of the outputs, and the head.
        data: The sets.
        detectors: Which ones; None = every one that has defaults for its settings and applies.
        out: See `evaluate_arrays`.
        evaluation: Further arguments of `OODDetection`.
    """
    with warnings.catch_warnings(), quiet_loggers(*LIGHTNING_LOGGERS):
        warnings.filterwarnings("ignore", message=".*LeafSpec")  # Lightning's own use of torch
        if detectors is None:  # nobody asked for those that do not apply; the record has the reasons
            detectors, _ = every_detector()
            given = evaluation.pop("record", dict)
            evaluation["record"] = lambda: {**given(), "every_detector": True}
            warnings.filterwarnings("ignore", message="detector .* is skipped", category=UserWarning)
        detection = OODDetection(detectors, output_dir=out, **evaluation)
        silent_trainer(detection, accelerator="cpu").predict(module, data, return_predictions=False)
    assert detection.results is not None  # predict has returned
    return detection.results
