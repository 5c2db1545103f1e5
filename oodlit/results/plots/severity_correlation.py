"""Correlation between levels: do models keep their order?"""

from collections.abc import Sequence

from oodlit.base.errors import InvalidArgumentError
from oodlit.base.roles import Role
from oodlit.results.comparing.correlation import level_correlation
from oodlit.results.plots.charts import Matrix
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.select import chosen_detectors, chosen_models, chosen_set
from oodlit.results.run_results import RunResults


@Plot
def severity_correlation(
    results: RunResults | Sequence[RunResults],
    dataset: str | None = None,
    *,
    detectors: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Matrix:
    """Spearman's correlation of the AUROC between the levels of a pool, over the models of several results.

    Args:
        results: Results of several models on the same pool; for one model, the correlation is over its detectors.
        dataset: A pool; None = the first of the first results.
        detectors: Detectors of all models; None = the first common one, or for one model all.
        names: Name of each model; None = `run.backbone.name`, or its position.

    Returns:
        The figure.

    Raises:
        UnknownNameError: The results have no such data set or detector.
        InvalidArgumentError: There are fewer than two curves, the pools differ, there is no common detector, or the
            number of names is wrong.
    """
    titles, models = zip(*chosen_models("severity_correlation", results, names), strict=True)
    info = chosen_set(models[0], dataset, Role.POOL)
    chosen = chosen_detectors(models[0], detectors)
    if detectors is None and len(models) > 1:
        chosen = [name for name in chosen if all(name in model.detectors for model in models)][:1]
        if not chosen:
            fix = "evaluate all models with at least one common detector"
            raise InvalidArgumentError(f"severity_correlation: the results have no detector in common; {fix}")
    runs = {title if titles.count(title) == 1 else f"{title} ({i + 1})": models[i] for i, title in enumerate(titles)}
    table = level_correlation(runs, info.name, chosen)
    cells = tuple(tuple(float(value) for value in row) for row in table.to_numpy())
    over = f"{len(models)} models" if len(models) > 1 else f"{len(chosen)} detectors"
    which = chosen[0] if len(chosen) == 1 else "AUROC"
    return Matrix(f"{info.name}, {which}: rank correlation of levels over {over}", tuple(map(str, table.index)), cells)
