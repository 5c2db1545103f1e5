"""Arrays with missing or masked values, names in other types, and unusual layouts in memory."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oodlit import evaluate_arrays
from oodlit.detectors import MSP
from oodlit.errors import InvalidArgumentError
from oodlit.recorded.array_files import as_tensor

pytestmark = pytest.mark.filterwarnings("ignore::oodlit.results.FindingWarning")
LOGITS = torch.zeros(4, 3) + torch.arange(3.0)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, np.datetime64("NaT")])
@pytest.mark.parametrize("field", ["groups", "class_names", "keys"])
def test_missing_names_are_refused(missing, field):
    names = np.array(["cat", "dog", missing, "eel"], dtype=object)
    given = {"logits": LOGITS, "groups": [0, 1, 2, 3]} | {field: names}
    with pytest.raises(InvalidArgumentError, match=f"'far': {field}: 1 of 4 values is missing.* first in row 2"):
        evaluate_arrays(id={"logits": LOGITS}, ood={"far": given}, detectors=[MSP()])


@pytest.mark.parametrize("field", ["logits", "features", "labels", "groups", "keys"])
def test_masked_values_are_refused(field):
    values = {"logits": LOGITS.numpy(), "features": LOGITS.numpy(), "labels": np.arange(4) % 3, "groups": np.arange(4)}
    values |= {"keys": np.array(list("abcd"))}
    mask = np.zeros(values[field].shape, dtype=bool)
    given = values | {field: np.ma.array(values[field], mask=mask)}
    assert evaluate_arrays(id=values, ood={"far": given}, detectors=[MSP()]).detectors == ("msp",)
    mask[2] = True
    given[field] = np.ma.array(values[field], mask=mask)
    with pytest.raises(InvalidArgumentError, match=f"'far': {field}: .* masked"):
        evaluate_arrays(id=values, ood={"far": given}, detectors=[MSP()])


@pytest.mark.parametrize(
    "groups",
    [
        np.array([b"cat", b"dog", b"cat", b"eel"]),
        np.array([b"cat", b"dog", b"cat", b"eel"], dtype=object),
        pd.Categorical(["cat", "dog", "cat", "eel"]),
        pd.array(["cat", "dog", "cat", "eel"], dtype="string"),
    ],
)
def test_names_of_groups_in_other_types(groups):
    results = evaluate_arrays(id={"logits": LOGITS}, ood={"logits": LOGITS, "groups": groups}, detectors=[MSP()])
    assert results.dataset("ood").class_names == ("cat", "dog", "eel")


def test_numbers_of_groups_as_objects_stay_numbers():
    given = {"logits": LOGITS, "groups": np.array([1, 0, 1, 1], dtype=object), "class_names": [b"cat", b"dog"]}
    results = evaluate_arrays(id={"logits": LOGITS}, ood=given, detectors=[MSP()])
    assert results.dataset("ood").class_names == ("cat", "dog")
    assert results.images("ood")["group"].tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize(
    "kind",
    [
        lambda values: values[::-1].copy()[::-1],
        lambda values: values[:, ::-1].copy()[:, ::-1],
        lambda values: values.astype(">f4"),
        lambda values: values.astype(">f8"),
        lambda values: values.astype(np.longdouble),
        lambda values: np.frombuffer(values.tobytes(), np.float32).reshape(values.shape),
    ],
)
def test_every_layout_of_numbers_gives_the_same_scores(kind):
    logits = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    labels = np.arange(20, dtype=">i8")[::-1] % 3
    expected = evaluate_arrays(id={"logits": logits}, ood={"logits": logits * 2}, detectors=[MSP()])
    given = {"logits": kind(logits), "labels": labels}
    results = evaluate_arrays(id=given, ood={"logits": kind(logits * 2)}, detectors=[MSP()])
    np.testing.assert_allclose(results.scores["msp"], expected.scores["msp"], rtol=1e-6)
    assert results.images("id")["label"].tolist() == labels.tolist()


def test_a_read_only_memory_map_is_not_copied(tmp_path):
    np.save(tmp_path / "logits.npy", np.eye(3, dtype=np.float32))
    mapped = np.load(tmp_path / "logits.npy", mmap_mode="r")
    assert as_tensor(mapped).data_ptr() == mapped.ctypes.data


@pytest.mark.parametrize("values", [[[1.0], [1.0, 2.0]], [["a", "b"]], np.zeros((2, 2), dtype=complex)])
def test_what_is_not_an_array_of_numbers_is_named(values):
    with pytest.raises(InvalidArgumentError, match="'far': logits: "):
        evaluate_arrays(id={"logits": LOGITS}, ood={"far": {"logits": values}}, detectors=[MSP()])


@settings(max_examples=10)
@given(st.lists(st.sampled_from([0, 2, 5, 11]), min_size=20, max_size=20))
def test_groups_without_names_are_named_by_their_numbers(groups):
    logits = torch.linspace(-1, 1, 60).reshape(20, 3)
    far = {"logits": logits, "groups": np.array(groups)}
    results = evaluate_arrays(id={"logits": logits * 3}, ood={"far": far}, detectors=[MSP()])
    names = results.dataset("far").class_names
    assert names == tuple(map(str, sorted(set(groups))))
    scores = results.images("far").assign(name=lambda rows: [names[group] for group in rows["group"]])
    assert [int(name) for name in scores["name"]] == groups
    threshold = results.threshold("msp")
    expected = (scores["msp"] >= threshold).groupby(scores["name"]).mean().mean()
    assert results.value("mean_fpr95", dataset="far", detector="msp") == pytest.approx(expected)


def test_no_image_has_a_group():
    far = {"logits": LOGITS, "groups": np.full(4, -1)}
    assert evaluate_arrays(id={"logits": LOGITS}, ood=far, detectors=[MSP()]).dataset("ood").class_names == ()


def test_names_that_are_not_utf8():
    far = {"logits": LOGITS, "groups": np.array([b"cat", b"\xff", b"cat", b"cat"])}
    with pytest.raises(InvalidArgumentError, match=r"'ood': groups: b'\\xff' is not UTF-8"):
        evaluate_arrays(id={"logits": LOGITS}, ood=far, detectors=[MSP()])
