"""MCM, GL-MCM, NegLabel and CSP by plain loops over the formulas, with known embeddings."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from oodlit.base.words.embeddings import WordEmbeddings
from oodlit.detectors import CSP, GLMCM, MCM, Cosine, Detector, NegLabel, RelativeCosine, fit, load, save
from oodlit.detectors.formulas import negative_words
from oodlit.detectors.zero_shot import gl_mcm
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.outputs import BackboneFacts, Head, Outputs

Array = NDArray[np.float64]
NOUNS, ADJECTIVES, WIDTH, CLASSES = 33, 21, 5, 7
NUMBERS = np.random.default_rng(0)
CLASS_ROWS, IMAGES = NUMBERS.normal(size=(CLASSES, WIDTH)), NUMBERS.normal(size=(9, WIDTH))
WORD_ROWS = NUMBERS.normal(size=(NOUNS + ADJECTIVES, WIDTH)).astype(np.float32).astype(float)
WORD_ROWS[4] = CLASS_ROWS[2]  # nearly a class: barred by CSP
TOKENS = NUMBERS.normal(size=(9, WIDTH, 4, 5))
HEAD = Head(torch.from_numpy(CLASS_ROWS))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "words.safetensors"
    kind = torch.arange(len(WORD_ROWS)) >= NOUNS
    prompts = {"nouns": ["the nice {class}"], "adjectives": ["This is a {class} photo"]}
    words = [f"word {i}" for i in range(len(kind))]
    WordEmbeddings(torch.from_numpy(WORD_ROWS).float(), kind, words, prompts, "sines").save(path)
    return str(path)


def fitted(detector: Detector) -> Detector:
    fit([detector], [], HEAD)
    return detector


def scores(detector: Detector, rows: slice = slice(None)) -> Array:
    hidden = {"local_tokens": torch.from_numpy(TOKENS[rows])}
    found: Array = fitted(detector).score(Outputs(features=torch.from_numpy(IMAGES[rows]), hidden=hidden)).numpy()
    return found


def cosine(x: Array, y: Array) -> float:
    return float(x @ y) / math.sqrt(float(x @ x) * float(y @ y))


def selected(share: float, quantile: float, largest: float = 2.0) -> list[int]:
    """Jiang et al., ICLR 2024, and Chen et al., NeurIPS 2024: sorted by a quantile, interpolated; each kind alone."""
    distances = []
    for word in WORD_ROWS:
        cosines = sorted(cosine(word, c) for c in CLASS_ROWS)
        place = quantile * (CLASSES - 1)
        low = int(place)
        between = cosines[low] + (place - low) * (cosines[min(low + 1, CLASSES - 1)] - cosines[low])
        distances.append(1.0 if cosines[-1] > largest else between)
    chosen = []
    for kind in (range(NOUNS), range(NOUNS, NOUNS + ADJECTIVES)):
        chosen += sorted(kind, key=lambda i: distances[i])[: int(len(kind) * share)]
    return chosen


def neg_label(groups: int, temperature: float, chosen: list[int], seed: int = 0) -> Array:
    each = len(chosen) // groups
    kept = chosen[: each * groups]  # the rest is dropped before they are shuffled
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(seed)).tolist()
    shuffled, result = [kept[i] for i in order], []
    for x in IMAGES:
        inside, parts = sum(math.exp(cosine(x, c) / temperature) for c in CLASS_ROWS), []
        for g in range(groups):
            words = shuffled[g * each : (g + 1) * each]
            parts.append(inside / (inside + sum(math.exp(cosine(x, WORD_ROWS[n]) / temperature) for n in words)))
        result.append(sum(parts) / groups)
    return np.array(result)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"share": 0.5, "quantile": 0.95, "groups": 4, "temperature": 0.1}, 26),
        ({"share": 0.7, "quantile": 0.5, "groups": 5, "temperature": 0.01, "seed": 3}, 37),
        ({"share": 1.0, "quantile": 1.0, "groups": 1, "temperature": 1.0}, 54),
    ],
)
@pytest.mark.parametrize("kind", [NegLabel, CSP])
def test_negative_words_by_loops(file: str, kind: Any, settings: dict[str, Any], kept: int) -> None:
    chosen = selected(settings["share"], settings["quantile"], 0.95 if kind is CSP else 2.0)
    assert len(chosen) == kept
    if kept % settings["groups"]:
        assert kept > settings["groups"]
    expected = neg_label(settings["groups"], settings["temperature"], chosen, settings.get("seed", 0))
    detector = kind(file, **settings)
    np.testing.assert_allclose(np.exp(scores(detector)), expected, rtol=1e-9)
    np.testing.assert_allclose(detector.confidences(torch.from_numpy(scores(detector))), expected, rtol=1e-9)


def test_csp_keeps_words_near_a_class_last(file: str) -> None:
    assert 4 in selected(0.9, 0.5)
    assert 4 not in selected(0.9, 0.5, 0.95)
    settings = {"share": 0.9, "quantile": 0.5, "groups": 1, "temperature": 0.05}
    assert (scores(CSP(file, **settings)) > scores(NegLabel(file, **settings))).sum() > 0


def test_probabilities_near_0_and_1_do_not_tie(file: str) -> None:
    """In float64, the probabilities themselves would be 0 or 1."""
    detector = fitted(NegLabel(file, share=1.0, groups=1, temperature=1e-3))
    near = torch.from_numpy(np.concatenate([CLASS_ROWS, WORD_ROWS[10:14]]))
    found = detector.score(Outputs(features=near))
    assert found.isfinite().all()
    assert len(found.unique()) == len(found)
    assert (found < 0).all()


def test_mcm_is_the_preset() -> None:
    np.testing.assert_array_equal(scores(MCM(0.5)), scores(RelativeCosine.preset("mcm", temperature=0.5)))
    expected = []
    for x in IMAGES:
        powers = [math.exp(cosine(x, c)) for c in CLASS_ROWS]
        expected.append(math.log(max(powers) / sum(powers)))
    np.testing.assert_allclose(scores(MCM()), expected, rtol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"weight": 0.5}, {"weight": 0.0, "temperature": 0.1}])
def test_gl_mcm_by_loops(settings: dict[str, float]) -> None:
    """Miyai et al., IJCV 2025."""
    weight, temperature = settings.get("weight", 1.0), settings.get("temperature", 1.0)

    def largest(x: Array) -> float:
        powers = [math.exp(cosine(x, c) / temperature) for c in CLASS_ROWS]
        return max(powers) / sum(powers)

    expected = [
        largest(x) + weight * max(largest(tokens[:, i, j]) for i in range(4) for j in range(5))
        for x, tokens in zip(IMAGES, TOKENS, strict=True)
    ]
    np.testing.assert_allclose(scores(GLMCM(**settings)), expected, rtol=1e-9)
    assert repr(GLMCM.preset("imagenet")) == "GLMCM(weight=0.5)"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_blocks_and_batches_change_nothing(file: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> list[Detector]:
        return [GLMCM(), MCM(), *(kind(file, share=0.9, groups=8) for kind in (NegLabel, CSP))]

    whole = [scores(detector) for detector in make()]
    monkeypatch.setattr(negative_words, "ENTRIES", size)
    monkeypatch.setattr(negative_words, "GROUPS", size)
    monkeypatch.setattr(gl_mcm, "TOKENS", size)
    for detector, expected in zip(make(), whole, strict=True):
        found = [scores(detector, slice(i, i + size)) for i in range(0, len(IMAGES), size)]
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-12)


def test_a_fit_records_words_and_prompts_and_is_saved_without_the_file(file: str, tmp_path: Path) -> None:
    detector = fitted(NegLabel(file, share=0.5, groups=4))
    (note,) = detector.notes
    assert note == (
        "uses 24 of 54 words (text tower: sines); prompts of nouns: 'the nice {class}'; prompts of adjectives: 'This is"
        " a {class} photo'"
    )
    before = scores(detector)
    fit([detector], [], HEAD)
    save({"neg_label": detector}, tmp_path / "fit")
    Path(file).unlink()
    loaded = load(tmp_path / "fit")[0]["neg_label"]
    assert loaded.notes == (note,)
    np.testing.assert_array_equal(loaded.score(Outputs(features=torch.from_numpy(IMAGES))).numpy(), before)


def test_a_file_with_other_words_has_another_content(file: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(Path(file).read_bytes())
    assert NegLabel(str(copy)).content == NegLabel(file).content
    words = WordEmbeddings.load(file)
    WordEmbeddings(words.embeddings * 2, words.is_adjective, words.words).save(copy)
    assert NegLabel(str(copy)).content != NegLabel(file).content
    assert MCM().content == NegLabel().content == NegLabel("nowhere").content == ""


def test_messages(file: str, tmp_path: Path) -> None:
    facts = BackboneFacts(width=WIDTH, num_classes=CLASSES)
    assert "write_negatives and pass negatives=FILE" in NegLabel().why_not(facts)
    assert NegLabel(file).why_not(facts) == ""
    with pytest.raises(RequirementError, match=r"NegLabel\(\) needs text embeddings of negative words"):
        fitted(NegLabel())
    with pytest.raises(InvalidArgumentError, match=r"nowhere\.safetensors does not exist"):
        fitted(NegLabel("nowhere.safetensors"))
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(InvalidArgumentError, match=r"expected a file of word embeddings, got .*text .*write_negatives"):
        fitted(CSP(str(tmp_path / "text")))
    with pytest.raises(InvalidArgumentError, match="at least 100 selected words, one per group, got 7 of 54"):
        fitted(NegLabel(file))
    rows, flags = torch.tensor([[1.0], [math.nan]]), torch.tensor([False, True])
    with pytest.raises(InvalidArgumentError, match="the embedding of 'b' contains NaN or infinite values"):
        WordEmbeddings(rows, flags, ["a", "b"])
    about = {"description": '{"words": ["a", "b"], "prompts": {}, "text_tower": ""}'}
    save_file({"embeddings": rows[:1].repeat(2, 1), "is_adjective": flags.long()}, tmp_path / "integers", about)
    with pytest.raises(InvalidArgumentError, match=r"Boolean|Bool\["):  # ~ of integers would choose other words
        WordEmbeddings.load(tmp_path / "integers")
    with pytest.raises(InvalidArgumentError, match="negatives with 3 features, as the head has, got 5"):
        fit([NegLabel(file)], [], Head(torch.eye(3)))
    with pytest.raises(InvalidArgumentError, match=r"NegLabel: expected share to be in \(0, 1\], got 15"):
        NegLabel(file, share=15)
    with pytest.raises(InvalidArgumentError, match="GLMCM: expected weight to be a finite number >= 0, got -1"):
        GLMCM(weight=-1)


def test_tokens_of_another_width_are_refused() -> None:
    facts = BackboneFacts(width=WIDTH, channels={"local_tokens": 3})
    assert "tokens with 5 features, as the head has, but layer 'local_tokens' has 3" in GLMCM().why_not(facts)
    outputs = Outputs(features=torch.ones(2, WIDTH), hidden={"local_tokens": torch.ones(2, 3, 4)})
    with pytest.raises(InvalidArgumentError, match=re.escape("tokens with 5 features, as the head has, got 3")):
        fitted(GLMCM()).score(outputs)
    assert "local_tokens" in GLMCM().why_not(BackboneFacts(layer_problems={"local_tokens": "the network has none"}))


@pytest.mark.parametrize("kind", [MCM, GLMCM, lambda: Cosine("head"), lambda: RelativeCosine("head")])
def test_a_masked_class_has_no_text_embedding(kind: Any) -> None:
    """The head masks a class with zero weights and a bias of minus infinity; its cosine of 0 must not count."""
    known = torch.arange(CLASSES) % 3 > 0
    weight = HEAD.weight.masked_fill(~known[:, None], 0.0)
    masked = Head(weight, torch.zeros(CLASSES, dtype=torch.float64).masked_fill(~known, -math.inf))
    given = Outputs(features=torch.from_numpy(IMAGES), hidden={"local_tokens": torch.from_numpy(TOKENS)})
    found = []
    for head in (masked, Head(HEAD.weight[known])):
        detector = kind()
        fit([detector], [], head)
        found.append(detector.score(given))
    assert torch.equal(*found)


def test_a_share_of_words_is_the_decimal_that_was_written() -> None:
    rows, flags = torch.ones(100, 1), torch.zeros(100, dtype=torch.bool)
    chosen = negative_words.select(rows, flags, rows[:1].double(), share=0.29, quantile=0.95, largest_cosine=2.0)
    assert len(chosen) == 29
