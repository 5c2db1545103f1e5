"""A gate as one program of `torch.export`: network, detector and threshold in a file that needs no oodlit."""

import contextlib
import copy
import io
import logging
import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from oodlit.base.atomic import fsync, temporary_file
from oodlit.base.plan import RunPlan
from oodlit.detectors import Detector
from oodlit.errors import InvalidArgumentError, MissingExtraError, RequirementError
from oodlit.gate.record import GateRecord
from oodlit.gate.threshold import Threshold
from oodlit.module import OODModule

ModuleT = TypeVar("ModuleT", bound=nn.Module)

EXPORTABLE = frozenset({"logits", "features", "head", "labels"})
"""What a detector may need; labels are read in the fit alone."""


class _Program(nn.Module):
    """From transformed images to decisions, as traced."""

    cut: Tensor

    def __init__(self, module: OODModule, detector: Detector, cut: float) -> None:
        super().__init__()
        self.network, self.detector = module.network, detector
        self._read = module.outputs
        self.register_buffer("cut", torch.tensor(cut, dtype=torch.float64))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Decisions of a batch."""
        outputs = self._read(images, RunPlan())
        scores = self.detector._score(outputs)
        # A gate of oodlit raises here. The images themselves are looked at, since runtimes of ONNX leave NaN out of the
        # maxima of pooling layers, and make numbers of it again.
        is_known = _is_finite(images)
        if outputs.features is not None and "features" in self.detector.required_needs:
            is_known &= _is_finite(outputs.features)
        if outputs.logits is not None and "logits" in self.detector.required_needs:
            is_known &= _is_finite(outputs.logits.masked_fill(outputs.logits == -math.inf, 0.0))
        scores = scores.masked_fill(~is_known, math.nan)
        found = {"accepted": is_known & (scores.double() >= self.cut), "score": scores}
        if outputs.logits is not None:
            found |= {"class_index": outputs.predictions, "probability": outputs.max_probabilities}
        return found


def _is_finite(values: Tensor) -> Tensor:
    """For each image whether all its values are numbers, shape (batch,)."""
    return values.flatten(1).isfinite().all(dim=1)


def _frozen(module: ModuleT) -> ModuleT:
    """A detector of the same tensors, whose whole numbers and truth values are plain: what they decide is decided."""
    frozen = copy.copy(module)
    frozen._modules = {name: part and _frozen(part) for name, part in module._modules.items()}
    frozen._buffers = dict(module._buffers)
    for name, value in module._buffers.items():
        if value is not None and value.ndim == 0 and not value.dtype.is_floating_point:
            del frozen._buffers[name]
            vars(frozen)[name] = value.item()
    return frozen


def export_program(module: OODModule, detector: Detector, threshold: Threshold, record: GateRecord, file: Path) -> None:
    """Trace the gate and write the program, of ONNX or of torch as the name of the file ends.

    Raises:
        InvalidArgumentError: The name ends in neither .onnx nor .pt2, or is that of a folder.
        MissingExtraError: What writes ONNX is not installed.
        RequirementError: The detector reads more than logits and features, or something cannot be traced.
    """
    if file.suffix.lower() not in (".onnx", ".pt2") or file.is_dir():
        raise InvalidArgumentError(
            f"Gate.export: {str(file)!r}; the name of a file that ends in .pt2 (a program of torch.export) or .onnx is"
            " needed"
        )
    as_onnx = file.suffix.lower() == ".onnx"
    if as_onnx and any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise MissingExtraError.of("Gate.export of an .onnx file", "onnx")
    if further := sorted(detector.required_needs - EXPORTABLE):
        raise RequirementError(
            f"Gate.export: {detector!r} needs {', '.join(further)}, which an exported program does not have; export a"
            " gate of a detector of logits and features, or use gate.save"
        )
    if record.precision != "32-true":
        raise RequirementError(f"Gate.export: the run was made in precision {record.precision!r}; 32-true is needed")
    file.parent.mkdir(parents=True, exist_ok=True)  # tracing takes its time: whether there is a place is said before
    example = torch.linspace(-1, 1, 3).view(3, *[1] * len(record.backbone.input_shape))
    example = example.expand(3, *record.backbone.input_shape).clone().to(module.device)
    traced = _Program(module, _frozen(detector), threshold.cut).eval()
    with _quiet(), torch.no_grad():
        try:
            names = list(traced(example))  # what a detector makes once, when it scores, is there then
            program = torch.export.export(
                traced,
                (example,),
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                strict=False,
            )
            data = _as_onnx(program, names) if as_onnx else b""
        except Exception as error:  # torch.export fails with many types of its own
            reason = (str(error).splitlines() or [""])[0]
            raise RequirementError(
                f"Gate.export: {detector!r} on {module.name} cannot be traced for batches of any size and any values"
                f" ({type(error).__name__}: {reason:.100}); use gate.save"
            ) from error
    with temporary_file(file) as temporary:
        with temporary.open("wb") as opened:
            if as_onnx:
                opened.write(data)
            else:
                torch.export.save(program, opened)
        fsync(temporary)
        temporary.replace(file)


def _as_onnx(program: torch.export.ExportedProgram, names: Sequence[str]) -> bytes:
    """The program as one file of ONNX; it cannot have more than 2 GB."""
    found = torch.onnx.export(program, dynamo=True, verbose=False, input_names=["images"], output_names=names)
    assert found is not None  # of `dynamo`
    return bytes(found.model_proto.SerializeToString())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the graphs that torch logs and prints where a trace ends; the error says which detector it was."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.ERROR))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
