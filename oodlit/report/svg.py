"""Charts of the HTML page as inline SVG: they take the page's colours, light or dark, and stay sharp."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

__all__ = ["Bar", "Series", "interval_bars", "score_histogram"]


@dataclass(frozen=True)
class Bar:
    """One bar with its number of images and its interval; shares in [0, 1], NaN = undefined."""

    name: str
    n: int
    value: float
    low: float
    high: float
    title: str


@dataclass(frozen=True)
class Series:
    """Scores of one data set, and the CSS variable that colours them."""

    name: str
    scores: np.ndarray
    colour: str


def interval_bars(bars: Sequence[Bar]) -> Markup:
    """Horizontal bars from 0 to 100 %, one row each, with intervals as whiskers.

    Args:
        bars: In the order shown, any number.

    Returns:
        An `<svg>` element; names are escaped.
    """
    left, width, right, step = 230, 640, 60, 20
    height = step * len(bars) + 24
    out = [
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="FPR of each class">').format(
            left + width + right, height
        )
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = left + share * width
        out.append(
            Markup(
                '<line x1="{x}" x2="{x}" y1="0" y2="{y}" stroke="var(--line)"/>'
                '<text x="{x}" y="{t}" text-anchor="middle" class="soft">{p:.0f} %</text>'
            ).format(x=x, y=height - 20, t=height - 6, p=100 * share)
        )
    for index, bar in enumerate(bars):
        y = index * step
        out.append(
            Markup('<g><title>{}</title><text x="{}" y="{}" text-anchor="end">{}</text>').format(
                bar.title, left - 10, y + 14, f"{_shorten(bar.name, 29)} ({bar.n})"
            )
        )
        if math.isnan(bar.value):
            out.append(Markup('<text x="{}" y="{}" class="soft">undefined</text></g>').format(left + 6, y + 14))
            continue
        end = left + bar.value * width
        out.append(
            Markup('<rect x="{}" y="{}" width="{:.1f}" height="{}" rx="2" fill="var(--s1)" opacity=".8"/>').format(
                left, y + 3, max(bar.value * width, 1.0), step - 6
            )
        )
        if not math.isnan(bar.low):
            low, high, middle = left + bar.low * width, left + bar.high * width, y + step / 2
            end = max(end, high)
            out.append(
                Markup(
                    '<path d="M{low:.1f} {m}H{high:.1f}M{low:.1f} {a}v8M{high:.1f} {a}v8"'
                    ' stroke="var(--ink)" fill="none"/>'
                ).format(low=low, high=high, m=middle, a=middle - 4)
            )
        out.append(Markup('<text x="{:.1f}" y="{}">{:.1f} %</text></g>').format(end + 8, y + 14, 100 * bar.value))
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def score_histogram(inside: Series, others: Sequence[Series], threshold: float, *, bins: int = 48) -> Markup:
    """Histograms of the scores: ID filled, the others as outlines, each with area 1, and the threshold.

    The axis spans the central 99 % of all scores (and the threshold); what lies outside is counted in the end bins, so
    that a single extreme score does not squeeze the picture. Infinities are in the end bins as well.

    Args:
        inside: Scores of the ID images.
        others: Scores of the other sets; empty ones are left out.
        threshold: Acceptance threshold.
        bins: Number of bins.

    Returns:
        An `<svg>` element.
    """
    width, height, bottom = 340.0, 120.0, 18
    series = [one for one in (inside, *others) if len(one.scores)]
    axis = _Axis.fitting([one.scores for one in series], threshold)
    edges = np.linspace(0.0, 1.0, bins + 1)
    shares = {one.name: np.histogram(axis.positions(one.scores), edges)[0] / len(one.scores) for one in series}
    top = max((float(share.max()) for share in shares.values()), default=0.0) or 1.0
    out = [
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="histogram of scores">').format(width, height + bottom)
    ]
    for one in series:
        steps = "".join(
            f"V{height - 0.94 * height * share / top:.1f}H{width * (index + 1) / bins:.1f}"
            for index, share in enumerate(shares[one.name])
        )
        filled = one is inside
        style = (
            'fill="var({c})" fill-opacity=".35" stroke="var({c})"'
            if filled
            else 'fill="none" stroke="var({c})" stroke-width="1.5"'
        )
        out.append(
            Markup('<path d="M0 {h}{steps}V{h}" ' + style + "><title>{name}</title></path>").format(
                h=height, steps=Markup(steps), c=one.colour, name=one.name
            )
        )
    if math.isfinite(threshold):
        x = width * float(axis.positions(np.array([threshold]))[0])
        out.append(
            Markup(
                '<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{h}" stroke="var(--ink)" stroke-dasharray="4 3">'
                "<title>threshold {t:.6g}</title></line>"
            ).format(x=x, h=height, t=threshold)
        )
    out.append(
        Markup(
            '<line x1="0" x2="{w}" y1="{h}" y2="{h}" stroke="var(--soft)"/>'
            '<text x="0" y="{t}" class="soft">{low}</text>'
            '<text x="{w}" y="{t}" text-anchor="end" class="soft">{high}</text>'
            '<text x="{m}" y="{t}" text-anchor="middle" class="soft">{note}</text></svg>'
        ).format(
            m=width / 2,
            note=("compressed axis" if axis.scale else "") if axis.first is None else f"all at {_label(axis.first)}",
            w=width,
            h=height,
            t=height + 14,
            low=_label(axis.low) if axis.first is None else "",
            high=_label(axis.high) if axis.first is None else "",
        )
    )
    return Markup("").join(out)


@dataclass(frozen=True)
class _Axis:
    """From scores to positions in [0, 1]: linear, or compressed (asinh) where a few scores are very far away."""

    low: float
    high: float
    centre: float = 0.0
    scale: float = 0.0
    first: float | None = None
    """The only value, where all are equal."""

    @classmethod
    def fitting(cls, scores: Sequence[np.ndarray], threshold: float) -> "_Axis":
        finite = [values[np.isfinite(values)].astype(float) for values in scores]
        finite = [values for values in finite if len(values)]
        points = [float(end) for values in finite for end in np.quantile(values, (0.005, 0.995))]
        points += [threshold] if math.isfinite(threshold) else []
        low, high = (min(points), max(points)) if points else (0.0, 1.0)
        if not high > low:
            pad = max(abs(low), 1.0) * 0.5
            same = all(bool((values == low).all()) for values in scores)
            return cls(low - pad, high + pad, first=low if points and same else None)
        pad = 0.02 * (high - low)
        # the ends of the axis are shown as numbers: a probability must not seem to be able to be negative
        ends = [low, high, *(float(end) for values in finite for end in (values.min(), values.max()))]
        low, high = max(low - pad, min(ends)), min(high + pad, max(ends))
        middle = max((float(np.subtract(*np.quantile(values, (0.75, 0.25)))) for values in finite), default=0.0)
        compressed = 0 < middle < (high - low) / 25
        centre = threshold if math.isfinite(threshold) else (low + high) / 2
        return cls(low, high, centre, middle) if compressed else cls(low, high)

    def positions(self, values: np.ndarray) -> np.ndarray:
        inside = np.clip(values.astype(float), self.low, self.high)
        low, at, high = (self._moved(x) for x in (np.atleast_1d(self.low), inside, np.atleast_1d(self.high)))
        positions: np.ndarray = np.clip((at - low) / (high - low), 0.0, 1.0)
        return positions

    def _moved(self, values: np.ndarray) -> np.ndarray:
        return np.arcsinh((values - self.centre) / self.scale) if self.scale else values


def _label(value: float) -> str:
    return f"{value:.4g}"


def _shorten(name: str, limit: int) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"
