"""Restore the progress of an earlier, interrupted start of a run."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from oodlit.base.errors import OodlitError
from oodlit.base.plan import RunPlan
from oodlit.base.processes.distributed import Group, gather_objects
from oodlit.base.roles import Role
from oodlit.datamodules.pipelines.source import PipelineSource
from oodlit.datamodules.stream import Stream
from oodlit.detectors import load
from oodlit.runs.choice import Choice
from oodlit.runs.datasets import train_name
from oodlit.runs.folder import OutputFolder
from oodlit.runs.journal import TRAINING, Kept
from oodlit.scoring.clock import latest


@dataclass
class Resumed:
    """Progress of an earlier start.

    Args:
        has_fit: Whether the detectors are fitted.
        training: Statistics of a part of the training images of this process.
        rows: Rows of test images of this process, by data set.
        over: Data sets of which this process has all its rows.
        failed: Detectors that were left out, with the reason.
        float64: Detectors that score in float64.
        done: Batches of this process that are in, by stream; it grows during the run.
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
        """Count one more finished batch of a stream."""
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
    """Return the restored progress of this process, and choice and plan of the rest. All processes must call it.

    Args:
        kept: What this process had, by stream.
        choice: What the run is made of.
        plan: What it asks for.
        streams: All streams of the run.
        output: Its folder.
        group: The processes.
        within: Whether streams can resume in their middle.
    """
    pipelines = {s.name for s in streams if isinstance(s.source, PipelineSource)}  # they cannot start in their middle
    has_fit, choice, left_out = _fit(kept, choice, streams, output, group)
    if has_fit:
        rows = {n: one for n, one in kept.items() if n not in pipelines | {TRAINING} and (one.is_over or within)}
        found, by_all = _scored(rows, left_out, streams, group)
        finished = by_all | {stream.name for stream in streams if stream.role is Role.TRAIN}
    else:
        found, finished = _training(kept, streams, pipelines, within=within), plan.finished
    found.time = latest(one.state["time"] for one in kept.values() if "time" in one.state)
    return found, choice, replace(plan, finished=finished, done=dict(found.done))


def _fit(
    kept: Mapping[str, Kept], choice: Choice, streams: Sequence[Stream], output: OutputFolder, group: Group
) -> tuple[bool, Choice, dict[str, str]]:
    """Whether all processes resume with a fit; the choice with that fit, and why detectors are missing from it."""
    record, train = output.kept_record(), train_name(streams)
    is_same = record is not None and record.key == output.progress.digest
    fits = gather_objects(group, is_same and output.kept_fit is not None)
    has_fit = fits[0] and (not train or all(gather_objects(group, train in kept)))
    if not has_fit or record is None:
        return False, choice, {}
    try:
        fitted, left_out = _with_fit(choice, output, record.not_applicable)
    except OodlitError:  # the fit is damaged: it is made again
        fitted, left_out, has_fit = choice, {}, False
    return (True, fitted, left_out) if all(gather_objects(group, has_fit)) else (False, choice, {})


def _training(kept: Mapping[str, Kept], streams: Sequence[Stream], pipelines: Set[str], *, within: bool) -> Resumed:
    """Progress of this process before the fit: statistics of a part of the training streams."""
    can_resume = within and not any(s.name in pipelines for s in streams if s.role is Role.TRAIN)
    training = kept.get(TRAINING) if can_resume else None
    done = dict(training.state["batches"]) if training else {}
    return Resumed(training=training, done=done, text=_text(done))


def _scored(
    rows: dict[str, Kept], left_out: Mapping[str, str], streams: Sequence[Stream], group: Group
) -> tuple[Resumed, frozenset[str]]:
    """Progress of this process after the fit, and the streams that all processes have scored."""
    tests = [stream.name for stream in streams if stream.role is not Role.TRAIN]
    over = frozenset(name for name, one in rows.items() if one.is_over)
    by_all = frozenset.intersection(*gather_objects(group, over)) & set(tests)
    if by_all == set(tests):  # Lightning wants to read something
        last = {tests[-1]}
        by_all, over = by_all - last, over - last
        rows = {name: one for name, one in rows.items() if name not in last}
    done = {name: one.batches for name, one in rows.items() if name in tests}
    failed = dict(left_out)
    for one in rows.values():
        failed |= one.state["failed"]
    float64 = frozenset(name for one in rows.values() for name in one.state["float64"])
    found = Resumed(
        has_fit=True, rows=rows, over=over, failed=failed, float64=float64, done=done, text=_text(done, "the fit")
    )
    return found, by_all


def _with_fit(choice: Choice, output: OutputFolder, reasons: Mapping[str, str]) -> tuple[Choice, dict[str, str]]:
    """The choice with the fitted detectors, and why the fits of the remaining detectors failed."""
    assert output.kept_fit is not None
    fitted, origin = load(output.kept_fit)
    left_out = {name: reasons.get(name, "failed before") for name in choice.detectors if name not in fitted}
    detectors = {name: fitted.get(name, detector) for name, detector in choice.detectors.items()}
    return replace(choice, detectors=detectors, kept=frozenset(detectors), earlier=origin), left_out


def position_text(resumed: Resumed, streams: Sequence[Stream], batch_size: int, group: Group) -> str:
    """Describe where a resumed run continues: the image in the first stream that is not complete.

    All processes must call it.

    Returns:
        For example "continuing with image 3,937 of 50,000 in val"; empty if no stream was begun.
    """
    of_all = gather_objects(group, (resumed.done, resumed.over, resumed.has_fit))
    for stream in streams:
        if all(stream.name in over or (fit and stream.role is Role.TRAIN) for _, over, fit in of_all):
            continue
        batches = sum(done.get(stream.name, 0) for done, _, _ in of_all)
        if batches:
            image = min(batches * batch_size + 1, len(stream))
            return f"continuing with image {image:,} of {len(stream):,} in {stream.name}"
    return ""


def _text(done: Mapping[str, int], *others: str) -> str:
    """Describe the restored progress.

    Example:
        >>> _text({"val": 3, "far": 1}, "the fit")
        'the fit, 3 batches of val, 1 of far'
        >>> _text({"val": 1})
        '1 batch of val'
    """
    counts = [
        f"{n} {'' if i else 'batch ' if n == 1 else 'batches '}of {name}" for i, (name, n) in enumerate(done.items())
    ]
    return ", ".join([*others, *counts])
