"""Detectors that were fitted before a run: loaded from a folder, or fitted by an earlier run."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from oodlit.detectors import Detector, FitOrigin
from oodlit.detectors.contract.saving import fit_digest


class EarlierFit:
    """Which detectors keep an earlier fit, and the backbone that this fit belongs to.

    Args:
        folder: Where it was loaded from; None for detectors that the user made.
        origin: What it belongs to; None where it is unknown or there is no earlier fit.
    """

    def __init__(self, folder: Path | None = None, origin: FitOrigin | None = None) -> None:
        self.folder, self.origin = folder, origin
        self._digest = "" if folder is None else fit_digest(folder)  # at loading: the folder may be replaced later

    def kept(self, detectors: Mapping[str, Detector], *, has_train: bool) -> frozenset[str]:
        """Names of the detectors that are not fitted in this run.

        Detectors are fitted again wherever that is possible: a fit belongs to one backbone.
        """
        return frozenset(
            name
            for name, detector in detectors.items()
            if self.folder is not None or (detector.required_statistics and detector.is_fitted and not has_train)
        )

    def digest(self, kept: Mapping[str, Detector]) -> str:
        """Identify the kept fits; empty if there are none."""
        return self._digest or (fit_digest(kept) if kept else "")

    def check(self, kept: Mapping[str, Detector], here: FitOrigin) -> None:
        """Check that the kept fits belong to this backbone.

        Raises:
            FingerprintError: Weights, transform, width or number of classes differ.
        """
        if kept and self.origin is not None:
            source = "the fit of an earlier run" if self.folder is None else "the saved fit"
            self.origin.check(here, source=source)
        for name, detector in kept.items():  # fitted in a run of another callback
            FitOrigin(detector.fitted_on).check(FitOrigin(here.fingerprint), source=f"detector {name!r}")

    def note_end(self, fitted: Iterable[Detector], origin: FitOrigin | None, *, keeps: bool, begun: bool) -> None:
        """Remember the backbone of the fits when a run ends, complete or not.

        Args:
            fitted: Detectors that the run fitted.
            origin: What a complete fit of the run belongs to; None if it was not completed.
            keeps: Whether the run kept fits of other detectors.
            begun: Whether the fit began.
        """
        if origin is not None:
            for detector in fitted:
                detector.fitted_on = origin.fingerprint
            self.origin = self.origin if keeps else origin
        elif begun:
            for detector in fitted:  # some are of this run, some of an earlier one
                detector.forget()
            self.origin = None
