"""Fit and score times of all detectors, and against pytorch-ood on the same tensors in the same run.

    python benchmarks/detectors.py                    # 50 000 train, 1000 test, 768 features, 1000 classes
    python benchmarks/detectors.py --train 5000 --only mahalanobis,knn
    python benchmarks/detectors.py --train 6000 --width 2048 --part groups

Part "costs": each detector of the registry alone, what it shares with others included; those that read images or hidden
activations with a timm network of random weights. NegLabel and CSP have 10,000 words of random embeddings, and GL-MCM
196 local tokens. "x head" is the ratio to one product of the same features with the head: the shortest of several times
each, measured in turns. Part "groups": the closed-form ones that came first against the newer
ones that read features, in turns: in a group, what is shared is computed once, as in a run.

oodlit does not depend on pytorch-ood: run `pip install pytorch-ood` first; without it the yardsticks alone are
measured. A ratio is the time of pytorch-ood divided by ours. Fit times include the construction of the detector, where
pytorch-ood does part of the work; ours hold for one detector alone, statistics included; in a run these are shared.
Scores agree up to sign and monotone map where the rank correlation is 1.
"""

import argparse
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from oodlit import detectors as ours
from oodlit.backbones.negatives import WordEmbeddings
from oodlit.detectors.contract.fitting import make_statistics
from oodlit.detectors.formulas.residual_space import default_dim
from oodlit.outputs import Head, Outputs


@dataclass
class Data:
    """One problem: the tensors that both sides are given."""

    train: Tensor
    train_logits: Tensor
    labels: Tensor
    test: Tensor
    test_logits: Tensor
    head: Head

    def outputs(self) -> Outputs:
        """Fresh test outputs: nothing is remembered from an earlier detector."""
        return Outputs(self.test_logits, self.test)

    def training(self) -> Outputs:
        """The training set: one tensor each of features, logits and labels, as pytorch-ood takes them."""
        keys = [f"train/{i}" for i in range(len(self.train))]
        return Outputs(self.train_logits, self.train, self.labels, keys=keys)


