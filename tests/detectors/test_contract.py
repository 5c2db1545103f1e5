"""The base class, registry, fitting and files, beyond the conformance suite."""

import inspect
import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import oodlit.detectors as package
from oodlit.detectors import (
    ASH,
    DDU,
    DICE,
    KNN,
    MSP,
    BackboneFacts,
    Detector,
    Energy,
    KLMatching,
    Mahalanobis,
    MaxLogit,
    OpenMax,
    RankFeat,
    ReAct,
    Shaping,
    TrainFreeDetector,
    ViM,
    detectors,
    find,
    fit,
    load,
    presets,
    save,
)
from oodlit.detectors.contract.class_paths import from_config, parameters_of
from oodlit.detectors.contract.fitting import make_statistics, name_detectors
from oodlit.detectors.contract.placement import follow
from oodlit.detectors.contract.saving import detector_to_config
from oodlit.detectors.statistics import FeatureBank, Statistics, TrainSample
from oodlit.errors import InvalidArgumentError, NotFittedError, RequirementError, UnknownNameError
from oodlit.outputs import Head, Outputs

from .support import small_problem

KEYS = {
    *("ash", "cosine", "ddu", "dice", "energy", "entropy", "fdbd", "gen", "grad_norm", "kl_matching", "knn", "lard"),
    *("mahalanobis", "max_logit", "mc_dropout", "msp", "nci", "nn_guide", "odin", "open_max", "rank_feat", "react"),
    *("relative_cosine", "relative_mahalanobis", "residual", "scale", "she", "temperature_scaled_msp", "vim", "vra"),
    *("mahalanobis_plus_plus", "relative_mahalanobis_plus_plus", "cop", "corp", "lts", "bats", "neco"),
    *("ca_ref", "cad_ref", "opt_fs", "wei_per", "ada_scale", "iodin", "pro", "nac"),
    *("ras", "ora", "act_sub", "mcm", "gl_mcm", "neg_label", "csp", "combined", "sirc"),
}


def test_registry_holds_every_detector_file() -> None:
    assert set(detectors()) == KEYS
    exported = {getattr(package, name) for name in package.__all__}
    every = {k for k in _subclasses(Detector) if k.__module__.startswith("oodlit.detectors.")}
    shared = {k for k in every if inspect.isabstract(k) or ".formulas." in k.__module__}  # by several detectors
    assert every - shared <= exported
    assert not {Detector, TrainFreeDetector, Shaping} & set(detectors().values())


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*(_subclasses(k) for k in kind.__subclasses__()))


@pytest.mark.parametrize("kind", detectors().values(), ids=detectors())
def test_every_detector_is_documented(kind: type[Detector]) -> None:
    reference = kind.reference
    assert reference.title
    assert reference.authors
    assert reference.venue
    assert reference.url.startswith("https://")
    assert 2015 < reference.year < 2027
    assert kind.__doc__ is not None
    assert kind.__doc__.startswith("S = ")
    assert ">>> " in kind.__doc__
    for name in parameters_of(kind):
        assert re.search(rf"^ +{name}: ", kind.__doc__, re.MULTILINE), name


@pytest.mark.parametrize("name", ["ReAct", "react", "REACT", "re_act", "Re-Act", "oodlit.detectors.ReAct"])
def test_find(name: str) -> None:
    assert find(name) is ReAct


def test_unknown_names_give_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown detector 'mahalonobis'; did you mean 'mahalanobis'"):
        find("mahalonobis")
    with pytest.raises(InvalidArgumentError, match=re.escape("'torch.nn.Linear' to be a subclass of oodlit")):
        find("torch.nn.Linear")
    with pytest.raises(InvalidArgumentError, match=re.escape("'nowhere.Mine' cannot be imported")):
        find("nowhere.Mine")
    with pytest.raises(UnknownNameError, match="unknown preset 'p99-trian' of ReAct; did you mean 'p99-train'"):
        ReAct.preset("p99-trian")


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, named in presets().items() for name in named])
def test_every_preset_can_be_made_and_saved(key: str, name: str) -> None:
    detector = find(key).preset(name)
    assert json.loads(json.dumps(detector_to_config(detector)))
    assert repr(from_config(detector_to_config(detector), Detector)) == repr(detector)


