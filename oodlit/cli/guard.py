"""`oodlit guard`: check a finished run against limits, for continuous integration."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oodlit.base.errors import DataError, InvalidArgumentError, UsageError

if TYPE_CHECKING:
    from oodlit.results import Results
    from oodlit.results.limits import Limit


def guard(
    results: list[Path], *, fail_if: list[str] | None = None, limits: Path | None = None, allow_unfinished: bool = False
) -> int:
    """Check finished runs against limits.

    A limit is "DETECTOR: METRIC [on DATASET[/CLASS]] > NUMBER", with >, >=, < or <=. The check fails if the comparison
    is true. DETECTOR can also be "model" (values of the classifier) or "*" (every requested detector). Each
    crossed limit is printed with the value, its interval and the images that caused it. The exit code is 1 if a limit
    is crossed. It is 2 if a name is unknown, a value is undefined, or the results are missing, damaged, unfinished or
    from a trial.

    Args:
        results: folders of results; each is checked
        fail_if: a limit; repeatable
        limits: YAML file with a list of limits under fail_if
        allow_unfinished: accept an interrupted run or a trial (--max_batches)
    """
    if fail_if is None and limits is None:
        raise UsageError("missing required option: --fail_if or --limits")
    from oodlit.results.finished import load_complete
    from oodlit.results.limits import Limit, read_limits

    every = [*map(Limit.of, fail_if or ()), *(read_limits(limits) if limits is not None else ())]
    try:
        loaded = {folder: load_complete(folder, allow_unfinished=allow_unfinished) for folder in results}
    except (DataError, OSError) as error:  # not 1, which says that a limit is crossed
        raise InvalidArgumentError(f"no limit was checked: {error}") from error
    return max(check(run, every, name=str(folder) if results[1:] else "") for folder, run in loaded.items())


def check(results: "Results", limits: "Sequence[Limit]", *, name: str = "") -> int:
    """Print which limits the results of a run exceed, below the name of the run if there is one.

    Returns:
        The exit code: 1 if any is exceeded.
    """
    from oodlit.cli.console import say
    from oodlit.results.files.unfinished import interruption
    from oodlit.results.limits import crossings, describe_check, priors_of

    if priors := set(priors_of(limits)) - set(results.settings.priors):  # risks at fractions that the run did not use
        results = results.recompute(prior=[*results.settings.priors, *sorted(priors)])
    found = crossings(results, limits)
    if name:
        say(f"{name}:")
    for limit in limits:
        say(describe_check(results, limit))
    for crossing in found:
        say(f"FAILED {crossing}")
    if not found:
        part = "finished part of the run" if interruption(results.run) else "images of the trial"
        reach = f", for the {part}" if interruption(results.run) or results.run.dry_run else ""
        say(f"Within {'the limit' if len(limits) == 1 else f'all {len(limits)} limits'}{reach}")
    return int(bool(found))
