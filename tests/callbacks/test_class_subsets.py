"""Runs with some of the classes: the same values from a cut network, from data, and from a cache of all classes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from oodlit import OODModule, Role
from oodlit.base.known_classes.class_choice import chosen_indices
from oodlit.base.known_classes.imagenet import class_names, wnids
from oodlit.callbacks import FeatureCache, OODDetection
from oodlit.datamodules import OODDataModule
from oodlit.datamodules.stream import Stream
from oodlit.detectors import Mahalanobis, MaxLogit
from oodlit.errors import DataError, InvalidArgumentError, UnknownNameError
from oodlit.recorded.cache_data import open_cache
from tests.callbacks.support import make_module, make_streams, make_trainer

pytestmark = pytest.mark.filterwarnings("ignore::oodlit.metrics.UndefinedMetricWarning")
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox")
KEPT = (1, 2, 4)


def named_streams() -> list[Stream]:
    known = (Role.TRAIN, Role.ID, Role.SHIFT)
    return [
        Stream(s.name, s.role, s.source, NAMES if s.role in known[:2] else s.class_names, label_names=NAMES)
        if s.role in known
        else s
        for s in make_streams()
    ]


def data(**options) -> OODDataModule:
    return OODDataModule(named_streams(), batch_size=16, **options)


def run(module, data, **options) -> OODDetection:
    detection = OODDetection([MaxLogit(), Mahalanobis()], **options)
    make_trainer(detection).predict(module, data, return_predictions=False)
    return detection


def subset(module: OODModule, chosen) -> OODModule:
    return OODModule(module.network, name="tiny", class_subset=chosen)


class MyLinear(nn.Linear):
    """A layer that may compute anything."""


def test_a_cut_network_returns_the_logits_of_the_kept_classes() -> None:
    full = make_module()
    cut, images = subset(full, [4, 1, 2]), torch.rand(5, 3, 8, 8)
    one, other = full(images), cut(images)
    torch.testing.assert_close(other.require("logits"), one.require("logits")[:, list(KEPT)])
    torch.testing.assert_close(other.require("features"), one.require("features"))
    assert torch.equal(cut.head.weight, full.head.weight[list(KEPT)])
    assert full.head.num_classes == 6
    assert full.fingerprint != cut.fingerprint
    shared = {id(p) for p in full.network.parameters()} & {id(p) for p in cut.network.parameters()}
    assert len(shared) == len(list(full.network.parameters())) - 2
    assert subset(cut, ["a", "b", "c"]).class_subset == ()  # has this number of classes
    assert cut.arguments is not None
    assert cut.arguments["class_subset"] == [1, 2, 4]
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
    with pytest.raises(InvalidArgumentError, match=r"a final Linear, .* no classifier; omit class_subset"):
        OODModule(plain, features_only=True, class_subset=[0, 1])
    with pytest.raises(InvalidArgumentError, match=r"torch\.jit, .* inspected; omit class_subset"):
        OODModule(torch.jit.trace(plain, torch.rand(2, 4)), class_subset=[0, 1])
    with pytest.raises(InvalidArgumentError, match=r"a final Linear, .*; name it with .*head='\.\.\.'"):
        OODModule(nn.Sequential(nn.Flatten(), MyLinear(4, 4)), class_subset=[0, 1])


def test_images_of_other_classes_are_left_out_or_become_an_ood_set() -> None:
    chosen = data(class_subset=["eel", 1, "cat"], dropped_as="dropped")
    assert chosen.class_names == ("bee", "cat", "eel")
    assert chosen.class_subset == KEPT
    full = {s.name: list(s.source.read(0, len(s))) for s in data().streams}
    for name in ("train", "val", "shifted"):
        kept = {s.key: KEPT.index(s.label) for s in full[name] if s.label in KEPT}
        stream = chosen.stream(name)
        assert {s.key: s.label for s in stream.source.read(0, len(stream))} == kept
    dropped = chosen.stream("dropped")
    assert (dropped.role, dropped.class_names) == (Role.OOD, ("ant", "dog", "fox"))
    found = {s.key: (s.label, dropped.class_names[s.group]) for s in dropped.source.read(0, len(dropped))}
    assert found == {s.key: (-1, NAMES[s.label]) for s in full["val"] if s.label not in KEPT}
    assert len(chosen.stream("far")) == len(full["far"])
    with pytest.raises(DataError, match="drops no image of 'val'"):
        data(class_subset=range(6), dropped_as="none")


def test_a_run_of_the_network_and_one_of_a_cache_of_all_classes_agree(tmp_path: Path) -> None:
    torch.manual_seed(0)  # scores of random weights may be ill-conditioned
    full = make_module()
    make_trainer(FeatureCache(tmp_path)).predict(full, data(), return_predictions=False)
    options = {"class_subset": list(KEPT), "dropped_as": "dropped"}
    one = run(subset(full, KEPT), data(**options, evaluation={"aggregates": {"all": ["far", "dropped"]}}))
    other = run(*open_cache(tmp_path, full, data(), **options))
    assert one.results.settings.aggregates == {"all": ["far", "dropped"]}
    same = [c for c in one.results.scores.columns if c not in ("max_logit", "mahalanobis", "key")]
    for name, rows in one.results.scores[~one.results.scores["key"].str.contains("sample")].groupby("dataset"):
        there = other.results.scores.set_index("key").loc[rows["key"]].reset_index()
        assert rows[same].reset_index(drop=True).equals(there[same]), name
        for detector in ("max_logit", "mahalanobis"):
            np.testing.assert_allclose(rows[detector], there[detector], rtol=1e-4, atol=1e-5)


def test_data_with_fewer_classes_refuse_a_network_with_all() -> None:
    with pytest.raises(InvalidArgumentError, match=r"network returns 6 logits; pass .*class_subset=data.class_subset"):
        run(make_module(), data(class_subset=KEPT))


def test_the_rule_of_the_data_is_used_unless_another_is_given() -> None:
    chosen = {"rule": "interpolated", "aggregates": {"all": ("far",)}}
    assert run(make_module(), data(evaluation=chosen)).results.settings.rule == "interpolated"
    again = run(make_module(), data(evaluation=chosen), rule="attained").results
    assert again.settings.rule == "attained"
    assert again.value("auroc", dataset="all", detector="max_logit") > 0.5


@pytest.mark.parametrize(
    ("aggregates", "match"), [({"far": ["far"]}, "is not the name of a data set"), ({"near": ["val"]}, "role id")]
)
def test_means_that_are_not_possible_are_refused_before_the_first_image(aggregates, match) -> None:
    module, seen = make_module(), []
    module.network.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    with pytest.raises(InvalidArgumentError, match=match):
        run(module, data(evaluation={"aggregates": aggregates}))
    assert sum(seen) < 16


def test_classes_by_index_name_and_wnid() -> None:
    assert chosen_indices(None, NAMES) == chosen_indices([], NAMES) == ()
    assert chosen_indices([wnids()[7], class_names()[3], 1], (), 1000) == (1, 3, 7)
    assert chosen_indices([wnids()[7], "goldfish"], class_names()) == (1, 7)
    for chosen, match in (
        ([0, 6], "from 0 to 5"),
        ([1, 1], "1 is the same as another"),
        (["bee", 1], "1 is the same"),
        ([-1, 2], "from 0"),
        ("ant", "a list"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            chosen_indices(chosen, NAMES)
    with pytest.raises(UnknownNameError, match="ant"):
        chosen_indices(["aunt", "bee"], NAMES)
