"""Rows of `oodlit list detectors`, from the detector classes.

They are packaged as `detectors.json`, so that listing them does not import torch. `python docs/site/detector_pages.py`
writes that file with the pages of the detectors, and tests/cli/test_detector_rows.py compares it with the classes.
"""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import oodlit.detectors
from oodlit.detectors import Detector, detectors, overview
from oodlit.detectors.contract.overview import READS
from oodlit.detectors.contract.registry import detector_plugins

FILE = Path(__file__).with_name("detectors.json")


def detector_rows() -> Iterator[dict[str, str]]:
    """Return one row per detector, sorted by what it reads, whether it is fitted, and its cost."""
    packages = detector_plugins().packages
    known = [(kind, overview(kind())) for kind in detectors().values()]
    known.sort(
        key=lambda pair: (
            pair[0].__name__ in packages,
            READS.index(pair[1].reads),
            pair[1].is_fitted,
            pair[1].cost != "closed form",
        )
    )
    for kind, about in known:
        paper = kind.reference
        yield {
            "group": f"plug-in {packages[kind.__name__]}" if kind.__name__ in packages else about.group,
            "key": kind.key(),
            "class": kind.__name__,
            "cost": about.cost,
            "tuned on OOD data": "default" if about.tuned else "presets" if kind.tuned_presets else "",
            "paper": f"{paper.authors}, {paper.venue} {paper.year}",
            "needs": ", ".join(sorted(kind.needs)),
            "training": ", ".join(s.__name__ for s in kind.statistics),
            "settings": _settings(kind) + _whose(about.tuned, kind()),
            **_presets(kind),
            "url": paper.url,
            "deviations": paper.deviations,
        }


def _settings(kind: type) -> str:
    every = inspect.signature(kind).parameters.values()
    parameters = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return ", ".join(str(p).split(":")[0] + (f"={p.default!r}" if p.default is not p.empty else "") for p in parameters)


def _whose(preset: str, detector: Detector) -> str:
    """Return the tuned preset that has these settings, except settings that follow from the data (None)."""
    if not preset:
        return ""
    free = [name for name in detector.presets.get(preset, ()) if detector.settings[name] is None]
    return f" (settings of preset {preset}{', except ' if free else ''}{' and '.join(free)})"


def _presets(kind: type[Detector]) -> dict[str, str]:
    """One line per preset with its settings, and a mark if it was tuned on OOD data."""
    lines = {}
    for name, given in kind.presets.items():
        tuned = " (tuned on OOD data)" if name in kind.tuned_presets else ""
        settings = kind.preset(name).settings
        lines[f"preset {name}{tuned}"] = ", ".join(f"{n}={settings[n]!r}" for n in given)
    return lines


def text() -> str:
    """Content of the file: the exported names of the package, and the rows."""
    content = {"names": oodlit.detectors.__all__, "rows": [*detector_rows()]}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
