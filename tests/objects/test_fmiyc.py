"""FMIYC's figures as package data: all rows are read back, and what must hold of them does."""

import pytest

from oodlit.detectors.contract.registry import detectors
from oodlit.objects.published import fmiyc


def test_all_figures_are_read() -> None:
    every = [figure for split in fmiyc.splits() for figure in fmiyc.figures(split)]
    assert len(every) == 2 * 228 + 4 * 246
    assert len({figure[:5] for figure in every}) == len(every)
    assert {figure.architecture for figure in every} == {"F-RCNN", "F-RCNN VOS", "Yolov8", "RT-DETR"}
    assert all(figure.id_dataset == fmiyc.splits()[figure.split].id_dataset for figure in every)
    assert all(0 <= figure.value <= 1 for figure in every if figure.metric != "nose_boxes")
    assert set(fmiyc.METHODS) < {figure.method for figure in every}
    assert set(fmiyc.METHODS.values()) <= set(detectors())


def test_average_precision_is_never_above_recall() -> None:
    found = {figure[:5]: figure.value for split in fmiyc.splits() for figure in fmiyc.figures(split)}
    pairs = [(value, found[(*key[:4], "r_u")]) for key, value in found.items() if key[4] == "ap_u"]
    assert len(pairs) == 246
    assert all(area <= recall for area, recall in pairs)


def test_one_row_by_hand() -> None:
    found = {f.metric: f.value for f in fmiyc.figures("COCO-near") if (f.architecture, f.method) == ("F-RCNN", "ViM")}
    assert (found["auroc"], found["fpr95"]) == (0.757, 0.855)
    assert fmiyc.images_without_boxes("OpenImages-far")["F-RCNN"] == 0.4919
    assert len(fmiyc.images_without_boxes("COCO-farther")) == 5


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("near_coco", "COCO-near"),
        ("farther_oi_wrt_bdd", "OpenImages-farther"),
        ("Far-OpenImages", "OpenImages-far"),
        ("nearly_coconut", None),
        ("coco", None),
    ],
)
def test_names_of_splits(name: str, split: str | None) -> None:
    found = fmiyc.split_named(name)
    assert (None if found is None else found.name) == split