def test_presets_can_be_changed() -> None:
    assert repr(ASH.preset("b-65", then=MSP())) == "ASH(variant='b', percentile=65.0, then=MSP())"
    assert repr(ReAct.preset("dice")) == "ReAct(threshold=1.0, then=DICE(percentile=10.0))"


def test_not_fitted() -> None:
    train, _ = small_problem()
    for detector in (Mahalanobis(), ASH(), ReAct(threshold=1.0), KLMatching()):
        with pytest.raises(NotFittedError, match=r"is not fitted; call oodlit\.detectors\.fit"):
            detector.score(train)
    assert MSP().is_fitted


def test_fit_needs_head_and_images() -> None:
    _, head = small_problem()
    with pytest.raises(RequirementError, match="needs the linear head of the classifier"):
        fit([MSP(), ViM()], iter(()), None)
    with pytest.raises(RequirementError, match=r"expected training images to fit on, got none .*ClassMoments"):
        fit([Mahalanobis()], [], head)
    with pytest.raises(RequirementError, match=r"got none .*ClassMoments\); call oodlit"):
        Mahalanobis().fit()
    fit([MSP(), ASH()], iter(lambda: pytest.fail("train-free detectors read no batch"), None), head)


def test_settings_are_frozen_after_the_fit() -> None:
    train, head = small_problem()
    detector = KNN(k=3)
    detector.k = 5
    fit([detector], [train], head)
    with pytest.raises(AttributeError, match=re.escape("KNN(k=5) is fitted, so its setting 'k' cannot change")):
        detector.k = 7


def test_missing_fields_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape("required fields; pass Outputs(..., logits=...)")):
        MSP().score(Outputs(features=torch.ones(1, 2)))
    with pytest.raises(InvalidArgumentError, match=re.escape("fields; pass Outputs(..., hidden=..., model=...)")):
        RankFeat().score(Outputs(torch.ones(1, 2)))
    outputs = Outputs(torch.ones(1, 2), hidden={"other": torch.ones(1, 2, 1, 1)})
    with pytest.raises(InvalidArgumentError, match=re.escape("model=..., hidden={'feature_map': ...})")):
        RankFeat().score(outputs)


def test_no_presets() -> None:
    with pytest.raises(UnknownNameError, match=re.escape("unknown preset 'x': MSP has no presets; write MSP(...)")):
        MSP.preset("x")


@pytest.mark.parametrize("detector", [MSP(), Mahalanobis(), ASH()], ids=repr)
def test_only_outputs_are_scored(unchecked: None, detector: Detector) -> None:
    for wrong in (torch.ones(1, 2), np.ones((1, 2)), [Outputs(torch.ones(1, 2))], None):
        message = rf"expected an Outputs object, got {type(wrong).__name__}; pass Outputs\(logits, features\)"
        with pytest.raises(InvalidArgumentError, match=message):
            detector.score(wrong)


@pytest.mark.parametrize("field", ["logits", "features", "labels", "groups", "images"])
def test_arrays_are_no_outputs(unchecked: None, field: str) -> None:
    fields = {"logits": torch.ones(2, 2)}
    with pytest.raises(
        InvalidArgumentError,
        match=rf"expected {field} to be a tensor, got numpy\.ndarray; .*torch\.from_numpy\({field}\)",
    ):
        Outputs(**{**fields, field: np.ones((2, 2))})
    with pytest.raises(
        InvalidArgumentError, match=rf"expected {field} to be a tensor, got list; .*torch\.as_tensor\({field}\)"
    ):
        Outputs(**{**fields, field: [1, 2]})
    with pytest.raises(InvalidArgumentError, match=r"expected hidden\['a'\] to be a tensor, got numpy\.ndarray"):
        Outputs(**fields, hidden={"a": np.ones((2, 2))})


