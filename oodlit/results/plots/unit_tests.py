"""FPR on synthetic unit tests."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from oodlit.results.plots.heat_map import heat_map
from oodlit.results.plots.select import chosen_detectors, grouped_set
from oodlit.results.plots.style import pretty, shown
from oodlit.roles import Role

if TYPE_CHECKING:
    from oodlit.results import Results

__all__ = ["unit_tests"]


def unit_tests(results: "Results", dataset: str | None = None, *, detectors: Sequence[str] | None = None) -> Figure:
    """Heat map of the FPR on synthetic unit tests; failed tests are red, passed ones blue.

    Args:
        results: The results.
        dataset: A set of unit tests; None = the first.
        detectors: Which detectors; None = all.

    Returns:
        The figure, with the number of failed tests beside each detector.

    Raises:
        UnknownNameError: A name is not in the results.
        InvalidArgumentError: There are no unit tests.
    """
    info = grouped_set(results, dataset, Role.UNIT_TEST)
    names = chosen_detectors(results, detectors)
    values = results.per_class(info.name).drop(columns="n")[names]
    table = results.table
    rows = table[(table["dataset"] == info.name) & (table["metric"] == "unit_test_failures")].set_index("detector")
    labels = [f"{shown(name)}  ({rows['value'][name]:g} failed)" for name in names]
    limit = results.settings.unit_test_limit
    title = f"{pretty(results.settings.fpr_name)} on {shown(info.name)}: red above {100 * limit:g} % = failed"
    return heat_map(values.T, labels, [shown(str(n)) for n in values.index], title, limit=limit)
