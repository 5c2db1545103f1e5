"""What was measured: data, detectors, remarks, and the record of the run."""

from collections.abc import Iterator

from oodlit.base.json_files import to_json
from oodlit.report.record import about, catalogue_row, data_rows, remarks
from oodlit.report.section import Section, Shown


def sections(shown: Shown) -> Iterator[Section]:
    """One, of every run."""
    results = shown.results
    content = {
        "not_applicable": sorted(results.run.not_applicable.items()),
        "data": data_rows(results, shown.lookup),
        "catalogue": [catalogue_row(results, name) for name in shown.detectors],
        "remarks": remarks(results),
        "about": about(results),
        "raw": to_json(results.run.entries()),
    }
    yield Section("measured", "What was measured", "what was measured", "measured.html", content)