@pytest.mark.parametrize(
    ("detectors_", "batches", "message"),
    [
        (KNN(k=1), [], r"list of detectors, got KNN\(k=1\); write fit\(\[detector\], batches"),
        (
            {"a": KNN()},
            [],
            r"list of detectors, got \{'a': KNN\(\)\}; write fit\(list\(detectors\.values\(\)\), batches",
        ),
        ("KNN", [], "list of detectors, got 'KNN'"),
        ([KNN], [], r"expected an oodlit.detectors.Detector, got .*KNN.*; write KNN\(\)"),
        (["Mahalanobis++"], [], r"expected an oodlit.detectors.Detector, got 'Mah.*; write MahalanobisPlusPlus\(\)"),
        ([KNN(k=1)], Outputs(torch.ones(1, 2)), "list of Outputs, got Outputs"),
        ([KNN(k=1)], torch.ones(1, 2), "list of Outputs, got Tensor"),
        ([KNN(k=1)], None, "list of Outputs, got NoneType"),
        ([KNN(k=1)], [torch.ones(1, 2)], "batches of Outputs, got Tensor"),
    ],
)
def test_fit_takes_lists(unchecked: None, detectors_: object, batches: object, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        fit(detectors_, batches)


def test_notes_are_logged_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = Outputs(torch.tensor([[2.0, 0.0, 0.0]]))
    detector = KLMatching()
    with caplog.at_level(logging.WARNING, logger="oodlit.detectors"):
        fit([detector], [train])
    assert "never predicted for training images" in caplog.text
    save({"kl": detector}, tmp_path)
    assert load(tmp_path)[0]["kl"].notes == detector.notes
    fit([detector], [Outputs(torch.eye(3))])
    assert detector.notes == ()


def test_save_and_load_nested_and_large(tmp_path: Path) -> None:
    train, head = small_problem(signed=False)
    originals = {
        "a": ReAct(percentile=80.0, then=DICE(then=MaxLogit())),
        "b": DDU("full"),
        "c": OpenMax(tail=5),
        "d": KNN(k=2, bank_size=50),
        "e": ASH("b", then=MSP()),
        "f": MSP(),
    }
    fit(list(originals.values()), [train], head)
    save(originals, tmp_path)
    loaded, _ = load(tmp_path)
    assert {n: repr(d) for n, d in loaded.items()} == {n: repr(d) for n, d in originals.items()}
    for name, detector in loaded.items():
        assert torch.equal(detector.score(train), originals[name].score(train)), name


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"detectors\.json is missing"):
        load(tmp_path)
    with pytest.raises(NotFittedError, match="cannot save unfitted detectors: m"):
        save({"m": Mahalanobis()}, tmp_path)
    assert not list(tmp_path.iterdir())
    save({"e": Energy()}, tmp_path)
    text = (tmp_path / "detectors.json").read_text()
    (tmp_path / "detectors.json").write_text(text.replace('"format": 3', '"format": 0'))
    with pytest.raises(InvalidArgumentError, match="belong to different fits"):
        load(tmp_path)


