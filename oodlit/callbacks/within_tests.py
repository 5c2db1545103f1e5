"""Runs within a pytest test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from oodlit._lightning import silent_trainer
from oodlit.backbones.backbone import Backbone
from oodlit.callbacks.detection import OODDetection
from oodlit.datamodules import OODDataModule
from oodlit.detectors.contract.fitting import GivenDetectors
from oodlit.module import OODModule
from oodlit.results import Results


def evaluator(folder: Path) -> Callable[..., Results]:
    """Return a function that evaluates a model within a test, see `oodlit_pytest.oodlit_evaluate`."""

    def evaluate(
        model: nn.Module | OODModule,
        data: OODDataModule,
        detectors: GivenDetectors | None = None,
        *,
        fitted: str | Path | None = None,
    ) -> Results:
        """Evaluate a model on the CPU, without a report, on data such as `OODDataModule(streams, unit_tests=50)`.

        Args:
            model: A network or an `OODModule`.
            data: The streams.
            detectors: The detectors, unless `fitted` is given.
            fitted: Folder with the fitted detectors of a run of the same network.
        """
        module: Any = model if isinstance(model, Backbone) else OODModule(model)
        detection = OODDetection(detectors, fitted=fitted)
        trainer = silent_trainer(detection, accelerator="cpu", default_root_dir=folder)
        trainer.predict(module, data, return_predictions=False)
        assert detection.results is not None  # set when predict is complete
        return detection.results

    return evaluate
