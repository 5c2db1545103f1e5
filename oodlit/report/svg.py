"""Charts as inline SVG of the HTML page: they take the page's colours, light or dark, and stay sharp."""

import math
from collections.abc import Mapping

from markupsafe import Markup

from oodlit.report.headline import fpr_text
from oodlit.results.plots.charts import Curves, Estimate, Grid, Histogram, Line
from oodlit.results.plots.labels import short

_LEFT, _WIDTH, _RIGHT, _STEP = 230, 640, 60, 20
"""Room for names, length of a bar of 100 %, room for values, height of a row."""


def interval_bars(grid: Grid, detector: str) -> Markup:
    """Horizontal bars from 0 to 100 %, one row per class, with intervals as whiskers.

    Args:
        grid: Shares of classes, in the order shown, any number.
        detector: The column to show.

    Returns:
        An `<svg>` element; names are escaped.
    """
    height = _STEP * len(grid.classes) + 24
    out = [
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="FPR of each class">').format(
            _LEFT + _WIDTH + _RIGHT, height
        )
    ]
    tick = Markup(
        '<line x1="{x}" x2="{x}" y1="0" y2="{y}" stroke="var(--line)"/>'
        '<text x="{x}" y="{t}" text-anchor="middle" class="soft">{p:.0f} %</text>'
    )
    out += [
        tick.format(x=_LEFT + share * _WIDTH, y=height - 20, t=height - 6, p=100 * share)
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    column = grid.detectors.index(detector)
    for index, (name, row) in enumerate(zip(grid.classes, grid.cells, strict=True)):
        out.append(_bar(name, row[column], fpr_text(detector, name, row[column]), _STEP * index))
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def _bar(name: str, share: Estimate, title: str, y: int) -> Markup:
    out = [
        Markup('<g><title>{}</title><text x="{}" y="{}" text-anchor="end">{}</text>').format(
            title, _LEFT - 10, y + 14, f"{short(name)} ({share.n})"
        )
    ]
    if math.isnan(share.value):
        out.append(Markup('<text x="{}" y="{}" class="soft">undefined</text></g>').format(_LEFT + 6, y + 14))
        return Markup("").join(out)
    end = _LEFT + share.value * _WIDTH
    out.append(
        Markup('<rect x="{}" y="{}" width="{:.1f}" height="{}" rx="2" fill="var(--s1)" opacity=".8"/>').format(
            _LEFT, y + 3, max(share.value * _WIDTH, 1.0), _STEP - 6
        )
    )
    if not math.isnan(share.ci_low):
        low, high, middle = _LEFT + share.ci_low * _WIDTH, _LEFT + share.ci_high * _WIDTH, y + _STEP / 2
        end = max(end, high)
        out.append(
            Markup(
                '<path d="M{low:.1f} {m}H{high:.1f}M{low:.1f} {a}v8M{high:.1f} {a}v8" stroke="var(--ink)" fill="none"/>'
            ).format(low=low, high=high, m=middle, a=middle - 4)
        )
    out.append(Markup('<text x="{:.1f}" y="{}">{:.1f} %</text></g>').format(end + 8, y + 14, 100 * share.value))
    return Markup("").join(out)


def score_histogram(chart: Histogram) -> Markup:
    """The ID set filled, the others as outlines, each with area 1, and the threshold.

    The data set at position i of the chart has the colour `--s{i}` of the page; one without images is left out.

    Returns:
        An `<svg>` element; names are escaped.
    """
    width, height, bottom = 340.0, 120.0, 18
    top = max((max(shares) for shares in chart.shares if shares), default=0.0) or 1.0
    out = [
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="histogram of scores">').format(width, height + bottom)
    ]
    for index, (name, shares) in enumerate(zip(chart.datasets, chart.shares, strict=True)):
        steps = "".join(
            f"V{height - 0.94 * height * share / top:.1f}H{width * (place + 1) / len(shares):.1f}"
            for place, share in enumerate(shares)
        )
        style = 'fill="none" stroke="var(--s{i})" stroke-width="1.5"'
        if index == 0:
            style = 'fill="var(--s{i})" fill-opacity=".35" stroke="var(--s{i})"'
        if shares:
            out.append(
                Markup('<path d="M0 {h}{steps}V{h}" ' + style + "><title>{name}</title></path>").format(
                    h=height, steps=Markup(steps), i=index, name=name
                )
            )
    if not math.isnan(chart.position):
        out.append(
            Markup(
                '<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{h}" stroke="var(--ink)" stroke-dasharray="4 3">'
                "<title>threshold {t:.6g}</title></line>"
            ).format(x=width * chart.position, h=height, t=chart.threshold)
        )
    low, note, high = chart.labels
    out.append(
        Markup(
            '<line x1="0" x2="{w}" y1="{h}" y2="{h}" stroke="var(--soft)"/>'
            '<text x="0" y="{t}" class="soft">{low}</text>'
            '<text x="{w}" y="{t}" text-anchor="end" class="soft">{high}</text>'
            '<text x="{m}" y="{t}" text-anchor="middle" class="soft">{note}</text></svg>'
        ).format(m=width / 2, w=width, h=height, t=height + 14, low=low, high=high, note=note)
    )
    return Markup("").join(out)


def level_curves(chart: Curves, colours: Mapping[str, str]) -> Markup:
    """Curves over the levels of a pool: some in the page's colours, the others grey, bands behind them.

    Args:
        chart: Values in 0..1; its ticks are the levels.
        colours: Names of the page's colours by label of a line.

    Returns:
        An `<svg>` element; names are escaped.
    """
    width, height, left, bottom, top = 900.0, 330.0, 46.0, 24.0, 1.0
    steps = max(len(chart.ticks) - 1, 1)

    def place(x: float, y: float) -> str:
        down = (top - y) / max(top - chart.bottom, 1e-9)
        return f"{left + x / steps * (width - left - 10):.1f} {8 + down * (height - bottom - 8):.1f}"

    def path(line: Line) -> str:
        defined = [place(x, y) for x, y in zip(line.x, line.y, strict=True) if not math.isnan(y)]
        return "M" + "L".join(defined) if defined else ""

    out = [
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(int(width), int(height), chart.y_label)
    ]
    grid = 0.1 if top - chart.bottom <= 0.5 else 0.2
    for number in range(math.floor((top - chart.bottom) / grid + 1e-9) + 1):
        y = top - number * grid
        row = float(place(0, y).split()[1])
        out.append(
            Markup(
                '<line x1="{l}" x2="{w}" y1="{y}" y2="{y}" stroke="var(--line)"/>'
                '<text x="{t}" y="{b}" text-anchor="end" class="soft">{p:.0f} %</text>'
            ).format(l=left, w=width - 10, y=row, t=left - 8, b=row + 4, p=100 * y)
        )
    for x, text in chart.ticks:
        column = float(place(x, 0).split()[0])
        out.append(
            Markup('<text x="{}" y="{}" text-anchor="middle" class="soft">{}</text>').format(column, height - 4, text)
        )
    for band in chart.bands:
        upper = [place(x, y) for x, y in zip(band.x, band.high, strict=True)]
        lower = [place(x, y) for x, y in zip(band.x, band.low, strict=True)]
        out.append(
            Markup('<path d="M{}Z" fill="var(--soft)" fill-opacity=".18"><title>{}</title></path>').format(
                "L".join([*upper, *reversed(lower)]), band.label
            )
        )
    grey, coloured = ([line for line in chart.lines if (line.label in colours) is wanted] for wanted in (False, True))
    for line in [*grey, *reversed(coloured)]:  # the best on top
        if not (drawn := path(line)):
            continue
        colour = colours.get(line.label)
        style = f'stroke="var({colour})" stroke-width="2.2"' if colour else 'stroke="var(--soft)" stroke-opacity=".35"'
        out.append(
            Markup('<path d="{}" fill="none" ' + style + "><title>{}</title></path>").format(drawn, line.label.strip())
        )
    out.append(Markup("</svg>"))
    return Markup("").join(out)