def test_names_in_tables() -> None:
    assert list(name_detectors([ASH(), ASH("b"), MSP()])) == ["ash", "ash[variant='b']", "msp"]
    assert list(name_detectors({"mine": MSP()})) == ["mine"]
    for bad, message in (
        ([], "expected at least one detector"),
        ([MSP], re.escape("write MSP()")),
        ([MSP(), MSP()], "two detectors are named 'msp'"),
        ({"x": 3}, "expected an oodlit.detectors.Detector, got 3"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            name_detectors(bad)


def test_statistics_serve_all_detectors() -> None:
    statistics = make_statistics([KNN(k=2, bank_size=10), KNN(k=2, bank_size=30), ViM(), ReAct(then=DICE())])
    assert {k.__name__ for k in statistics} == {"FeatureBank", "ClassMoments", "TrainSample", "FeatureMean"}
    assert statistics[FeatureBank].rows == 30
    assert make_statistics([KNN(k=2, bank_size=10), KNN(k=2)])[FeatureBank].rows is None


@pytest.mark.parametrize(
    ("fields", "read", "message"),
    [
        ({"feature"}, "features", r"sample_fields feature\. Known: logits, .*, labels$"),
        ({"features", "logsumexp"}, "features", "sample_fields requires logits in `needs`"),
        ({"features"}, "max_logits", r"missing max_logits; add it to `sample_fields` .*kept: features"),
    ],
)
def test_sample_fields_that_are_wrong(fields: set[str], read: str, message: str) -> None:
    class Mine(Detector):
        needs = frozenset({"features"})
        statistics = (TrainSample,)
        sample_fields = frozenset(fields)

        def _fit(self, statistics: Statistics, head: Head | None) -> None:
            self.register_buffer("m", statistics[TrainSample].column(read))

        def _score(self, outputs: Outputs) -> torch.Tensor:
            return outputs.require("features").sum(dim=1)

    train, head = small_problem()
    with pytest.raises(InvalidArgumentError, match=message):
        fit([Mine()], [train], head)


def test_why_not() -> None:
    facts = BackboneFacts(
        name="levit", width=8, num_classes=4, num_train=10, head_problem="levit hides it behind batch-norm"
    )
    assert ViM().why_not(facts) == "needs the linear head; levit hides it behind batch-norm"
    assert MSP().why_not(facts) == ""
    assert RankFeat().why_not(facts) == "needs the feature map of a convolutional network; levit has none"
    assert "needs training images for the fit" in KNN().why_not(BackboneFacts())
    assert "needs images, which" in find("odin")().why_not(BackboneFacts(available=frozenset({"logits", "model"})))


def test_buffers_follow_the_outputs() -> None:
    """A fit that was loaded on the CPU scores outputs on another device, save the bank of KNN."""
    train, head = small_problem()
    detectors_ = [KNN(k=2), Mahalanobis(), ReAct(then=DICE())]
    fit(detectors_, [train], head)
    for detector in detectors_:
        for part in detector.modules():
            if isinstance(part, Detector):
                follow(part, torch.device("meta"))
    assert detectors_[0].bank.device.type == "cpu"
    assert detectors_[1].whiten.device.type == "meta"
    assert detectors_[2].then.weight.device.type == "meta"


def test_head_in_half_precision_is_upcast() -> None:
    head = Head(torch.eye(2).half())
    detector = ASH(percentile=50.0)
    detector.fit(head=head)
    x = torch.ones(1, 2)
    assert detector.score(Outputs(x, x)).dtype == torch.float64


def test_the_sample_keeps_what_is_read() -> None:
    fields = {"logits": [OpenMax()], "features": [ReAct()], "logits, features": [OpenMax(), ReAct()]}
    for expected, named in fields.items():
        assert ", ".join(make_statistics(named)[TrainSample].fields) == expected
    assert make_statistics([ReAct()], extra=(TrainSample,))[TrainSample].fields == ("logits", "features")
    assert make_statistics([MSP()], extra=(TrainSample,))[TrainSample].fields == ("logits", "features")


def test_a_flipped_bit_in_a_saved_fit_is_noticed(tmp_path: Path) -> None:
    detector = Mahalanobis()
    fit([detector], [Outputs(features=torch.randn(40, 4), labels=torch.arange(40) % 3)])
    save({"m": detector}, tmp_path)
    assert load(tmp_path)[0]["m"].is_fitted
    file = tmp_path / "detectors.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(InvalidArgumentError, match="the tensors do not match their checksum"):
        load(tmp_path)
