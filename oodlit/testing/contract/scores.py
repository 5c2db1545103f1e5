"""Checks of the scores: shape, direction and range."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from oodlit.base.errors import OodlitError
from oodlit.base.outputs import Outputs
from oodlit.testing.clauses import Factory, clause, examples
from oodlit.testing.comparison import assert_same_scores, fitted
from oodlit.testing.problems import Problem, ProblemFactory, change_tensors, cut, select
from oodlit.testing.shorten import shorten

MIN_AUROC = 0.95


@clause(
    "score-form",
    "Scores are float32 or float64, one per image, on the device of the outputs, equal on all devices, without"
    " gradient.",
)
def check_score_form(factory: Factory, problem: ProblemFactory) -> None:
    """Check shape, dtype and device, for several images and for one, on the CPU and on CUDA if available."""
    expected = None
    for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        data = problem()
        data.model.network.to(device)
        detector = fitted(factory, data if device == "cpu" else _on(data, device)).to(device)
        for outputs in (data.tests.to(device), select(data.tests, slice(0, 1)).to(device)):
            scores = detector.score(outputs)
            assert isinstance(scores, Tensor), f"expected score to return a tensor, got {type(scores).__name__}"
            assert scores.shape == (len(outputs),), (
                f"expected one score per image, got shape {tuple(scores.shape)} for {len(outputs)} images"
            )
            assert (t := scores.dtype) in {torch.float32, torch.float64}, f"expected float32 or float64 scores, got {t}"
            assert scores.device == outputs.device, (
                f"the scores are on {scores.device}, but the outputs are on {outputs.device}"
            )
            assert not scores.requires_grad, "the scores require a gradient; detach them"
        scores = detector.score(data.tests.to(device))
        expected = scores if expected is None else expected
        assert_same_scores(scores, expected, what=f"on {device}", rtol=1e-4)


def auroc_of(scores: Tensor, is_id: Tensor) -> float:
    """Fraction of pairs in which the in-distribution image scores higher; ties count half."""
    above = (scores[is_id][:, None] > scores[~is_id]).double() + (scores[is_id][:, None] == scores[~is_id]).double() / 2
    return float(above.mean())


def _on(data: Problem, device: str) -> Problem:
    return data.mapped(lambda outputs: outputs.to(device), data.head.to(device))


@clause("higher-is-id", "A higher score means more in-distribution.")
def check_higher_is_id(factory: Factory, problem: ProblemFactory) -> None:
    """Score separated data: in-distribution images must rank higher than others."""
    data = problem()
    auroc = auroc_of(fitted(factory, data).score(data.tests).double(), data.tests_are_id)
    hint = "; is the sign reversed?" if auroc < 0.5 else ""
    assert auroc >= MIN_AUROC, f"expected AUROC >= {MIN_AUROC} on well-separated data, got {auroc:.3f}{hint}"


@clause(
    "confidence",
    "`confidences` preserve the order of the scores; if `log_probability` is declared, they are between 0 and 1.",
)
def check_confidence(factory: Factory, problem: ProblemFactory) -> None:
    """Check the confidences of ID and OOD images, and scores that are declared to be logarithms."""
    data = problem()
    detector = fitted(factory, data)
    scores = detector.score(data.tests).double()
    found = detector.confidences(scores)
    assert found.shape == scores.shape, (
        f"expected one confidence per score, got shape {tuple(found.shape)} for {len(scores)} scores"
    )
    assert found.dtype == torch.float64, f"expected confidences of dtype float64, got {found.dtype}"
    if detector.log_probability:
        assert (scores <= 0).all(), (
            f"log_probability requires scores of at most 0, but the largest score is {float(scores.max()):.6g}"
        )
    expected = scores.exp() if detector.log_probability else scores
    assert torch.equal(found, expected), (
        "expected confidences() to return exp(score) if `log_probability` is declared, otherwise the scores"
    )


@clause("finite", "Finite logits, features and images have finite scores, however extreme they are.")
def check_finite_on_extremes(factory: Factory, problem: ProblemFactory) -> None:
    """Score zeros, ties, tiny and huge values, in logits and features separately and through the network."""
    from oodlit.testing.strategies import extreme_values, matrices  # noqa: PLC0415  # hypothesis on use

    data = problem()
    detector = fitted(factory, data)
    base = select(data.tests, slice(0, 3))
    signed = data.facts.signed_features
    logits = matrices(rows=3, columns=data.head.num_classes, elements=extreme_values(magnitude=1e5))
    features = matrices(rows=3, columns=data.head.width, elements=extreme_values(magnitude=1e6, signed=signed))

    def look(outputs: Outputs, what: str) -> None:
        scores = detector.score(outputs)
        assert scores.isfinite().all(), f"{what}: scores {scores.tolist()}"

    for name, change in _EXTREME_IMAGES.items():
        look(data.model.outputs(change(base.require("images")), keys=base.keys), f"images {name}")
    for name, row in _EXTREME_ROWS.items():
        z, x = (row(width).repeat(3, 1) for width in (data.head.num_classes, data.head.width))
        look(replace(base, logits=z), f"logits {name}")
        look(replace(base, features=x), f"features {name}")
        look(replace(base, features=x, logits=data.head(x)), f"features {name}, with the head's logits")

    @examples(z=logits, x=features)
    def _(z: Tensor, x: Tensor) -> None:
        look(replace(base, logits=z, features=x), "logits z, features x")
        look(replace(base, logits=data.head(x), features=x), "features x, with the head's logits")


_EXTREME_ROWS: dict[str, Any] = {
    "all zero": torch.zeros,
    "all tied at 1e-30": lambda width: torch.full((width,), 1e-30),
    "all tied at 40": lambda width: torch.full((width,), 40.0),
    "all tied at 1e5": lambda width: torch.full((width,), 1e5),
    "(200, 0, 0, ...)": lambda width: torch.eye(width)[0] * 200,
    "(1e5, 0, 0, ...)": lambda width: torch.eye(width)[0] * 1e5,
    "(0.005, 0.004, 0.004, ...)": lambda width: torch.full((width,), 0.004) + torch.eye(width)[0] * 0.001,
}
_EXTREME_IMAGES: dict[str, Any] = {
    "all zero": torch.zeros_like,
    "all one": torch.ones_like,
    "times 1000": lambda images: images * 1000,
    "divided by 1e6": lambda images: images / 1e6,
    "negated": lambda images: -images,
}


@clause("nan-refused", "NaN in a required field raises a clear error.")
def check_nan_is_refused(factory: Factory, problem: ProblemFactory) -> None:
    """Put one NaN into each required field."""
    data = problem()
    detector = fitted(factory, data)
    for name in sorted(detector.required_needs & {"logits", "features", "images", "hidden"}):
        try:
            scores = detector.score(_with_nan(data.tests, name))
        except OodlitError as error:
            if "nan" not in str(error).lower():
                raise AssertionError(f"NaN in {name} raised an error that does not mention NaN: {error}") from error
        else:
            raise AssertionError(f"NaN in {name} of image 1 raised no error; the score is {float(scores[1]):.6g}")


def _with_nan(outputs: Outputs, name: str) -> Outputs:
    def spoil(tensor: Tensor) -> Tensor:
        spoilt = tensor.clone()
        spoilt[1].view(-1)[0] = float("nan")
        return spoilt

    return change_tensors(outputs, lambda field, tensor: spoil(tensor) if field == name else tensor)


@clause("score-batches", "The score of an image does not depend on the other images of its batch, or on their order.")
def check_batches_in_score(factory: Factory, problem: ProblemFactory) -> None:
    """Score the images in any order and batch sizes."""
    from oodlit.testing.strategies import cuts  # noqa: PLC0415  # hypothesis on use

    data = problem()
    detector = fitted(factory, data)
    tests = data.tests
    whole = detector.score(tests)

    @examples(order_and_sizes=cuts(len(tests)))
    def _(order_and_sizes: Any) -> None:
        order, sizes = order_and_sizes
        parts = torch.cat([detector.score(batch) for batch in cut(tests, sizes, order)])
        assert_same_scores(
            parts, whole[torch.tensor(order)], what=f"batches of {shorten(sizes)} images in another order"
        )


@clause("half-precision", "Half-precision outputs are upcast before scoring; autocast has no effect.")
def check_half_precision(factory: Factory, problem: ProblemFactory) -> None:
    """Compare scores of half-precision outputs with those of the same values in float32."""
    data = problem()
    detector = fitted(factory, data)
    for dtype in (torch.float16, torch.bfloat16):
        half = _cast(data.tests, dtype)
        expected = detector.score(_cast(half, torch.float32))
        assert_same_scores(detector.score(half), expected, what=f"{dtype} outputs")
        with torch.autocast("cpu", dtype=dtype):
            assert_same_scores(detector.score(_cast(half, torch.float32)), expected, what=f"under autocast to {dtype}")


def _cast(outputs: Outputs, dtype: torch.dtype) -> Outputs:
    fields = ("logits", "features", "hidden")
    return change_tensors(outputs, lambda field, tensor: tensor.to(dtype) if field in fields else tensor)


@clause("inference-mode", "Fit and score have the same results inside and outside torch.inference_mode.")
def check_inference_mode(factory: Factory, problem: ProblemFactory) -> None:
    """Compare fit and score inside and outside of inference mode."""
    data = problem()
    expected = fitted(factory, data).score(data.tests)
    with torch.inference_mode():
        again = data.mapped(lambda o: data.model.outputs(o.require("images").clone(), labels=o.labels, keys=o.keys))
        detector = fitted(factory, again)
        inside = detector.score(again.tests)
    assert_same_scores(inside, expected, what="fitted and scored inside inference mode")
    assert_same_scores(detector.score(data.tests), expected, what="fitted inside inference mode, scored outside")
