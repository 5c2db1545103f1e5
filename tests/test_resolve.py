"""Names on input: keys and display names in any case, as long as they are unambiguous."""

import pytest

from oodlit.base.text.resolve import resolve
from oodlit.detectors import detectors
from oodlit.detectors.contract.registry import find
from oodlit.errors import UnknownNameError


def test_every_detector_is_found_by_key_class_and_display_name() -> None:
    every = detectors()
    assert len(every) > 50
    for key, kind in every.items():
        for name in (key, kind.__name__, kind.display_name or kind.__name__):
            assert find(name) is find(name.upper()) is kind
        assert resolve("detector", kind.display_name or kind.__name__, list(every)) == key


def test_exact_names_come_first_and_ambiguous_ones_are_refused() -> None:
    names = {"KNN": "KNN", "knn": "knn", "odd": "Softmax"}
    assert [resolve("detector", name, names) for name in ("KNN", "knn", "SOFTMAX")] == ["KNN", "knn", "odd"]
    with pytest.raises(UnknownNameError, match=r"unknown detector 'Knn'.*KNN, knn"):
        resolve("detector", "Knn", names)


def test_suggestions_ignore_case() -> None:
    with pytest.raises(UnknownNameError, match="'MAHALANOBS'; did you mean 'mahalanobis'"):
        resolve("detector", "MAHALANOBS", ["mahalanobis", "msp"])
