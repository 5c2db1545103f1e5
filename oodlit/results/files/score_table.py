"""Validation of per-image scores."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from oodlit.base.errors import DataError, InvalidArgumentError, NonFiniteScoreError, UnknownNameError
from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.metrics.numerics.ranking import to_float64
from oodlit.results.files.class_sums import ESTIMATES
from oodlit.results.info import DatasetInfo
from oodlit.results.names import MODEL, check_name

IDENTITY = ("key", "dataset", "group", "label", "prediction")
"""Columns of the per-image table that are not scores."""
_RESERVED = (MODEL, "n")
"""Names in tables that detectors must not have: the classifier alone, and the number of images of a class."""


def checked(scores: pd.DataFrame, datasets: Sequence[DatasetInfo], detectors: Sequence[str]) -> pd.DataFrame:
    """Validate the per-image table; return it with ordered columns, sorted by data set (as declared) and key.

    Columns of any type (categories, nullable, Arrow) become text, int64 and float.

    Raises:
        InvalidArgumentError: A column is missing, occurs twice or has a wrong type.
        UnknownNameError: A row belongs to a data set that is not declared.
        DataError: A key occurs twice in a data set, or a group is out of range.
        NonFiniteScoreError: A score is NaN.
    """
    check_detector_names(detectors)
    if twice := sorted({str(n) for n in scores.columns[scores.columns.duplicated()]} & {*IDENTITY, *detectors}):
        raise InvalidArgumentError(f"scores: columns must occur once, but these are repeated: {', '.join(twice)}")
    if missing := [name for name in (*IDENTITY, *detectors) if name not in scores.columns]:
        raise InvalidArgumentError(f"scores: missing columns {', '.join(missing)}; found {', '.join(map(str, scores))}")
    names = [info.name for info in datasets]
    frame = scores[[*IDENTITY, *detectors]].copy()
    for name in IDENTITY[:2]:
        frame[name] = _text_column(frame, name)
    for name in frame["dataset"].unique():
        UnknownNameError.check("data set in the scores", str(name), names)
    for name in IDENTITY[2:]:
        if not pd.api.types.is_integer_dtype(frame[name]) and len(frame):
            wish = "expected integers, with -1 for missing values"
            raise InvalidArgumentError(f"scores: column {name!r} is {frame[name].dtype}; {wish}")
        if empty := int(frame[name].isna().sum()):
            raise InvalidArgumentError(f"scores: column {name!r} is empty in {empty} rows; use -1 for missing values")
        frame[name] = frame[name].astype(np.int64)
    trained = frame["dataset"].isin([info.name for info in datasets if info.role is Role.TRAIN])
    for name in detectors:
        frame[name] = _float_column(frame, name, trained)
    rank = frame["dataset"].map({name: index for index, name in enumerate(names)}).to_numpy(dtype=np.int64)
    order = frame["key"].argsort(kind="stable").to_numpy()
    frame = frame.iloc[order[rank[order].argsort(kind="stable")]].reset_index(drop=True)
    _check_keys(frame)
    for info in datasets:
        _check_groups(frame, info)
    return frame


def check_detector_names(names: Collection[object]) -> None:
    """Reject names that cannot be columns of scores.

    Raises:
        InvalidArgumentError: A name is not one line of text, occurs twice, or is reserved.
    """
    for name in names:
        check_name(name, "detector")
    if twice := sorted({str(name) for name in names if [*names].count(name) > 1}):
        raise InvalidArgumentError(f"detector names must be distinct, but these are repeated: {', '.join(twice)}")
    if taken := sorted({*IDENTITY, *_RESERVED}.intersection(map(str, names))):
        raise InvalidArgumentError(f"reserved detector names: {', '.join(taken)}; choose other names")


def checked_estimates(
    estimates: pd.DataFrame | None, datasets: Sequence[DatasetInfo], detectors: Sequence[str]
) -> pd.DataFrame | None:
    """Validate the severities of all pools; return one row per pool, detector and class, or None without a pool.

    Raises:
        InvalidArgumentError: There is a pool but no table, or a column or a row is missing.
    """
    pools = [info for info in datasets if info.role is Role.POOL]
    if not pools or not detectors:
        return None
    if estimates is None:
        raise InvalidArgumentError(
            f"pool {pools[0].name!r}: the severities of the classes are missing; pass estimates=... with the content"
            " of the run's file estimates.parquet"
        )
    if missing := [name for name in ESTIMATES if name not in estimates.columns]:
        raise InvalidArgumentError(f"estimates: no column {', '.join(missing)}; found {', '.join(map(str, estimates))}")
    needed = [(info.name, detector, name) for info in pools for detector in detectors for name in info.class_names]
    index = pd.MultiIndex.from_arrays([estimates[n] for n in ("dataset", "detector", "ood_class")])
    if not index.is_unique:
        first = " / ".join(map(str, index[index.duplicated()][0]))
        raise InvalidArgumentError(f"estimates: row {first} occurs twice; expected one per pool, detector and class")
    places = index.get_indexer(pd.MultiIndex.from_tuples(needed))
    if (places < 0).any():
        first = " / ".join(map(str, needed[int((places < 0).argmax())]))
        raise InvalidArgumentError(f"estimates: missing row {first}; expected one per pool, detector and class")
    return estimates.iloc[places][list(ESTIMATES)].reset_index(drop=True)


def count_notes(counts: Mapping[str, int], datasets: Sequence[DatasetInfo]) -> list[str]:
    """One note per data set with another number of scored images than expected."""
    return [
        f"data set {info.name!r} has {info.num_samples} images, but {int(counts.get(info.name, 0))} were scored"
        for info in datasets
        if info.num_samples is not None and info.num_samples != counts.get(info.name, 0)
    ]


def _text_column(frame: pd.DataFrame, name: str) -> pd.Series:
    column = frame[name]
    if missing := int(column.isna().sum()):
        where = f"{missing} of {len(column)} rows; expected text in every row"
        raise InvalidArgumentError(f"scores: column {name!r} is empty in {where}")
    values = column.to_numpy(dtype=object)
    if other := [value for value in values if not isinstance(value, str)]:
        raise InvalidArgumentError(
            f"scores: expected text in column {name!r}, got other values in {len(other)} rows, such as {other[0]!r}"
        )
    return pd.Series(values, index=column.index).astype("str")


def _float_column(frame: pd.DataFrame, detector: str, trained: pd.Series) -> pd.Series:
    column = frame[detector]
    if not pd.api.types.is_float_dtype(column):
        if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_complex_dtype(column):
            raise InvalidArgumentError(f"scores: column {detector!r} is {column.dtype}; expected numbers")
        rounded = column.astype(np.float64)
        # Integers that become equal by rounding would count as ties.
        if len(rounded) and rounded.abs().max() > 2**53 - 1:
            wish = f"expected integers below 2**53 in column {detector!r}, because float64 rounds larger ones"
            raise InvalidArgumentError(f"scores: {wish}; rescale the scores")
        column = rounded
    elif column.dtype not in (np.float32, np.float64):
        if isinstance(column.dtype, np.dtype) and column.dtype.itemsize > 8:
            column = pd.Series(to_float64(column.to_numpy(), f"scores: column {detector!r}"), index=column.index)
        column = column.astype(np.float32 if column.dtype == np.float16 else np.float64)
    nans = column.isna()
    if nans[trained].all():  # training images were not scored, which is noted
        nans = nans & ~trained
    if nans.any():
        bad = frame[nans]
        where = ", ".join(f"{count} in {name!r}" for name, count in bad["dataset"].value_counts(sort=False).items())
        raise NonFiniteScoreError(
            f"detector {detector!r} returned NaN for {len(bad)} of {len(frame)} images ({where}); first keys:"
            f" {', '.join(sorted(bad['key'])[:5])}. Scores with NaN cannot be ranked; fix or leave out the detector"
        )
    return column


def _check_keys(frame: pd.DataFrame) -> None:
    double = frame[frame.duplicated(["dataset", "key"])]
    if len(double):
        raise DataError(
            f"scores: repeated keys: {len(double)} (first: {', '.join(double['key'].unique()[:5])});"
            " every image must occur once. Check that no shard is listed twice or read by two processes"
        )


def _check_groups(frame: pd.DataFrame, info: DatasetInfo) -> None:
    if not info.class_names or info.role in NAMES_OF_LABELS:
        return
    rows = frame[frame["dataset"] == info.name]
    wrong = rows[(rows["group"] < 0) | (rows["group"] >= len(info.class_names))]
    if len(wrong):
        raise DataError(
            f"scores: expected column 'group' of data set {info.name!r} to contain indices of its class names (0 to"
            f" {len(info.class_names) - 1}), got others in {len(wrong)} of {len(rows)} rows (first:"
            f" {wrong['key'].iloc[0]}, group {wrong['group'].iloc[0]})"
        )
