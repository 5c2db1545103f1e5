"""What was measured: data, detectors, remarks, and the record of the run."""

import json
from collections.abc import Iterator

from oodlit.report.record import about, catalogue_row, data_rows, remarks
from oodlit.report.section import Section, Shown


def sections(shown: Shown) -> Iterator[Section]:
    """One, of every run."""
    results = shown.results
    content = {
        "not_applicable": sorted(dict(results.run.get("not_applicable") or {}).items()),
        "data": data_rows(results, shown.lookup),
        "catalogue": [catalogue_row(results, name) for name in shown.detectors],
        "remarks": remarks(results),
        "about": about(results),
        "raw": json.dumps(results.run, indent=1, default=str, ensure_ascii=False),
    }
    yield Section("measured", "What was measured", "what was measured", "measured.html", content)
