"""`oodlit guard`: limits for a finished run, for continuous integration."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oodlit.errors import UsageError

if TYPE_CHECKING:
    from oodlit.results import Results
    from oodlit.results.limits import Limit


def guard(
    results: Path, *, fail_if: list[str] | None = None, limits: Path | None = None, allow_unfinished: bool = False
) -> int:
    """Hold a finished run to limits.

    The exit code is 1 if a value crosses one; each is shown with its interval and with the images concerned. A name
    that the run does not have, a value that is undefined, or a run that broke off, is an error with exit code 2, and
    never a pass.

    Args:
        results: folder of the results
        fail_if: "DETECTOR: METRIC [on DATASET[/CLASS]] > NUMBER", with > >= < or <=; can be given several times;
            DETECTOR can be "model" (values of the classifier) or "*" (every detector)
        limits: YAML file with a list of these under fail_if
        allow_unfinished: hold what a run that broke off had finished to the limits
    """
    if fail_if is None and limits is None:
        raise UsageError("--fail_if or --limits is needed")
    from oodlit.results.finished import load_complete
    from oodlit.results.limits import Limit, read_limits

    every = [*map(Limit.of, fail_if or ()), *(read_limits(limits) if limits is not None else ())]
    return hold(load_complete(results, allow_unfinished=allow_unfinished), every)


def hold(results: "Results", limits: "Sequence[Limit]") -> int:
    """Say which limits the results of a run cross.

    Returns:
        The exit code: 1 if one is crossed.
    """
    from oodlit.cli.console import say
    from oodlit.results.files.unfinished import interruption
    from oodlit.results.limits import crossings, describe_check

    found = crossings(results, limits)
    for limit in limits:
        say(describe_check(results, limit))
    for crossing in found:
        say(f"FAILED {crossing}")
    if not found:
        reach = ", as far as the run came" if interruption(results.run) else ""
        say(f"Within {'the limit' if len(limits) == 1 else f'all {len(limits)} limits'}{reach}")
    return int(bool(found))
