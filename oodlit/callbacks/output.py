"""The folder of a run: results, fitted detectors, thumbnails and the page."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image

from oodlit.detectors import Detector, FitOrigin, save
from oodlit.errors import InvalidArgumentError
from oodlit.report import clear_thumbnails, save_thumbnails, write_report
from oodlit.results import Results
from oodlit.results.storage import UNEVALUATED, check_replaceable

__all__ = ["OutputFolder"]

FITTED = "fitted"


class OutputFolder:
    """Where a run writes. What an earlier run left there is replaced.

    Args:
        path: The folder; made if need be.
        saved_fit: Folder of fitted detectors that the run uses and must keep; it may lie within `path`.

    Raises:
        InvalidArgumentError: Parts of results lie there without the record they belong to, or nothing can be written.
    """

    def __init__(self, path: Path, *, saved_fit: Path | None = None) -> None:
        check_replaceable(path, keep=saved_fit)
        _check_writable(path)
        self.path, self.saved_fit = path, saved_fit

    def save(self, results: Results, detectors: Mapping[str, Detector], origin: FitOrigin | None) -> None:
        """Write results and fitted detectors."""
        self._clear()
        results.save(self.path)
        if self.saved_fit is None:
            save(detectors, self.path / FITTED, origin)

    def draw(
        self,
        results: Results,
        read_images: Callable[[list[str]], Mapping[str, Image.Image]],
        *,
        num_thumbnails: int,
    ) -> Path:
        """Write thumbnails and the page; gives the page."""
        if num_thumbnails > 0:
            save_thumbnails(results, self.path, read_images, per_detector=num_thumbnails)
        return write_report(results, self.path / "report.html")

    def _clear(self) -> None:
        """Remove what an earlier run left beside its results and this one may not replace."""
        clear_thumbnails(self.path)
        fitted = self.path / FITTED
        if fitted != self.saved_fit:
            for name in ("detectors.json", "detectors.safetensors"):
                (fitted / name).unlink(missing_ok=True)
        (self.path / UNEVALUATED).unlink(missing_ok=True)


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"output_dir={str(folder)!r}: results cannot be written there ({error}); name a folder that can be written"
        ) from error
