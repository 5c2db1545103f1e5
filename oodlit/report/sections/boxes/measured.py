"""Report section for object results: data, detectors, notes, and run record."""

from collections.abc import Iterator

from oodlit.report.headline import percent_text
from oodlit.report.record import record_content
from oodlit.report.section import Section, ShownBoxes


def sections(shown: ShownBoxes) -> Iterator[Section]:
    """Yield one section."""
    results = shown.results
    columns = ("images", "boxes", "objects")
    sums = results.images.groupby("dataset")[["boxes", "objects"]].sum()
    rows = []
    for info in results.datasets:
        row = results.row("no_boxes", dataset=info.name)
        values = (row["n_images"], int(sums["boxes"].get(info.name, 0)), row["n_objects"])
        rows.append((info.name, str(info.role), values, (percent_text(row["value"]),)))
    data = {"counts": columns, "texts": ("without a box above t*",), "rows": rows}
    quality = [(name.partition("/")[2], percent_text(v)) for name, v in results.run.id_quality.items() if "/" in name]
    lists = [{"name": "AP50 of the known classes", "entries": quality}] if quality else []
    content = record_content(shown, data, results.run.ms_per_box, lists)
    yield Section("measured", "What was measured", "measured", "measured.html", content, is_folded=True)
