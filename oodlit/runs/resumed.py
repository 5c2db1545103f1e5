"""What a run takes over from an earlier start of itself that was killed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from oodlit.base.distributed import Group, gather_objects
from oodlit.base.plan import RunPlan
from oodlit.datamodules.pipelines.source import PipelineSource
from oodlit.datamodules.stream import Stream
from oodlit.detectors import load
from oodlit.errors import OodlitError
from oodlit.roles import Role
from oodlit.runs.choice import Choice
from oodlit.runs.datasets import train_name
from oodlit.runs.folder import OutputFolder
from oodlit.runs.journal import TRAINING, Kept
from oodlit.scoring.clock import latest


@dataclass
class Resumed:
    """What is there already.

    Args:
        has_fit: Whether the detectors are fitted.
        training: Statistics of a part of the training images of this process.
        rows: Rows of test images of this process, by data set.
        over: Data sets of which this process has all its rows.
        failed: Detectors that were left out, with the reason.
        float64: Detectors that score in float64.
        done: Batches of this process that are in, by stream; it grows as the run goes on.
        text: What was taken over, for the record; empty = nothing.
        time: What its clock showed when it last wrote; None where nothing of it is left.
    """

    has_fit: bool = False
    training: Kept | None = None
    rows: Mapping[str, Kept] = field(default_factory=dict)
    over: frozenset[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict)
    float64: frozenset[str] = frozenset()
    done: dict[str, int] = field(default_factory=dict)
    text: str = ""
    time: Mapping[str, Any] | None = None

    def count(self, stream: str) -> None:
        """One more batch of a stream is in."""
        self.done[stream] = self.done.get(stream, 0) + 1


def resume(
    kept: Mapping[str, Kept],
    choice: Choice,
    plan: RunPlan,
    streams: Sequence[Stream],
    output: OutputFolder,
    group: Group,
    *,
    within: bool,
) -> tuple[Resumed, Choice, RunPlan]:
    """What this process takes over, and choice and plan of the rest of the run. All processes call it.

    Args:
        kept: What this process had, by stream.
        choice: What the run is made of.
        plan: What it asks for.
        streams: All streams of the run.
        output: Its folder.
        group: The processes.
        within: Whether streams can go on in their middle.
    """
    pipelines = {s.name for s in streams if isinstance(s.source, PipelineSource)}  # they cannot start in their middle
    train = [s.name for s in streams if s.role is Role.TRAIN]
    time = latest(one.state["time"] for one in kept.values() if "time" in one.state)
    record = output.kept_record()
    is_same = record is not None and record.key == output.progress.digest
    fits = gather_objects(group, is_same and output.kept_fit is not None)
    has_fit = fits[0] and (not train or all(gather_objects(group, train_name(streams) in kept)))
    if has_fit and record is not None:
        try:
            choice, left_out = _with_fit(choice, output, record.not_applicable)
        except OodlitError:  # the fit is damaged: it is made anew
            has_fit, left_out = False, {}
        has_fit = all(gather_objects(group, has_fit))
    if not has_fit:
        training = kept.get(TRAINING) if within and not pipelines & set(train) else None
        done = dict(training.state["batches"]) if training else {}
        found = Resumed(training=training, done=done, text=_text(done), time=time)
        return found, choice, replace(plan, done=dict(done))
    rows = {n: k for n, k in kept.items() if n not in pipelines | {TRAINING} and (k.is_over or within)}
    over = frozenset(name for name, one in rows.items() if one.is_over)
    tests = [s.name for s in streams if s.role is not Role.TRAIN]
    by_all = frozenset.intersection(*gather_objects(group, over)) & set(tests)
    if by_all == set(tests):  # Lightning wants to read something
        by_all -= {tests[-1]}
        rows = {name: one for name, one in rows.items() if name != tests[-1]}
        over -= {tests[-1]}
    done = {name: one.batches for name, one in rows.items() if name in tests}
    failed = dict(left_out)
    for one in rows.values():
        failed |= one.state["failed"]
    found = Resumed(
        has_fit=True,
        rows=rows,
        over=over,
        failed=failed,
        float64=frozenset(name for one in rows.values() for name in one.state["float64"]),
        done=done,
        text=_text(done, "the fit"),
        time=time,
    )
    return found, choice, replace(plan, finished=by_all | set(train), done=dict(done))


def _with_fit(choice: Choice, output: OutputFolder, reasons: Mapping[str, str]) -> tuple[Choice, dict[str, str]]:
    """The choice with the fitted detectors, and why others were left out when they were fitted."""
    assert output.kept_fit is not None
    fitted, origin = load(output.kept_fit)
    left_out = {name: reasons.get(name, "failed before") for name in choice.detectors if name not in fitted}
    detectors = {name: fitted.get(name, detector) for name, detector in choice.detectors.items()}
    return replace(choice, detectors=detectors, kept=frozenset(detectors), earlier=origin), left_out


def _text(done: Mapping[str, int], *others: str) -> str:
    """What was taken over, in words.

    Example:
        >>> _text({"val": 3, "far": 1}, "the fit")
        'the fit, 3 batches of val, 1 of far'
    """
    counts = [
        f"{number} {'batches ' if not place else ''}of {name}" for place, (name, number) in enumerate(done.items())
    ]
    return ", ".join([*others, *counts])
