"""Names of detectors for readers, such as "Mahalanobis++" instead of `mahalanobis_plus_plus`."""

from oodlit.results.run_record import RunRecord


def display_names(run: RunRecord) -> dict[str, str]:
    """Return a name for readers for every detector of a run.

    A detector with its default name has the display name of its class: `display_name` of the class if the run recorded
    one, else the name of the class. Names that the user chose stay. All names are distinct.

    Args:
        run: The record of the run.

    Returns:
        By name in the results, the name for pages, figures and exported tables.

    Example:
        >>> plus = {"class_path": "oodlit.detectors.MahalanobisPlusPlus"}
        >>> names = ["mahalanobis_plus_plus", "mine"]
        >>> display_names(RunRecord.of({"detectors": names, "detector_settings": dict.fromkeys(names, plus)}))
        {'mahalanobis_plus_plus': 'Mahalanobis++', 'mine': 'mine'}
    """
    found = {name: _display_name(run, name) for name in run.detectors}
    return {name: name if shown in found else shown for name, shown in found.items()}


def _display_name(run: RunRecord, name: str) -> str:
    config, overview = run.detector_settings.get(name), run.overview.get(name)
    kind = config.class_path.partition("[")[0].rpartition(".")[2] if config else ""
    if name.replace("_", "").lower() != kind.lower():
        return name
    return (overview.display_name if overview else "") or kind.replace("PlusPlus", "++")
