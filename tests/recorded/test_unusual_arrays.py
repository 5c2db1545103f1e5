"""Arrays with missing or masked values, names in other types, and unusual layouts in memory."""

import numpy as np
import pandas as pd
import pytest
import torch

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
    with pytest.raises(InvalidArgumentError, match=f"'far': {field}: 1 of 4 are missing.* first in row 2"):
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
