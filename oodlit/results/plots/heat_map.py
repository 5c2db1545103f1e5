"""A table of shares as colours."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

__all__ = ["heat_map"]


def heat_map(
    values: pd.DataFrame, rows: Sequence[str], columns: Sequence[str], title: str, *, limit: float | None = None
) -> Figure:
    """Detectors as rows; every cell holds its value in percent."""
    width, height = 1.9 + 0.25 * len(columns), 1.7 + 0.24 * len(rows)
    figure = Figure(figsize=(max(width, 5.0), height), layout="constrained")
    axes = figure.subplots()
    shares = values.to_numpy(dtype=np.float64)
    colours: dict[str, Any] = {"cmap": "viridis_r", "vmin": 0, "vmax": 1}
    if limit is not None and 0 < limit < 1:
        colours = {"cmap": "RdBu_r", "norm": TwoSlopeNorm(limit, 0, 1)}
    image = axes.imshow(shares, aspect="auto", **colours)
    for (i, j), share in np.ndenumerate(shares):
        text = "-" if np.isnan(share) else f"{100 * share:.0f}"
        red, green, blue, _ = image.to_rgba(share)
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(j, i, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_xticks(range(len(columns)), columns, fontsize=7, rotation=60, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{title} (percent)", loc="left", fontsize=10)
    return figure
