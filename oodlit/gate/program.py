"""Export a gate as one `torch.export` program: network, detector and threshold in a file that runs without oodlit."""

import contextlib
import copy
import io
import logging
import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from oodlit.base.atomic import fsync, temporary_file
from oodlit.base.errors import InvalidArgumentError, MissingExtraError, RequirementError
from oodlit.base.plan import RunPlan
from oodlit.detectors import Detector
from oodlit.gate.calibration import Calibration, Decision
from oodlit.gate.gate_record import GateRecord
from oodlit.gate.threshold import ALPHA
from oodlit.module import OODModule

EXPORTABLE = frozenset({"logits", "features", "head", "labels"})
"""Inputs of detectors that can be exported; only a fit reads labels."""


class _Program(nn.Module):
    """Maps transformed images to decisions."""

    def __init__(self, module: OODModule, detector: Detector, decide: Decision) -> None:
        super().__init__()
        self.network, self.detector = module.network, detector
        self._read = module.outputs
        self.decide = decide

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return the decisions of a batch."""
        outputs = self._read(images, RunPlan())
        scores = self.detector.unchecked_score(outputs)
        # `Gate` raises an error instead. The images themselves are checked because max-pooling in ONNX runtimes can
        # ignore NaN, so that later activations are finite.
        is_known = _is_finite(images)
        if outputs.features is not None and "features" in self.detector.required_needs:
            is_known &= _is_finite(outputs.features)
        if outputs.logits is not None and "logits" in self.detector.required_needs:
            is_known &= _is_finite(outputs.logits.masked_fill(outputs.logits == -math.inf, 0.0))
        scores = scores.masked_fill(~is_known, math.nan)
        accepted, _, p_values = self.decide(scores, None if outputs.logits is None else outputs.predictions)
        found = {"accepted": is_known & accepted, "score": scores}
        if outputs.logits is not None:
            found |= {"class_index": outputs.predictions, "probability": outputs.max_probabilities}
        if self.decide.calibration is not None:
            found["p_value"] = p_values
        return {name: value.detach() for name, value in found.items()}


def _is_finite(values: Tensor) -> Tensor:
    """Return for each image whether all its values are finite, shape (batch,)."""
    return values.flatten(1).isfinite().all(dim=1)


def _with_plain_scalars(detector: Detector) -> Detector:
    """Copy a detector with the same tensors, but with integers and booleans as plain values, which a trace can use."""
    copied = copy.deepcopy(detector, {id(tensor): tensor for tensor in detector.buffers()})
    for part in copied.modules():
        for name, value in list(part.named_buffers(recurse=False)):
            if value.ndim == 0 and not value.dtype.is_floating_point:
                delattr(part, name)
                setattr(part, name, value.item())
    return copied


def export_program(
    module: OODModule, detector: Detector, calibration: Calibration | None, record: GateRecord, file: Path
) -> None:
    """Trace a gate and write the program: ONNX if the file name ends in .onnx, `torch.export` if it ends in .pt2.

    Raises:
        InvalidArgumentError: The name has another ending, or is that of a folder.
        MissingExtraError: The packages that write ONNX are not installed.
        RequirementError: The detector reads more than logits and features, or the gate cannot be traced.
    """
    if file.suffix.lower() not in (".onnx", ".pt2") or file.is_dir():
        raise InvalidArgumentError(
            "Gate.export: expected a file name that ends in .pt2 (a torch.export program) or .onnx, got"
            f" {'the folder ' if file.is_dir() else ''}{str(file)!r}"
        )
    as_onnx = file.suffix.lower() == ".onnx"
    if as_onnx and any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise MissingExtraError.of("Gate.export to an .onnx file", "onnx")
    if missing := sorted(detector.required_needs - EXPORTABLE):
        raise RequirementError(
            "Gate.export: an exported program passes only logits and features to the detector, but"
            f" {detector!r} also reads {', '.join(missing)}; choose another detector, or use gate.save"
        )
    if record.precision != "32-true":
        raise RequirementError(
            f"Gate.export: expected a run in precision '32-true', got {record.precision!r}; evaluate again in"
            " precision '32-true'"
        )
    file.parent.mkdir(parents=True, exist_ok=True)  # fails before the trace, which takes time
    example = torch.linspace(-1, 1, 3).view(3, *[1] * len(record.backbone.input_shape))
    example = example.expand(3, *record.backbone.input_shape).clone().to(module.device)
    used = copy.deepcopy(calibration) if record.threshold.kind in ALPHA else None
    decide = Decision(record.threshold, used, record.backbone.num_classes).to(module.device)
    traced = _Program(module, _with_plain_scalars(detector), decide).eval()
    with _quiet(), torch.no_grad():
        try:
            names = list(traced(example))  # detectors compute some tensors on their first score
            shapes = ({0: torch.export.Dim("batch")},)
            program = torch.export.export(traced, (example,), dynamic_shapes=shapes, strict=False)
            _forget_source(program)
            data = _as_onnx(program, names) if as_onnx else b""
        except Exception as error:  # torch.export raises many types of errors
            reason = (str(error).splitlines() or [""])[0]
            raise RequirementError(
                f"Gate.export: {detector!r} on {module.name} cannot be exported for all batch sizes and pixel values"
                f" ({type(error).__name__}: {reason:.100}); use gate.save{', or try .pt2' if as_onnx else ''}"
            ) from error
    with temporary_file(file) as temporary:
        with temporary.open("wb") as opened:
            if as_onnx:
                opened.write(data)
            else:
                torch.export.save(program, opened)
        fsync(temporary)
        temporary.replace(file)


def _forget_source(program: torch.export.ExportedProgram) -> None:
    """Remove the stack traces that torch keeps for each operation: they have paths and lines of the user's code."""
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)


def _as_onnx(program: torch.export.ExportedProgram, names: Sequence[str]) -> bytes:
    """Convert the program to one ONNX file, of at most 2 GB."""
    found = torch.onnx.export(program, dynamo=True, verbose=False, input_names=["images"], output_names=names)
    assert found is not None  # with dynamo=True
    return bytes(found.model_proto.SerializeToString())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the graphs that torch logs and prints when a trace fails; the error names the detector."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.ERROR))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
