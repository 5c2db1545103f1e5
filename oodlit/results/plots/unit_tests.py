"""FPR on synthetic unit tests."""

from collections.abc import Sequence

from oodlit.base.roles import Role
from oodlit.results.plots.charts import Grid
from oodlit.results.plots.labels import pretty
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.select import chosen_detectors, chosen_set, estimates
from oodlit.results.run_results import RunResults


@Plot
def unit_tests(results: RunResults, dataset: str | None = None, *, detectors: Sequence[str] | None = None) -> Grid:
    """Heat map of the FPR on synthetic unit tests; failed tests are red, passed ones blue.

    Args:
        results: The results.
        dataset: A set of unit tests; None = the first.
        detectors: Names of detectors; None = all.

    Returns:
        The figure, with the number of failed tests beside each detector.

    Raises:
        UnknownNameError: The results have no such data set or detector.
        InvalidArgumentError: There are no unit tests.
    """
    info = chosen_set(results, dataset, Role.UNIT_TEST)
    names = chosen_detectors(results, detectors)
    fpr, limit = results.settings.fpr_name, results.settings.unit_test_limit
    shares, failed = (estimates(results, info.name, metric) for metric in (fpr, "unit_test_failures"))
    tests = [name for name in info.class_names or ("",) if (names[0], name) in shares]
    return Grid(
        f"{pretty(fpr)} on {info.name}: tests above {100 * limit:g} % (red) fail",
        tuple(name or info.name for name in tests),
        tuple(names),
        tuple(tuple(shares[detector, name] for detector in names) for name in tests),
        tuple(failed[detector, ""] for detector in names),
        limit,
    )
