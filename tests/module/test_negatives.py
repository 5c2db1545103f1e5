"""Files of negative words: which prompts are embedded, when a file is kept, and runs that read it."""

import io
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from oodlit import OODModule, Role
from oodlit.backbones.clip import ZeroShotClassifier, text_concepts
from oodlit.backbones.negatives import CSP_PROMPTS, NegativePrompts, WordEmbeddings, lexicon, write_negatives
from oodlit.callbacks import OODDetection
from oodlit.cli.running.outcome import print_outcome
from oodlit.datamodules import MemorySource, OODDataModule, Sample, Stream
from oodlit.detectors import CSP, MCM, NegLabel
from oodlit.errors import InvalidArgumentError, UnknownNameError
from oodlit.recorded import open_cache
from oodlit.results import FindingWarning, Results
from tests.callbacks.support import make_trainer
from tests.recorded.support import record

WORDS = ([f"noun {i}" for i in range(12)], [f"adjective {i}" for i in range(7)])


class TextTower:
    """Sines of the letters, and the prompts that were embedded."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor, self.prompts = factor, list[str]()

    def __call__(self, prompts: list[str]) -> Tensor:
        self.prompts += prompts
        sums = torch.tensor([float(sum((i + 1) * ord(c) for i, c in enumerate(p))) for p in prompts])
        return torch.sin(self.factor * sums[:, None] * torch.arange(1.0, 6.0))


def test_prompts_of_nouns_and_adjectives(tmp_path: Path) -> None:
    tower = TextTower()
    file = write_negatives(tmp_path / "words", tower, text_tower_name="sines", words=WORDS, batch_size=5)
    expected = [f"the nice {word}" for word in WORDS[0]] + [f"This is a {word} photo" for word in WORDS[1]]
    assert tower.prompts == ["a photo of a thing", *expected]  # the first one identifies the tower
    found = WordEmbeddings.load(file)
    assert found.words == [*WORDS[0], *WORDS[1]]
    assert found.is_adjective.tolist() == [False] * 12 + [True] * 7
    np.testing.assert_allclose(found.embeddings, nn.functional.normalize(TextTower()(expected), dim=1), rtol=1e-5)


def test_csp_averages_prompts_and_joins_adjectives(tmp_path: Path) -> None:
    assert (len(CSP_PROMPTS.nouns), len(CSP_PROMPTS.adjectives), len(CSP_PROMPTS.joined_to)) == (8, 4, 14)
    tower = TextTower()
    options = {"text_tower_name": "sines", "prompts": CSP_PROMPTS, "words": WORDS}
    found = WordEmbeddings.load(write_negatives(tmp_path / "words", tower, **options))
    assert len(tower.prompts) == 1 + 8 * 12 + 4 * 7
    joined = found.words[12:]
    assert [word.rpartition(" ")[0] for word in joined] == WORDS[1]
    assert len({word.rpartition(" ")[2] for word in joined} & {*CSP_PROMPTS.joined_to}) > 2
    prompts = [template.replace("{class}", joined[3]) for template in CSP_PROMPTS.adjectives]
    mean = nn.functional.normalize(TextTower()(prompts), dim=1).mean(dim=0)
    np.testing.assert_allclose(found.embeddings[15], nn.functional.normalize(mean, dim=0), rtol=1e-5)
    other = write_negatives(tmp_path / "other", tower, **options, seed=1)
    assert WordEmbeddings.load(other).words[12:] != joined


def test_a_file_is_kept_while_everything_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "words"

    def number_of_prompts(tower: TextTower, name: str = "sines", **options: object) -> int:
        write_negatives(file, tower, text_tower_name=name, **{"words": WORDS} | options)
        return len(tower.prompts)

    assert number_of_prompts(TextTower()) == 20
    assert number_of_prompts(TextTower()) == 1  # this prompt shows whether it is the same tower
    changed = NegativePrompts(("the {class}",), ("This is a {class} photo",))
    for tower, options in (
        (TextTower(factor=0.9), {}),
        (TextTower(), {"name": "other"}),
        (TextTower(), {"prompts": changed}),
        (TextTower(), {"words": (WORDS[0], WORDS[1][:-1])}),
    ):
        assert number_of_prompts(tower, **options) >= 19
        assert number_of_prompts(TextTower(tower.factor), **options) == 1
    file.write_text("mine")
    with pytest.raises(InvalidArgumentError, match=r"expected a file of word embeddings, got .*words"):
        number_of_prompts(TextTower())
    assert file.read_text() == "mine"
    with pytest.raises(InvalidArgumentError, match="at least one word"):
        write_negatives(tmp_path / "none", TextTower(), text_tower_name="sines", words=([], []))


def test_published_words() -> None:
    nouns, adjectives = lexicon()
    assert len({*nouns, *adjectives}) == len(nouns) + len(adjectives) == 70_000
    chosen = lexicon("neg_label_imagenet1k")
    assert [len(words) for words in chosen] == [8578, 1921]
    assert {*chosen[0], *chosen[1]} <= {*nouns, *adjectives}
    fewer = lexicon(leave_out=CSP_PROMPTS.leave_out)
    assert [len(words) for words in fewer] == [46_560, 10_060]
    with pytest.raises(UnknownNameError, match=r"lexicographer file 'noun\.persons'"):
        lexicon(leave_out=["noun.persons"])
    with pytest.raises(UnknownNameError, match="wordnet"):
        lexicon("wordnet")


# --- Runs


def streams() -> list[Stream]:
    def samples(seed: int, labels: bool) -> MemorySource:
        made = torch.rand(20, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
        return MemorySource([Sample(f"{seed}/{i}", x, label=i % 3 if labels else -1) for i, x in enumerate(made)])

    return [Stream("val", Role.ID, samples(0, True), ("a", "b", "c")), Stream("far", Role.OOD, samples(1, False))]


def module(text_tower: TextTower | None = None) -> OODModule:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tower = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    concepts = text_concepts(["a", "b", "c"], text_tower or TextTower())
    network = ZeroShotClassifier(tower, concepts, text_tower=text_tower)
    return OODModule(network, head="classifier", transform=nn.Identity(), name="tiny CLIP, 'a photo of a {class}'")


def predict(model: object, data: object, file: Path, out: Path | None = None) -> Results:
    words = {"negatives": str(file), "share": 0.9, "groups": 4}
    detection = OODDetection([MCM(), NegLabel(**words), CSP(**words)], output_dir=out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)  # random towers classify nothing
        make_trainer(detection).predict(model, data, return_predictions=False)
    assert detection.results is not None
    return detection.results


def test_a_cache_of_features_suffices_and_the_run_records_the_prompts(tmp_path: Path) -> None:
    file = write_negatives(tmp_path / "words", TextTower(), text_tower_name="sines", words=WORDS)
    results = predict(module(), OODDataModule(streams()), file, tmp_path / "run")
    assert list(results.detectors) == ["mcm", "neg_label", "csp"]
    record(tmp_path / "cache", streams(), module=module())
    again = predict(*open_cache(tmp_path / "cache"), file)
    for name in results.detectors:
        np.testing.assert_allclose(again.scores[name], results.scores[name], rtol=1e-5)
    loaded, console = Results.load(tmp_path / "run"), Console(file=io.StringIO(), width=300)
    (note,) = loaded.run.fit_notes["neg_label"]
    assert note.startswith("uses 16 of 19 words (text tower: sines); prompts of nouns: 'the nice {class}'")
    print_outcome(loaded, console)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    for line in ("Network: tiny CLIP, 'a photo of a {class}'", f"neg_label: {note}"):
        assert line in lines  # beside the numbers


@pytest.mark.filterwarnings("ignore:detector '.*' is skipped")
@pytest.mark.parametrize("factor", [1.0, 0.9])
def test_negatives_of_another_text_tower_of_equal_width_are_refused(tmp_path: Path, factor: float) -> None:
    text_tower = TextTower()
    file = write_negatives(tmp_path / "words", TextTower(factor), text_tower_name="sines", words=WORDS)
    record(tmp_path / "cache", streams(), module=module(text_tower))
    for model, data in ((module(text_tower), OODDataModule(streams())), open_cache(tmp_path / "cache")):
        reasons = predict(model, data, file).run.not_applicable
        assert sorted(reasons) == ([] if factor == 1 else ["csp", "neg_label"])
        for reason in reasons.values():
            assert re.search(r"text tower of tiny CLIP.*words was written with another one \(sines\)", reason)
    assert predict(module(), OODDataModule(streams()), file).run.not_applicable == {}  # an unknown tower


def test_a_file_with_other_words_is_another_run(tmp_path: Path) -> None:
    file = write_negatives(tmp_path / "words", TextTower(), text_tower_name="sines", words=WORDS)
    first = predict(module(), OODDataModule(streams()), file, tmp_path / "run")
    write_negatives(file, TextTower(0.5), text_tower_name="sines", words=WORDS)
    second = predict(module(), OODDataModule(streams()), file, tmp_path / "run")
    assert (first.scores["mcm"] == second.scores["mcm"]).all()
    assert (first.scores["neg_label"] != second.scores["neg_label"]).any()
