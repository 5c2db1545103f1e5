"""Findings of a run: chance, classes never predicted, exchanged sets, published accuracies."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodlit import Results, Role
from oodlit.results import DatasetInfo
from oodlit.results.findings import chance_level
from oodlit.results.published.timm import DATASETS, _rows, published_accuracy
from tests.results.pool_support import pool_results

pytestmark = pytest.mark.filterwarnings("ignore:.*undefined .NaN.")
NEAR = DatasetInfo("near", Role.OOD)


def results_of(labels, predictions, *, scores=None, run=None, name="val"):
    labels, n = np.asarray(labels), len(labels)
    inside = {"key": [f"{name}/{i}" for i in range(n)], "dataset": name, "group": -1, "label": labels}
    inside |= {"prediction": np.asarray(predictions), "msp": np.linspace(1, 2, n) if scores is None else scores}
    outside = {"key": [f"near/{i}" for i in range(20)], "dataset": "near", "group": -1, "label": -1, "prediction": 0}
    outside |= {"msp": np.linspace(0, 0.9, 20)}
    frame = pd.concat([pd.DataFrame(inside), pd.DataFrame(outside)], ignore_index=True)
    return Results.from_scores(frame, [DatasetInfo(name, Role.ID), NEAR], ["msp"], bootstrap=0, run=run)


def kinds(results):
    return [finding.kind for finding in results.findings]


CLASSES = np.arange(100) % 5


def test_a_sound_classifier_has_no_finding():
    assert kinds(results_of(CLASSES, CLASSES)) == []


@pytest.mark.parametrize("shift", [1, 2, 4])
def test_labels_in_another_order_are_accuracy_zero_and_a_finding(shift):
    """A "background" class in front of five names moves every label by one."""
    results = results_of(CLASSES, CLASSES + shift)
    assert kinds(results)[0] == "chance"
    assert "accuracy of 0.0 % on the 100 labeled images of 'val'" in results.findings[0].text


@pytest.mark.parametrize(("images", "classes", "level"), [(3000, 1000, "0.1 %"), (50, 50, "2.0 %"), (100, 5, "20.0 %")])
def test_the_chance_level_has_enough_digits(images, classes, level):
    labels = np.arange(images) % classes
    predictions = labels + classes if images == classes else (labels + 1) % classes  # few images share no class
    (finding, *_) = results_of(labels, predictions).findings
    assert finding.kind == "chance"
    assert f"chance level is {level}" in finding.text
    assert finding.text.index("weights may be random") < finding.text.index("transform")


def test_an_untrained_network_is_named_instead_of_its_consequences():
    """Neither the transform nor exchanged sets explain the values of random weights."""
    backwards = {"scores": np.linspace(-2, -1, 100)}
    made = {"backbone": {"arguments": {"backbone": "resnet18", "weights": None}}}
    (finding,) = results_of(CLASSES, CLASSES + 1, run=made, **backwards).findings
    assert finding.kind == "chance"
    assert "random weights (weights=None)" in finding.text
    assert "transform" not in finding.text
    for arguments in ({"backbone": "resnet18", "weights": "hub"}, {"backbone": None, "weights": None}, None):
        other = results_of(CLASSES, CLASSES + 1, run={"backbone": {"arguments": arguments}}, **backwards)
        assert {"chance", "backwards"} <= set(kinds(other))


def test_a_shuffled_order_of_classes_is_near_chance():
    order = np.random.default_rng(0).permutation(100)
    predictions = order[np.arange(1000) % 100]
    assert "chance" in kinds(results_of(np.arange(1000) % 100, predictions))


@given(st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_random_predictions_are_a_finding_whatever_their_shares(classes, seed):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(classes))
    labels = np.arange(400) % classes
    assert {"chance", "classes"} & set(kinds(results_of(labels, rng.choice(classes, 400, p=shares))))


@given(st.integers(2, 30), st.floats(0.5, 1.0), st.integers(0, 2**32 - 1))
def test_a_useful_classifier_is_not_at_chance(classes, accuracy, seed):
    rng = np.random.default_rng(seed)
    labels = np.arange(400) % classes
    wrong = (labels + rng.integers(1, classes, 400)) % classes
    predictions = np.where(rng.random(400) < accuracy, labels, wrong)
    found = kinds(results_of(labels, predictions))
    assert "chance" not in found or classes == 2


def test_chance_follows_the_shares_of_the_classes():
    labels = np.array([0] * 90 + [1] * 10)
    assert chance_level(labels, np.zeros(100, dtype=int)) == 0.9
    always = results_of(labels, np.zeros(100, dtype=int))
    assert kinds(always) == ["classes"]
    assert "all 100 images of 'val' are predicted as class 0" in always.findings[0].text


def test_classes_that_are_never_predicted_are_named():
    predictions = np.where(CLASSES == 3, 4, CLASSES)
    (finding,) = results_of(CLASSES, predictions).findings
    assert finding.text.startswith("the classifier never predicts 1 of 5 classes of 'val' (first: 3")


def test_scores_that_separate_backwards_are_a_finding():
    backwards = results_of(CLASSES, CLASSES, scores=np.linspace(-2, -1, 100))
    assert kinds(backwards) == ["backwards"]
    assert "detectors that score 'near' higher than ID images (AUROC below 50 %): 1 of 1." in backwards.findings[0].text


def test_a_pool_that_is_scored_backwards_is_a_finding():
    sound = pool_results()
    assert "backwards" not in kinds(sound)
    scores, estimates = sound.scores.copy(), sound.estimates
    is_inside = scores["dataset"] == "val"
    for detector in sound.detectors:
        scores.loc[is_inside, detector] -= 20
    turned = Results.from_scores(scores, sound.datasets, sound.detectors, estimates=estimates, bootstrap=0)
    (found,) = (finding for finding in turned.findings if finding.kind == "backwards")
    assert found.text.startswith("detectors that score 'pool' higher than ID images (AUROC below 50 %): 2 of 2.")


def several(shifts, **settings):
    """Results of detectors whose scores of OOD images are shifted against those of ID images."""
    rng, names = np.random.default_rng(0), [f"d{place}" for place in range(len(shifts))]
    frame = pd.DataFrame({"key": [f"{i}" for i in range(200)], "dataset": ["val"] * 100 + ["near"] * 100})
    frame = frame.assign(group=-1, label=np.r_[CLASSES, [-1] * 100], prediction=np.r_[CLASSES, [0] * 100])
    for name, shift in zip(names, shifts, strict=True):
        frame[name] = np.r_[rng.normal(size=100), rng.normal(shift, size=100)]
    return Results.from_scores(frame, [DatasetInfo("val", Role.ID), NEAR], names, bootstrap=0, run=settings)


def test_one_detector_that_ranks_backward_is_named_with_its_settings():
    settings = {"class_path": "oodlit.detectors.WeiPer", "init_args": {"strength": 2.4, "bins": 100}}
    overview = {"reads": "features", "is_fitted": True, "cost": "closed form", "tuned": "imagenet-resnet50"}
    results = several([-2, -2, 2, -2], detector_settings={"d2": settings}, overview={"d2": overview})
    (finding,) = results.findings
    assert finding.kind == "reversed"
    assert finding.text.startswith("detector d2 ranks OOD images above ID images")
    assert f"AUROC on 'near' {100 * results.value('auroc', dataset='near', detector='d2'):.1f} %." in finding.text
    assert "Its settings: strength=2.4, bins=100." in finding.text
    assert "the preset imagenet-resnet50, which was tuned on OOD data" in finding.text


@pytest.mark.parametrize(
    ("shifts", "expected"),
    [
        ([-2, -2, 0, -2], []),  # at one half: neither above nor below
        ([0, 0, 2, -2], []),  # the others do not rank the other way around
        ([2, 2, 2, -2], ["backwards"]),  # most of them: the set, not a detector
        ([-2, -2, -2, 2, 2], ["reversed", "reversed"]),
        ([2], ["backwards"]),
        ([2, -2], []),  # one against one: either may be wrong
    ],
)
def test_a_detector_is_reversed_if_most_others_are_not(shifts, expected):
    assert kinds(several(shifts)) == expected


def test_a_few_images_prove_nothing():
    assert kinds(results_of(CLASSES[:6], CLASSES[:6] + 1)) == []


def test_findings_are_kept_and_made_anew(tmp_path):
    given_one = {"findings": [{"kind": "class_lists", "text": "6 logits, 5 names", "is_good": False}]}
    results = results_of(CLASSES, CLASSES + 1, run=given_one)
    assert kinds(results) == ["class_lists", "chance", *kinds(results)[2:]]
    results.save(tmp_path)
    again = Results.load(tmp_path)
    assert again.findings == results.findings
    assert again.recompute(tpr=0.9).findings == results.findings


# --- published accuracies ---------------------------------------------------------------------------------------------


def of_a_known_network(correct, total=1000, *, name="imagenet_val", **other):
    known = {"model": "resnet50.a1_in1k", "img_size": 224, "crop_pct": 0.95} | other
    labels = np.arange(total) % 50
    predictions = np.where(np.arange(total) < correct, labels, (labels + 1) % 50)
    return results_of(labels, predictions, run={"backbone": {"published_as": known}}, name=name)


def test_the_table_of_timm_is_whole():
    assert len(_rows()) == 1556
    assert sum(row[name] != "" for row in _rows().values() for name in DATASETS) == 5 * 1556 - 1


@pytest.mark.parametrize("correct", [804, 780, 830])
def test_an_accuracy_within_the_binomial_interval_is_a_good_sign(correct):
    (finding,) = of_a_known_network(correct).findings
    assert finding.is_good
    start = "the accuracy of resnet50.a1_in1k at 224 pixels and crop 0.95 on 'imagenet_val' is"  # pages capitalize it
    assert finding.text.startswith(start)
    assert (
        f"{correct / 10:.2f} % in this run (n = 1000) and 80.38 % in timm's table. The two values agree" in finding.text
    )


@pytest.mark.parametrize("correct", [700, 760, 845])
def test_an_accuracy_outside_of_it_names_the_usual_causes(correct):
    (finding,) = of_a_known_network(correct).findings
    assert not finding.is_good
    assert "The difference is significant. Usual causes: " in finding.text
    for cause in ("transform", "image size", "order of labels", "weights", "restricted"):
        assert cause in finding.text


@pytest.mark.parametrize(("correct", "total", "good"), [(3, 4, 0), (80, 100, 0), (240, 300, 0), (400, 500, 1)])
def test_agreement_on_a_few_images_is_no_sign(correct, total, good):
    """The interval must be narrow: most accuracies agree with four images."""
    assert len(of_a_known_network(correct, total).findings) == good


def test_other_sizes_sets_and_networks_are_not_compared():
    assert published_accuracy("resnet50.a1_in1k", "imagenet_val", img_size=288, crop_pct=1.0) == 0.8124
    assert published_accuracy("resnet50.a1_in1k", "imagenet_val", img_size=192, crop_pct=1.0) is None
    assert published_accuracy("resnet50.tv_in1k", "imagenet_a", img_size=224, crop_pct=0.875) is None
    assert published_accuracy("resnet50.a1_in1k", "ninco", img_size=224, crop_pct=0.95) is None
    assert of_a_known_network(700, img_size=192).findings == ()
    assert of_a_known_network(700, name="mine").findings == ()


def test_a_set_of_200_classes_is_compared_as_published_among_them():
    labels = np.arange(1000) % 50
    right = np.where(np.arange(1000) < 240, labels, (labels + 1) % 50)
    frame = pd.DataFrame(
        {"key": [f"imagenet_r/{i}" for i in range(1000)], "dataset": "imagenet_r", "group": -1, "label": labels}
        | {"prediction": right, "msp": 0.5}
    )
    inside = results_of(CLASSES, CLASSES).scores
    inside = inside[inside["dataset"] == "val"]
    known = {"model": "resnet50.a1_in1k", "img_size": 224, "crop_pct": 0.95}
    run = {"backbone": {"published_as": known}, "masked_accuracy": {"imagenet_r": (404, 1000)}}
    datasets = [DatasetInfo("val", Role.ID), DatasetInfo("imagenet_r", Role.SHIFT)]
    both = pd.concat([inside, frame], ignore_index=True)
    (finding,) = Results.from_scores(both, datasets, ["msp"], bootstrap=0, run=run).findings
    assert finding.is_good
    assert "40.40 % in this run" in finding.text


@pytest.mark.parametrize(("tied", "text"), [(0, ""), (2, "8 % with msp"), (24, "100 % with msp")])
def test_equal_severities_of_many_classes_are_a_finding(tied, text):
    """Two of 24 classes are more than 5 %; the other detector has no ties."""
    sound = pool_results()
    estimates = sound.estimates.copy()
    of_msp = estimates.index[estimates["detector"] == "msp"]
    estimates.loc[of_msp[:tied], "severity"] = 1.0
    made = Results.from_scores(sound.scores, sound.datasets, sound.detectors, estimates=estimates, bootstrap=0)
    found = [finding.text for finding in made.findings if finding.kind == "ties"]
    assert len(found) == bool(tied)
    assert all(f"many classes ({text}) have the same severity" in one for one in found)