def make(train: int, test: int, width: int, classes: int) -> Data:
    """Non-negative features around class means, and a head that knows the means."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(classes, width, generator=generator)
    head = Head(means / width**0.5, 0.1 * torch.randn(classes, generator=generator))

    def features(labels: Tensor, noise: float) -> Tensor:
        return (means[labels] + noise * torch.randn(len(labels), width, generator=generator)).relu()

    labels = torch.arange(train) % classes
    x = features(labels, 1.0)
    some = torch.randint(classes, (test,), generator=generator)
    y = torch.cat([features(some[: test // 2], 1.0), features(some[test // 2 :], 2.0)])
    return Data(x, head(x), labels, y, head(y), head)


def seconds(run: Callable[[], object], *, budget: float = 2.0) -> float:
    """Best time of at least one and at most ten runs within the budget."""
    best, spent = float("inf"), 0.0
    for _ in range(10):
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent = min(best, took), spent + took
        if spent > budget:
            break
    return best


Make = Callable[[], Any]


def theirs(data: Data) -> dict[str, tuple[Make, Make, str]]:
    """Key -> (makes ours, makes theirs with equal settings, what their methods take: logits, features or maps)."""
    from pytorch_ood import detector as po

    w, b = data.head.weight, data.head.offset
    linear = nn.Linear(w.shape[1], w.shape[0])
    linear.weight.data, linear.bias.data = w, b
    flat = nn.Sequential(nn.Flatten(), linear)
    k = min(1000, len(data.train))
    return {
        "msp": (ours.MSP, lambda: po.MaxSoftmax(None), "logits"),
        "max_logit": (ours.MaxLogit, lambda: po.MaxLogit(None), "logits"),
        "energy": (ours.Energy, lambda: po.EnergyBased(None), "logits"),
        "entropy": (ours.Entropy, lambda: po.Entropy(None), "logits"),
        "gen": (ours.GEN, lambda: po.GEN(None, M=100), "logits"),
        "kl_matching": (ours.KLMatching, lambda: po.KLMatching(None), "logits"),
        "open_max": (lambda: ours.OpenMax(tail=20), lambda: po.OpenMax(None, tailsize=20), "logits"),
        "mahalanobis": (ours.Mahalanobis, lambda: po.Mahalanobis(None), "features"),
        "relative_mahalanobis": (ours.RelativeMahalanobis, lambda: po.RMD(None), "features"),
        "vim": (ours.ViM, lambda: po.ViM(None, default_dim(w.shape[1]), w, b), "features"),
        "knn": (lambda: ours.KNN(k=k), lambda: po.KNN(None, k=k), "features"),
        "she": (ours.SHE, lambda: po.SHE(None, linear), "features"),
        "nn_guide": (lambda: ours.NNGuide(bank_size=50_000), lambda: po.NNGuide(None, linear), "features"),
        "fdbd": (ours.FDBD, lambda: po.fDBD(None, linear), "features"),
        "nci": (lambda: ours.NCI(alpha=1e-4), lambda: po.NCI(None, linear, alpha=1e-4), "features"),
        "dice": (ours.DICE, lambda: po.DICE(None, w, b, 0.7), "features"),
        "react": (ours.ReAct, lambda: po.ReAct(None, flat, percentile=0.99), "maps"),
        "vra": (ours.VRA, lambda: po.VRA(None, flat), "maps"),
        "ash": (ours.ASH, lambda: po.ASH(None, flat, "ash-s", 0.9), "maps"),
        "scale": (ours.SCALE, lambda: po.SCALE(None, flat, 0.85), "maps"),
        "grad_norm": (ours.GradNorm, lambda: po.GradNorm(linear), "inputs"),
    }


def fitted(make: Make, kind: str, data: Data) -> Any:
    """A detector of pytorch-ood, made and fitted."""
    detector = make()
    if detector.requires_fit:
        getattr(detector, f"fit_{METHODS[kind]}")(*_tensors(kind, data.train, data.train_logits), data.labels)
    return detector


def scored(detector: Any, kind: str, data: Data) -> Tensor:
    """Scores of pytorch-ood for the test images; higher = OOD."""
    name = f"predict_{METHODS[kind]}" if kind in METHODS else "predict"
    scores: Tensor = getattr(detector, name)(*_tensors(kind, data.test, data.test_logits))
    return scores.detach()


METHODS = {"logits": "logits", "features": "features", "maps": "feature_maps"}


def _tensors(kind: str, features: Tensor, logits: Tensor) -> tuple[Tensor]:
    return (logits if kind == "logits" else features[:, :, None, None] if kind == "maps" else features,)


def race(a: Callable[[], object], b: Callable[[], object], *, budget: float = 4.0) -> tuple[float, float]:
    """Best times of both, in turns, so that other work on the machine meets both; short ones repeated to 10 ms."""
    repeats = [max(1, int(0.01 / seconds(run, budget=0.1))) for run in (a, b)]
    best, spent = [float("inf"), float("inf")], 0.0
    for _ in range(50):
        for i, run in enumerate((a, b)):
            start = time.perf_counter()
            for _ in range(repeats[i]):
                run()
            took = time.perf_counter() - start
            best[i], spent = min(best[i], took / repeats[i]), spent + took
        if spent > budget:
            break
    return best[0], best[1]


def compare(data: Data, only: set[str]) -> None:
    """One row per shared detector."""
    training = data.training()
    columns = f"{'detector':22}{'fit ours':>10}{'theirs':>10}{'ratio':>8}"
    print(f"{columns}{'score ours':>12}{'theirs':>10}{'ratio':>9}  rank corr.")
    for key, (make, make_theirs, kind) in theirs(data).items():
        if only and key not in only:
            continue
        fit_ours = partial(fit, make, data, training)
        fit_theirs = partial(fitted, make_theirs, kind, data)
        mine, other = fit_ours(), fit_theirs()
        fits = f"{'-':>10}{'-':>10}{'-':>8}"
        if other.requires_fit:
            a, b = race(fit_ours, fit_theirs)
            fits = f"{a:10.3f}{b:10.3f}{b / a:8.2f}"
        a, b = race(partial(score, mine, data), partial(scored, other, kind, data))
        same = spearmanr(score(mine, data).double(), -scored(other, kind, data).double()).statistic
        print(f"{key:22}{fits}{1e3 * a:12.2f}{1e3 * b:10.2f}{b / a:9.2f}  {same:.6f}", flush=True)


def fit(make: Make, data: Data, training: Outputs) -> ours.Detector:
    """One of our detectors, made and fitted; nothing is remembered from an earlier fit."""
    detector: ours.Detector = make()
    ours.fit([detector], [replace(training)], data.head)
    return detector


def score(detector: ours.Detector, data: Data) -> Tensor:
    """Our scores for the test images."""
    return detector.score(data.outputs())


def through_network(name: str, images: int) -> tuple[Outputs, Head]:
    """What a timm network of random weights, with dropout, gives for noise: images and the last block's map as well."""
    import timm

    from oodlit import OODModule

    network = timm.create_model(name).eval()
    network.global_pool = nn.Sequential(network.global_pool, nn.Dropout(0.1))
    module = OODModule(network, transform=nn.Identity(), name=name)
    noise = torch.randn(images, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made, feature_map = module(noise), network.forward_features(noise)
        one_pass = seconds(lambda: network(noise), budget=0.5)
    print(f"{name}, one pass:{1e6 * one_pass / images:>45.1f}")
    labels, keys = torch.arange(images) % 4, [f"test/{i}" for i in range(images)]
    more = {"labels": labels, "keys": keys, "images": noise, "hidden": {"feature_map": feature_map}, "model": module}
    return replace(made, **more), module.head


def alone(data: Data, only: set[str], network: str, images: int) -> None:
    """One row per detector of the registry: its fit, statistics included, and its score, nothing shared with others."""
    print(f"{'detector':32}{'cost':20}{'fit s':>10}{'score us/image':>16}{'x head':>10}")
    every = {key: kind() for key, kind in ours.detectors().items() if not only or key in only}
    deep = {key: d for key, d in every.items() if d.required_needs & {"images", "hidden", "model"} and key != "gl_mcm"}
    # Local tokens of a ViT-B/16
    tokens = {"local_tokens": torch.randn(len(data.test), data.test.shape[1], 196)} if "gl_mcm" in every else None
    with tempfile.TemporaryDirectory() as folder:
        if words := {"neg_label", "csp"} & every.keys():
            file, names = f"{folder}/words", [str(i) for i in range(10_000)]
            is_adjective = torch.arange(len(names)) >= 8_000
            WordEmbeddings(torch.randn(len(names), data.test.shape[1]), is_adjective, names).save(file)
            every |= {key: type(every[key])(file, share=1.0) for key in words}
        for key, detector in every.items():
            if key not in deep:
                test = replace(data.outputs(), hidden=tokens if key == "gl_mcm" else None)
                _alone(detector, data.training(), test, data.head)
    if deep:
        outputs, head = through_network(network, images)
        for detector in deep.values():
            _alone(detector, outputs, outputs, head)


def _alone(detector: ours.Detector, training: Outputs, test: Outputs, head: Head) -> None:
    about, start = ours.overview(detector), time.perf_counter()
    ours.fit([detector], [replace(training)], head)
    took = f"{time.perf_counter() - start:10.3f}" if about.is_fitted else f"{'-':>10}"
    features = test.require("features")
    times = []
    for _ in range(15):  # in turns, so that other work on the machine affects both
        product = _once(lambda: torch.addmm(head.offset, features, head.weight.T))
        times.append((_once(lambda: detector.score(replace(test))), product))
        if sum(spent for spent, _ in times) > 10:
            break
    spent, product = map(min, zip(*times, strict=True))
    print(f"{detector.key():32}{about.cost:20}{took}{1e6 * spent / len(test):16.1f}{spent / product:10.1f}", flush=True)


NEWER = (
    *("MahalanobisPlusPlus", "RelativeMahalanobisPlusPlus", "CARef", "CADRef", "OptFS", "LTS", "NECO", "CoP", "CoRP"),
    *("BATS", "WeiPer"),
)
"""Newer detectors of features; together they are to cost at most twice `CLOSED_FORM`."""


def groups(data: Data, *, batch: int = 256, budget: float = 60.0) -> None:
    """Time per image of `NEWER` against `CLOSED_FORM`, in turns, each on separate batches."""
    kinds = {
        "closed form": CLOSED_FORM,
        "newer without WeiPer": [n for n in NEWER if n != "WeiPer"],
        "WeiPer": ["WeiPer"],
    }
    detectors = {name: getattr(ours, name)() for name in (*CLOSED_FORM, *NEWER)}
    ours.fit([*detectors.values()], [data.training()], data.head)
    parts = data.outputs()
    starts = range(0, len(parts), batch)

    def score_all(names: Sequence[str]) -> None:
        for start in starts:
            outputs = parts.select(slice(start, start + batch))
            for name in names:
                detectors[name].score(outputs)

    best, start = dict.fromkeys(kinds, float("inf")), time.perf_counter()
    for _ in range(5):
        for group, names in kinds.items():
            best[group] = min(best[group], _once(partial(score_all, names)))
        if time.perf_counter() - start > budget:
            break
    best["newer"] = best["newer without WeiPer"] + best["WeiPer"]
    for group, spent in best.items():
        print(f"{group:22}{1e6 * spent / len(parts):12.1f} us/image, ratio {spent / best['closed form']:.2f}")


def _once(run: Callable[[], object]) -> float:
    """CPU time, which other programs lengthen less."""
    start = time.process_time()
    run()
    return time.process_time() - start


CLOSED_FORM = (
    *("MSP", "MaxLogit", "Energy", "Entropy", "GEN", "KLMatching", "Mahalanobis", "RelativeMahalanobis", "ViM"),
    *("Residual", "ReAct", "Cosine", "RelativeCosine", "GradNorm", "DICE", "ASH", "SCALE", "SHE", "FDBD", "NCI", "VRA"),
)


def yardsticks(data: Data) -> None:
    """All statistics against one product X'X in float64; all closed-form scores against one product X W'."""
    detectors = [getattr(ours, name)() for name in CLOSED_FORM]
    training = data.training()
    statistics = make_statistics(detectors)

    def accumulate() -> None:
        for statistic in statistics.values():
            statistic.reset()
        statistics.update(replace(training))

    double = data.train.double()
    product = seconds(lambda: double.T @ double)
    spent = seconds(accumulate, budget=0)
    kinds = ", ".join(k.__name__ for k in statistics)
    print(f"statistics ({kinds}): {spent:.2f} s = {spent / product:.2f} x one X'X in float64 ({product:.2f} s)")
    for detector in detectors:
        detector.fit(statistics, data.head)

    def score_all() -> None:
        outputs = data.outputs()
        for detector in detectors:
            detector.score(outputs)

    product, spent = seconds(lambda: data.test @ data.head.weight.T), seconds(score_all)
    times = f"{1e3 * spent:.1f} ms = {spent / product:.1f} x one XW' ({1e3 * product:.1f} ms)"
    print(f"{len(detectors)} closed-form scores: {times}")


def main() -> None:
    """Parse the sizes and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"train": 50_000, "test": 1000, "width": 768, "classes": 1000}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch; one is steadier where others share the machine"
    )
    parser.add_argument("--part", choices=("all", "costs", "groups", "pytorch-ood"), default="all")
    parser.add_argument("--network", default="resnet18", help="timm network for images and hidden activations")
    parser.add_argument("--images", type=int, default=8, help="images through the network")
    parser.add_argument("--only", type=lambda text: set(text.split(",")), default=set(), help="keys of detectors")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.disable(logging.WARNING)  # notes of the fits
    data = make(arguments.train, arguments.test, arguments.width, arguments.classes)
    print(f"{len(data.train)} train, {len(data.test)} test, {arguments.width} features, {arguments.classes} classes")
    cores = f"{arguments.threads} of {os.cpu_count()} cores"
    print(f"{platform.processor() or platform.machine()}, {cores}, torch {torch.__version__}")
    if arguments.part in ("all", "costs"):
        alone(data, arguments.only, arguments.network, arguments.images)
    if arguments.part in ("all", "groups"):
        groups(data)
    if arguments.part not in ("all", "pytorch-ood"):
        return
    yardsticks(data)
    try:
        import pytorch_ood
    except ImportError:
        print("pytorch-ood is not installed: no comparison")
        return
    print(f"pytorch-ood {pytorch_ood.__version__}; fit in seconds, score in milliseconds")
    compare(data, arguments.only)


if __name__ == "__main__":
    main()
