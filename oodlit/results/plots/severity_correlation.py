"""Whether models keep their order from level to level."""

from collections.abc import Sequence

from oodlit.errors import InvalidArgumentError
from oodlit.results.correlation import level_correlation
from oodlit.results.plots.charts import Matrix
from oodlit.results.plots.plot import Plot
from oodlit.results.plots.select import chosen_set, model_name
from oodlit.results.run_results import RunResults
from oodlit.roles import Role


@Plot
def severity_correlation(
    results: Sequence[RunResults],
    dataset: str | None = None,
    *,
    detector: str | None = None,
    names: Sequence[str] | None = None,
) -> Matrix:
    """Spearman's correlation of the AUROC between the levels of a pool, over the models of several results.

    Args:
        results: Results of at least two models on the same pool.
        dataset: A pool; None = the first of the first results.
        detector: A detector of all of them; None = the first that all have.
        names: Name of each model; None = `run["backbone"]["name"]`, or its position.

    Returns:
        The figure.

    Raises:
        UnknownNameError: A name is not in the results.
        InvalidArgumentError: There are fewer than two results, they are of different pools, share no detector, or the
            number of names is wrong.
    """
    models = [results] if isinstance(results, RunResults) else list(results)
    if len(models) < 2 or (names is not None and len(names) != len(models)):
        raise InvalidArgumentError(
            f"severity_correlation: {len(models)} results and {len(names or models)} names; at least two models are"
            " ranked, each with one name"
        )
    info = chosen_set(models[0], dataset, Role.POOL)
    common = [name for name in models[0].detectors if all(name in model.detectors for model in models)]
    if detector is None and not common:
        raise InvalidArgumentError("severity_correlation: the results have no detector in common")
    chosen = detector or common[0]
    titles = list(names) if names is not None else [model_name(m) or f"model {i + 1}" for i, m in enumerate(models)]
    runs = {title if titles.count(title) == 1 else f"{title} ({i + 1})": models[i] for i, title in enumerate(titles)}
    table = level_correlation(runs, info.name, chosen)
    cells = tuple(tuple(float(value) for value in row) for row in table.to_numpy())
    title = f"{info.name}, {chosen}: rank correlation of levels over {len(models)} models"
    return Matrix(title, tuple(map(str, table.index)), cells)
