"""Every example of the documentation runs, or says why it cannot; every command and configuration is understood."""

import re
import shlex
import sys
import tarfile
from collections import Counter
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
from PIL import Image

from oodlit.cli.command import arguments_of
from oodlit.cli.main import COMMANDS, _words, main
from tests.docs.pages import PAGES, ROOT, Block, blocks

pytestmark = pytest.mark.integration

ELSEWHERE = {
    "backbones": "tests/module/test_docs.py",
    "cli": "tests/test_readme.py",
    "conformance": "tests/testing/test_docs.py",
    "detectors": "tests/detectors/test_docs.py",
    "features": "tests/recorded/test_docs.py",
    "gate": "tests/gate/test_docs.py",
    "guard": "tests/testing/test_guard_docs.py",
    "loggers": "tests/callbacks/test_docs.py",
    "metrics": "tests/metrics/test_docs.py",
    "objects": "tests/objects/test_docs.py",
    "results": "tests/test_readme.py",
    "severity": "tests/callbacks/test_pools.py",
}
"""Pages whose code has a test of its own, with more preparation or more to hold than that it runs."""
NOT_RUN = {
    "benchmark_tables": 3,
    "clip": 1,
    "clusters": 1,
    "datasets": 2,
    "index": 1,
    "objects": 2,
    "other_tools": 3,
    "shards": 1,
}
"""How many blocks of Python cannot run; each says why."""
OF_USERS = {
    "my_clip": "from torch import nn\ndef build(names, template='') -> nn.Module: ...\n",
    "my_network": "from torch import nn\nclass MyNetwork(nn.Module):\n    def __init__(self, width=16): ...\n",
    "my_package": "from oodlit.detectors import MSP\nclass detectors:\n    Mine = MSP\n",
}
"""Modules that configurations name and that only a user has."""
HERE = [page for page in PAGES if page.stem not in ELSEWHERE and any(b.language == "python" for b in blocks(page))]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages find in their folder: `photos/{train,val,other}/CLASS/*.png` and `birds.tar.gz`."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for place in ("train/cat", "train/dog", "val/cat", "val/dog", "other/ant", "other/bee"):
        (folder / "photos" / place).mkdir(parents=True)
        for index in range(6):
            pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / place / f"{index}.png")
    with tarfile.open(folder / "birds.tar.gz", "w:gz") as archive:
        archive.add(folder / "photos" / "other", "birds")
    return folder


@pytest.mark.filterwarnings("default::oodlit.gate.DriftWarning")  # "Choose and deploy" shows both
@pytest.mark.filterwarnings("default::oodlit.gate.RefusalWarning")
@pytest.mark.parametrize("page", HERE, ids=lambda page: page.stem)
def test_the_code_of_the_page_runs(
    page: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its blocks in their order, in one namespace and one folder; what is promised in a comment is printed."""
    for name in ("photos", "birds.tar.gz"):
        (tmp_path / name).symlink_to(photos / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(entry for entry in sys.path if entry)])
    loaded = set(sys.modules)
    namespace: dict[str, object] = {"__name__": page.stem}
    expected: list[str] = []
    for block in blocks(page):
        if block.why_not:
            continue
        if block.title:
            (tmp_path / block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            padded = "\n" * (block.line - 1) + block.body  # so that a traceback shows the line of the page
            exec(compile(padded, str(page), "exec"), namespace)
            expected += re.findall(r"^print\(.*\)  # prints (.+)$", block.body, re.MULTILINE)
        elif block.marked:
            for words in _calls(block):
                assert main(words) == 0, " ".join(words)
    printed = capsys.readouterr().out.splitlines()
    assert all(line in printed for line in expected), (expected, printed)
    for name in set(sys.modules) - loaded:  # files of the page
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_pages_that_run_elsewhere_are_tested_there() -> None:
    assert len(PAGES) >= 17
    assert ELSEWHERE.keys() <= {page.stem for page in PAGES}
    for name, test in ELSEWHERE.items():
        text = (ROOT / test).read_text(encoding="utf-8")
        assert f"{name}.md" in text, f"{test} does not name docs/{name}.md"
        assert "exec(" in text or "subprocess" in text or "main(" in text or "pytester" in text, test


def test_what_cannot_run_says_why_and_compiles() -> None:
    count: Counter[str] = Counter()
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python" and block.why_not:
                assert len(block.why_not.split()) >= 2, f"{page.name}:{block.line}"
                compile(block.body, str(page), "exec")
                count[page.stem] += 1
    assert count == NOT_RUN


def _calls(block: Block) -> list[list[str]]:
    """The words after `oodlit` of every call in a block, also behind launchers such as `srun`."""
    text = block.body.replace("\\\n", " ")
    lines = [re.split(r"(?:^|\s|&& )(?=oodlit )", line, maxsplit=1) for line in text.splitlines()]
    calls = [shlex.split(parts[1].split(" && ")[0], comments=True) for parts in lines if len(parts) == 2]
    return [words[1:] for words in calls if words[0] == "oodlit"]


def test_every_command_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """By the parser itself; of a run the classes and their arguments as well, without making anything."""
    seen = 0
    for page in [ROOT / "README.md", *PAGES]:
        for words in (w for block in blocks(page) if block.language == "bash" for w in _calls(block)):
            command = " ".join(_words(words))
            assert command in COMMANDS, f"{page.name}: {words}"
            rest = words[len(command.split()) :]
            if command == "evaluate":
                rest = [*_without_file(rest), "--print_config"]
            arguments_of(resolve_name(COMMANDS[command]), rest)
            seen += 1
    assert seen >= 24


def _without_file(words: list[str]) -> list[str]:
    """A call without its configuration, which is tested by itself."""
    if "--config" not in words:
        return words
    place = words.index("--config")
    return [*words[:place], *words[place + 2 :]]


def test_every_configuration_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options, classes and arguments exist; nothing is made."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(entry for entry in sys.path if entry)])
    for name, text in OF_USERS.items():
        (tmp_path / f"{name}.py").write_text(text)
    seen = 0
    for page in [ROOT / "README.md", *PAGES]:
        for block in blocks(page):
            is_run = re.search(r"^(backbone|data|detectors):", block.body, re.MULTILINE)
            if block.language != "yaml" or block.why_not or not is_run:
                continue
            (tmp_path / "run.yaml").write_text(block.body, encoding="utf-8")
            assert main(["evaluate", "--config", str(tmp_path / "run.yaml"), "--print_config"]) == 0, (
                f"{page.name}:{block.line} {capsys.readouterr().err}"
            )
            seen += 1
    assert seen >= 5
    for name in OF_USERS:
        sys.modules.pop(name, None)
