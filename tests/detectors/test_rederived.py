"""Every detector once more, by the plain loops of `formulas`, on problems that are easy to get wrong."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from oodlit.detectors import (
    ASH,
    BATS,
    DDU,
    DICE,
    FDBD,
    GEN,
    KNN,
    LTS,
    MCM,
    MSP,
    NAC,
    NCI,
    NECO,
    ODIN,
    ORA,
    RAS,
    SCALE,
    SHE,
    VRA,
    ActSub,
    CADRef,
    CARef,
    CoP,
    CoRP,
    Cosine,
    Detector,
    Energy,
    Entropy,
    GradNorm,
    KLMatching,
    LaRD,
    Mahalanobis,
    MahalanobisPlusPlus,
    MaxLogit,
    MCDropout,
    NNGuide,
    OpenMax,
    OptFS,
    RankFeat,
    ReAct,
    RelativeCosine,
    RelativeMahalanobis,
    RelativeMahalanobisPlusPlus,
    Residual,
    TemperatureScaledMSP,
    ViM,
    WeiPer,
    detectors,
    fit,
)
from oodlit.detectors.shaping.rank_feat import without_first_component
from oodlit.outputs import Outputs

from .formulas import (
    INFINITY,
    PROBLEMS,
    Array,
    Problem,
    ash,
    class_means,
    clipped,
    cosines,
    cut,
    ddu,
    each,
    entropy,
    fdbd,
    gen,
    grad_norm,
    kl_matching,
    knn,
    log_p,
    lse,
    mahalanobis,
    msp,
    nci,
    nn_guide,
    open_max,
    problem,
    relative_mahalanobis,
    rescored,
    residual_norms,
    she,
    sparse_head,
    temperature_scaled,
    typical,
    unit,
    vim,
)
from .networks import Conv, PlainModel
from .newer_formulas import (
    ca_ref,
    cad_ref,
    cop,
    corp,
    lts,
    mahalanobis_plus_plus,
    nac,
    neco,
    opt_fs,
    relative_mahalanobis_plus_plus,
    wei_per,
)
from .recent_formulas import act_sub, mahalanobis_of_power, ora, ras

CASES: dict[str, tuple[Callable[[], Detector], Callable[[Problem], Array]]] = {
    "msp": (MSP, lambda p: each(p.zq, msp)),
    "max_logit": (MaxLogit, lambda p: p.zq.max(axis=1)),
    "energy": (Energy, lambda p: each(p.zq, lse)),
    "energy-2.5": (lambda: Energy(2.5), lambda p: each(p.zq, lambda z: 2.5 * lse(z / 2.5))),
    "entropy": (Entropy, lambda p: each(p.zq, entropy)),
    "gen": (GEN, lambda p: each(p.zq, gen)),
    "gen-top-3": (lambda: GEN(0.3, 3), lambda p: each(p.zq, lambda z: gen(z, 0.3, 3))),
    "kl_matching": (KLMatching, kl_matching),
    "temperature_scaled_msp": (TemperatureScaledMSP, temperature_scaled),
    "open_max": (OpenMax, open_max),
    "open_max-7-3": (lambda: OpenMax(7, 3), lambda p: open_max(p, 7, 3)),
    "mahalanobis": (Mahalanobis, mahalanobis),
    "mahalanobis-0.5": (lambda: Mahalanobis(power=0.5), lambda p: mahalanobis_of_power(p, 0.5)),
    "mahalanobis-1": (lambda: Mahalanobis(power=1), mahalanobis_plus_plus),
    "mahalanobis-1.5": (lambda: Mahalanobis(power=1.5), lambda p: mahalanobis_of_power(p, 1.5)),
    "ras": (RAS, lambda p: rescored(p, ras(p))),
    "ras-msp": (lambda: RAS(then=MSP()), lambda p: rescored(p, ras(p), msp)),
    "ora": (ORA, ora),
    "act_sub": (ActSub, act_sub),
    "act_sub-vit": (lambda: ActSub.preset("imagenet-vit"), lambda p: act_sub(p, 97.5, 1.0)),
    "act_sub-50-0.5-2-3": (lambda: ActSub(50.0, 0.5, dim=1, k=3), lambda p: act_sub(p, 50.0, 0.5, 1, 3)),
    "relative_mahalanobis": (RelativeMahalanobis, relative_mahalanobis),
    "mahalanobis_plus_plus": (MahalanobisPlusPlus, mahalanobis_plus_plus),
    "relative_mahalanobis_plus_plus": (RelativeMahalanobisPlusPlus, relative_mahalanobis_plus_plus),
    "cop": (CoP, cop),
    "cop-0.7": (lambda: CoP(0.7), lambda p: cop(p, 0.7)),
    "corp": (CoRP, corp),
    "corp-0.9-0.5-7": (lambda: CoRP(0.9, 0.5, 7, seed=3), lambda p: corp(p, 0.9, 0.5, 7, 3)),
    "neco": (NECO, neco),
    "neco-3": (lambda: NECO(dim=3), lambda p: neco(p, dim=3)),
    "neco-resnet": (lambda: NECO.preset("resnet", variance=0.6), lambda p: neco(p, 0.6, max_logit=False)),
    "lts": (LTS, lts),
    "lts-40": (lambda: LTS(40.0), lambda p: lts(p, 40.0)),
    "bats": (BATS, lambda p: rescored(p, typical(p, 1.05))),
    "bats-msp": (lambda: BATS(0.4, then=MSP()), lambda p: rescored(p, typical(p, 0.4), msp)),
    "ca_ref": (CARef, ca_ref),
    "cad_ref": (CADRef, cad_ref),
    "cad_ref-max-logit": (lambda: CADRef("max_logit"), lambda p: cad_ref(p, "max_logit")),
    "cad_ref-msp": (lambda: CADRef("msp"), lambda p: cad_ref(p, "msp")),
    "opt_fs": (OptFS, opt_fs),
    "opt_fs-energy-7": (lambda: OptFS(7, "energy"), lambda p: opt_fs(p, 7, "energy")),
    "wei_per": (lambda: WeiPer(10), lambda p: wei_per(p, 10)),
    "wei_per-logits": (lambda: WeiPer(10, perturb="logits"), lambda p: wei_per(p, 10, logits=True)),
    "wei_per-small": (
        lambda: WeiPer(3, 0.5, 12, 1.0, 2.0, 4, 3, seed=5),
        lambda p: wei_per(p, 3, 0.5, 12, 1.0, 2.0, (4, 3), 5),
    ),
    "nac": (NAC, nac),
    "nac-imagenet": (lambda: NAC.preset("imagenet-resnet50"), lambda p: nac(p, steepness=3000.0)),
    "nac-8-3-0.5": (lambda: NAC(8, 3, 0.5), lambda p: nac(p, 8, 3, 0.5)),
    "vim": (ViM, vim),
    "vim-3": (lambda: ViM(3), lambda p: vim(p, 3)),
    "residual": (Residual, lambda p: -residual_norms(p, p.q, None)),
    "knn-1": (lambda: KNN(1), lambda p: knn(p, 1)),
    "knn-9": (lambda: KNN(9), lambda p: knn(p, 9)),
    "cosine": (Cosine, lambda p: cosines(p, class_means(p)).max(axis=1)),
    "cosine-head": (lambda: Cosine.preset("zero-shot"), lambda p: cosines(p, list(p.W)).max(axis=1)),
    "relative_cosine": (RelativeCosine, lambda p: each(cosines(p, class_means(p)), msp)),
    "mcm": (MCM, lambda p: each(cosines(p, list(p.W)), msp)),
    "mcm-0.5": (
        lambda: RelativeCosine.preset("mcm", temperature=0.5),
        lambda p: each(cosines(p, list(p.W)) / 0.5, msp),
    ),
    "relative_cosine-0.1": (
        lambda: RelativeCosine(temperature=0.1),
        lambda p: each(cosines(p, class_means(p)) / 0.1, msp),
    ),
    "nn_guide": (NNGuide, lambda p: nn_guide(p, 10)),
    "she": (SHE, she),
    "grad_norm": (GradNorm, grad_norm),
    "fdbd": (FDBD, fdbd),
    "nci": (NCI, lambda p: nci(p, 1e-4)),
    "nci-0.2": (lambda: NCI(0.2), lambda p: nci(p, 0.2)),
    "ddu": (DDU, lambda p: ddu(p, "tied")),
    "ddu-full": (lambda: DDU.preset("paper"), lambda p: ddu(p, "full")),
    "ddu-diagonal": (lambda: DDU("diagonal"), lambda p: ddu(p, "diagonal")),
    "re_act": (ReAct, lambda p: rescored(p, clipped(p, 99.0))),
    "re_act-p90": (lambda: ReAct.preset("p90-val"), lambda p: rescored(p, clipped(p, 90.0))),
    "re_act-msp": (lambda: ReAct(then=MSP()), lambda p: rescored(p, clipped(p, 99.0), msp)),
    "re_act-dice": (
        lambda: ReAct.preset("dice"),
        lambda p: rescored(p, np.minimum(p.q, 1.0), weight=sparse_head(p, 10.0)),
    ),
    "re_act-dice-max-logit": (
        lambda: ReAct(threshold=0.7, then=DICE(30.0, then=MaxLogit())),
        lambda p: rescored(p, np.minimum(p.q, 0.7), lambda z: z.max(), sparse_head(p, 30.0)),
    ),
    "dice": (DICE, lambda p: rescored(p, p.q, weight=sparse_head(p, 70.0))),
    "dice-entropy": (lambda: DICE(90.0, then=Entropy()), lambda p: rescored(p, p.q, entropy, sparse_head(p, 90.0))),
    "vra": (VRA, lambda p: rescored(p, cut(p, 1.0, 99.0))),
    "vra-10-80": (lambda: VRA(10.0, 80.0), lambda p: rescored(p, cut(p, 10.0, 80.0))),
    "vra-gen": (lambda: VRA(60.0, 95.0, then=GEN()), lambda p: rescored(p, cut(p, 60.0, 95.0), gen)),
    "ash": (ASH, lambda p: rescored(p, ash(p, "s", 90.0))),
    "ash-b": (lambda: ASH.preset("b-65"), lambda p: rescored(p, ash(p, "b", 65.0))),
    "ash-p": (lambda: ASH.preset("p-60"), lambda p: rescored(p, ash(p, "p", 60.0))),
    "ash-max-logit": (lambda: ASH("s", 50.0, MaxLogit()), lambda p: rescored(p, ash(p, "s", 50.0), lambda z: z.max())),
    "scale": (SCALE, lambda p: rescored(p, ash(p, "scale", 85.0))),
    "scale-msp": (lambda: SCALE(50.0, MSP()), lambda p: rescored(p, ash(p, "scale", 50.0), msp)),
    "ash-on-clipped": (
        lambda: ReAct(then=ASH("p", 50.0)),
        lambda p: rescored(p, ash(replace(p, q=clipped(p, 99.0)), "p", 50.0)),
    ),
}
ELSEWHERE = {"ada_scale", "iodin", "pro", "odin", "mc_dropout", "lard", "rank_feat"} | {"gl_mcm", "neg_label", "csp"}
ELSEWHERE |= {"combined", "sirc"}
"""At the end, in `test_gradient_detectors`, `test_zero_shot` and `test_combinations`."""
NON_NEGATIVE = {name for name in CASES if name.startswith(("ash", "scale"))}
NEED_A_COVARIANCE = {
    *(name for name in CASES if name.startswith("mahalanobis")),
    "relative_mahalanobis",
    "relative_mahalanobis_plus_plus",
    "ddu",
    "ddu-full",
    "ddu-diagonal",
}
SINGULAR = {"one-image-per-class", "more-features-than-images"}


def defined(name: str, kind: str) -> bool:
    """Whether the plain formula has a value: no inverse of a singular matrix, no pruning of signed features."""
    return not (name in NEED_A_COVARIANCE and kind in SINGULAR) and not (name in NON_NEGATIVE and kind == "signed")


def test_every_detector_is_rederived() -> None:
    keys = {kind.key() for kind in detectors().values()}
    assert {type(make()).key() for make, _ in CASES.values()} | ELSEWHERE == keys
    assert len(keys) >= 54


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n in CASES for k in PROBLEMS if defined(n, k)])
def test_scores_are_those_of_the_formula(name: str, kind: str) -> None:
    make, formula = CASES[name]
    given = PROBLEMS[kind]()
    expected = formula(given)
    # Differences of large terms: their error is measured by the size of the scores.
    rtol = 1e-6 if name in {"temperature_scaled_msp", "wei_per-logits"} else 1e-9
    np.testing.assert_allclose(given.scores(make()), expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_scores_in_float32_are_those_of_the_formula(name: str) -> None:
    make, formula = CASES[name]
    given = problem(seed=10)
    expected = formula(given)
    scores = given.scores(make(), torch.float32)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


MASKABLE = {
    "ca_ref",
    "cad_ref-msp",
    "neco",
    "msp",
    "energy",
    "entropy",
    "gen",
    "kl_matching",
    "temperature_scaled_msp",
    "open_max-7-3",
    "nn_guide",
    "she",
}


@pytest.mark.parametrize("name", sorted(MASKABLE | {"max_logit", "fdbd", "nci", "ora"}))
def test_a_masked_class_counts_as_little_as_one_that_is_not_there(name: str) -> None:
    given = problem(seed=11)
    rows = given.y < 5
    given = replace(given, x=given.x[rows], y=given.y[rows], zx=given.zx[rows])
    without = replace(given, W=given.W[:5], b=given.b[:5], zx=given.zx[:, :5], zq=given.zq[:, :5])
    masked = replace(given, zx=given.zx.copy(), zq=given.zq.copy())
    masked.zx[:, 5] = masked.zq[:, 5] = -INFINITY
    make, _ = CASES[name]
    np.testing.assert_allclose(masked.scores(make()), without.scores(make()), rtol=1e-9)


# --- Detectors that need a network


@pytest.mark.parametrize("preset", ["paper", "cood"])
def test_odin_presets(preset: str) -> None:
    """Liang et al., ICLR 2018: a step of eps in pixels, so eps / std of each channel, against the cross entropy."""
    temperature, epsilon = {"paper": (1000.0, 0.0014), "cood": (2.0, 1e-5)}[preset]
    network, std = Conv(), torch.tensor([0.2, 0.5, 1.0])
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3, 5, 5))).float()
    expected = []
    for image in images:
        x = image[None].clone().requires_grad_()
        z = network(x)[0] / temperature
        (gradient,) = torch.autograd.grad(z.logsumexp(dim=0) - z.max(), x)
        step = torch.stack([epsilon / s * g.sign() for s, g in zip(std, gradient[0], strict=True)])
        with torch.no_grad():
            expected.append(msp(network(image[None] - step)[0].double().numpy() / temperature))
    with torch.no_grad():
        outputs = Outputs(network(images), images=images, model=PlainModel(network, std))
    scores = ODIN.preset(preset).score(outputs).numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert len(np.unique(scores)) == len(scores)


@pytest.mark.parametrize("measure", ["entropy", "max"])
def test_mc_dropout_takes_the_mean_of_its_passes(measure: Literal["entropy", "max"]) -> None:
    """Gal and Ghahramani, ICML 2016: the predictive distribution is the mean softmax of the passes."""
    model, passes = PlainModel(Conv(dropout=(nn.Dropout(0.5),)), torch.ones(3)), []

    class Recorded(PlainModel):
        def logits(self, images: torch.Tensor) -> torch.Tensor:
            passes.append(super().logits(images))
            return passes[-1]

    images = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 3, 5, 5))).float()
    outputs = Outputs(torch.zeros(4, 4), images=images, model=Recorded(model.network, model.std))
    scores = MCDropout(measure=measure).score(outputs).numpy()
    softmax = np.exp([[log_p(z) for z in one.detach().double().numpy()] for one in passes])
    assert len(softmax) == 30
    assert np.ptp(softmax, axis=0).max() > 0.01
    mean = softmax.mean(axis=0)
    expected = mean.max(axis=1) if measure == "max" else (mean * np.log(mean)).sum(axis=1)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 4, 5), (6, 1, 2)], ids=["wide", "tall"])
def test_rank_feat(shape: tuple[int, int, int]) -> None:
    """Song et al., NeurIPS 2022: the map without its first singular component, then the rest of the network."""
    network = Conv(width=shape[0])
    maps = np.random.default_rng(0).normal(size=(5, *shape)) + 1
    expected, rests = [], []
    for one in maps:
        u, s, v = np.linalg.svd(one.reshape(shape[0], -1))
        rest = one.reshape(shape[0], -1) - s[0] * np.outer(u[:, 0], v[0])
        rests.append(rest.reshape(shape))
        z = network.head.weight.detach().double().numpy() @ rest.mean(axis=1) + network.head.bias.detach().numpy()
        expected.append((lse(z), msp(z)))
    np.testing.assert_allclose(without_first_component(torch.from_numpy(maps)), rests, atol=1e-12)
    outputs = Outputs(
        torch.zeros(5, 4), hidden={"feature_map": torch.from_numpy(maps)}, model=PlainModel(network, torch.ones(3))
    )
    scores = [RankFeat(then=then).score(outputs).detach().numpy() for then in (None, MSP())]
    np.testing.assert_allclose(np.transpose(scores), expected, rtol=1e-4)


def hidden_clusters(images: int, seed: int) -> tuple[torch.Tensor, Array, NDArray[np.int64]]:
    """Maps, their channel means, and labels without class 1; three clusters far from each other."""
    rng = np.random.default_rng(seed)
    y = np.array([0, 2, 3])[np.arange(images) % 3]
    maps = (
        rng.normal(size=(images, 4, 2, 3))
        + (np.array([[9.0, 0, 0, 0], [0] * 4, [0, 9, 0, 0], [0, 0, 9, 0]])[y])[..., None, None]
    )
    return torch.from_numpy(maps), maps.mean(axis=(2, 3)), y


@pytest.mark.parametrize("density", ["mahalanobis", "knn", "gmm"])
@pytest.mark.parametrize("dim", [None, 3])
def test_lard(density: Literal["mahalanobis", "knn", "gmm"], dim: int | None) -> None:
    """Arnez et al., UAI 2024: principal components of the channel means of a hidden layer, and a density of them."""
    (maps, h, y), (test_maps, g, _) = hidden_clusters(120, 0), hidden_clusters(12, 1)
    if dim is not None:
        values, vectors = np.linalg.eigh(np.cov(h.T))
        basis = vectors[:, np.argsort(-values)[:dim]]
        h, g = (h - h.mean(axis=0)) @ basis, (g - h.mean(axis=0)) @ basis
    parts = [h[y == c] for c in (0, 2, 3)]
    if density == "mahalanobis":
        precision = np.linalg.inv(sum(len(part) * np.cov(part.T, bias=True) for part in parts) / len(h))
        expected = each(
            g, lambda x: -min(float((x - m) @ precision @ (x - m)) for m in (a.mean(axis=0) for a in parts))
        )
    elif density == "knn":
        expected = each(g, lambda x: -sorted(float(np.linalg.norm(unit(x) - unit(n))) for n in h)[4])
    else:  # clusters as far apart as these: the mixture of largest likelihood has one component for each
        models = [(a.mean(axis=0), np.cov(a.T, bias=True)) for a in parts]
        expected = each(
            g, lambda x: lse(np.array([stats.multivariate_normal(m, s).logpdf(x) for m, s in models])) - math.log(3)
        )
    detector = LaRD("block", density=density, dim=dim, k=5, components=3)
    fit([detector], [Outputs(torch.zeros(120, 4), labels=torch.from_numpy(y), hidden={"block": maps})])
    scores = detector.score(Outputs(torch.zeros(12, 4), hidden={"block": test_maps})).numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-3 if density == "gmm" else 1e-9)
