"""Two nodes are two launches, each with its own ranks and the address of the first; the table is that of one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from oodlit import Results
from tests.callbacks import failing_script
from tests.callbacks.processes import Ended, free_port, python, run_commands, run_function
from tests.callbacks.sweep_run import SIZES, Cut, recorded_run
from tests.callbacks.test_process_sweep import check_same

pytestmark = [pytest.mark.ddp, pytest.mark.xdist_group("processes")]
PROGRAM, FAILING = "tests.callbacks.sweep_run", "tests.callbacks.failing_script"
TWO = Cut(processes=2, nodes=2, batch_size=4)


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("one")
    check_well(run_function(recorded_run, SIZES, out / "out", Cut(), folder=out / "logs", each=[{}], timeout=120))
    return out / "out"


def check_well(ended: list[Ended]) -> None:
    for number, process in enumerate(ended):
        assert process.code == 0, f"{number}:\n{process.stderr[-3000:]}"


def of_lightning() -> Iterator[dict[str, str]]:
    """What is set on each node where nobody but Lightning starts processes."""
    port = str(free_port())
    for node in range(2):
        yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": str(node)}


def of_slurm() -> Iterator[dict[str, str]]:
    """What srun sets for `--nodes=2 --ntasks-per-node=1`."""
    common = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "oodlit", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"}
    common |= {"SLURM_NNODES": "2", "SLURM_NODELIST": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for node in range(2):
        yield common | {"SLURM_PROCID": str(node), "SLURM_NODEID": str(node), "SLURM_LOCALID": "0"}


@pytest.mark.parametrize("launcher", [of_lightning, of_slurm])
def test_two_launches(one, tmp_path, launcher):
    each = list(launcher())
    ended = run_function(recorded_run, SIZES, tmp_path / "out", TWO, folder=tmp_path / "logs", each=each, timeout=120)
    check_well(ended)
    check_same(tmp_path / "out", one)
    assert Results.load(tmp_path / "out").run.trainer.processes == 2


def test_a_node_that_fails_is_named_on_the_other(tmp_path):
    arguments = (tmp_path / "out", "backbone", 1, 1, "ddp", 2)
    each = list(of_slurm())
    ended = run_function(failing_script.main, *arguments, folder=tmp_path / "logs", each=each, timeout=120)
    assert all(one.code for one in ended)
    assert re.search(r"rank 1 of 2 on \S+ failed: TypeError: the backbone of one process", ended[0].stderr)


def torchrun(module: str, *arguments: object) -> list[list[str]]:
    """The commands of two nodes with two processes each."""
    place = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    return [
        python("torch.distributed.run", *place, f"--node-rank={node}", "-m", module, *arguments) for node in range(2)
    ]


@pytest.mark.slow
def test_torchrun_on_two_nodes(one, tmp_path):
    commands = torchrun(PROGRAM, tmp_path / "out", 4, 2)
    check_well(run_commands(commands, tmp_path / "logs", each=[{}, {}], timeout=300))
    check_same(tmp_path / "out", one)


@pytest.mark.slow
def test_lightning_on_two_nodes_with_two_devices_each(one, tmp_path):
    command = python(PROGRAM, tmp_path / "out", 4, 2)
    check_well(run_commands([command] * 2, tmp_path / "logs", each=list(of_lightning()), timeout=300))
    check_same(tmp_path / "out", one)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "cause"), [("backbone", "failed: TypeError"), ("killed", "disappeared")])
def test_torchrun_tells_why_a_process_failed(tmp_path, what, cause):
    commands = torchrun(FAILING, tmp_path / "out", what, 3, 2, "ddp", 2)
    ended = run_commands(commands, tmp_path / "logs", each=[{}, {}], timeout=300)
    assert all(one.code for one in ended)
    assert max(one.seconds for one in ended) - min(one.seconds for one in ended) < 60
    assert all(re.search(rf"rank 3 of 4 .*{cause}", one.stderr) for one in ended), ended[0].stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "victim"), [("ddp", 0), ("ddp", 1), ("ddp_spawn", 1)])
def test_processes_that_lightning_starts(tmp_path, strategy, victim):
    command = python(FAILING, tmp_path / "out", "detector", victim, 2, strategy, 1)
    (ended,) = run_commands([command], tmp_path / "logs", each=[{}], timeout=300)
    assert ended.code != 0
    assert "ValueError: the detector of one process" in ended.stderr
    if strategy == "ddp":  # of those that are spawned, the parent shows the first to end
        assert re.search(rf"rank {victim} of 2 on \S+ failed: ValueError: the detector", ended.stderr)
