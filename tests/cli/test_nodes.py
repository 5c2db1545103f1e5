"""`oodlit evaluate` on two machines: the same command on each, told apart by the environment of their launcher."""

from pathlib import Path

import numpy as np
import pytest

from oodlit import Results
from oodlit.base.processes.rank import is_first_process
from oodlit.cli.main import main
from oodlit.testing.problems import separated_problem
from tests.callbacks.processes import free_port, run_function


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, problem = tmp_path_factory.mktemp("recorded"), separated_problem()
    for name, outputs in (("train", problem.train), ("id", problem.id), ("far", problem.ood)):
        labels = {} if outputs.labels is None else {"labels": outputs.labels.numpy()}
        np.savez(folder / f"{name}.npz", features=outputs.features.numpy(), logits=outputs.logits.numpy(), **labels)
    (folder / "features.yaml").write_text("id: id.npz\ntrain: train.npz\nood: {far: far.npz}\n")
    return folder


def evaluate(recorded: Path, out: Path, options: list[str]) -> None:
    arguments = ["evaluate", f"--features={recorded / 'features.yaml'}", f"--out={out}", "--accelerator=cpu"]
    knn = "--detectors=[MSP, {class_path: KNN, init_args: {k: 3}}]"
    assert main([*arguments, knn, "--batch_size=8", "--num_workers=0", *options]) == 0


@pytest.mark.ddp
@pytest.mark.xdist_group("processes")
def test_two_machines_give_the_table_of_one(recorded: Path, tmp_path: Path) -> None:
    port = str(free_port())
    each = [{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": str(node)} for node in range(2)]
    options = ["--num_nodes=2", "--bank=process"]
    ended = run_function(
        evaluate, recorded, tmp_path / "two", options, folder=tmp_path / "logs", each=each, timeout=200
    )
    assert [one.code for one in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    assert "Report:" in ended[0].stdout
    assert not ended[1].stdout.strip()
    evaluate(recorded, tmp_path / "one", [])
    two, one = (Results.load(tmp_path / name) for name in ("two", "one"))
    assert two.run.trainer.processes == 2
    assert two.run.bank.endswith("is kept once in each of the 2 processes")
    assert one.run.bank == ""
    assert one.scores["key"].tolist() == two.scores["key"].tolist()
    np.testing.assert_allclose(two.scores["knn"], one.scores["knn"], rtol=1e-6)
    assert two.table["value"].equals(one.table["value"])


@pytest.mark.parametrize(("node", "is_first"), [("0", True), ("1", False)])
def test_the_first_process_of_another_machine_is_not_the_first(
    node: str, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_RANK", node)
    assert is_first_process() is is_first


@pytest.mark.parametrize(
    ("option", "message"), [("--num_nodes=0", "at least 1"), ("--bank=device", "'auto', 'process'")]
)
def test_wrong_values(option: str, message: str, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", f"--features={recorded / 'features.yaml'}", "--detectors=[MSP]", option]) == 2
    assert message in capsys.readouterr().err
