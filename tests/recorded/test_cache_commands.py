"""A cache of features on the command line: `oodlit evaluate --cache`."""

import pandas as pd
import pytest

from oodlit.cli.main import main
from oodlit.results import Results
from tests.callbacks.processes import by_hand, check_ended, python, run_commands
from tests.recorded.support import COUNTED, compare, record

CONFIG = """
backbone: {class_path: tests.recorded.support.counting_module}
data: {class_path: tests.recorded.support.small_data}
detectors: [MSP, Mahalanobis, {class_path: KNN, init_args: {k: 5}}, ODIN]
"""


def test_the_command_line_records_what_is_missing_and_then_reads(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "more.yaml").write_text(CONFIG.replace("small_data", "more_data"))
    results, told, forwards = {}, {}, {}
    for out, config in (("first", "run"), ("second", "run"), ("third", "more"), ("direct", "run")):
        COUNTED.clear()
        words = ["evaluate", "--config", str(tmp_path / f"{config}.yaml"), "--out", str(tmp_path / out)]
        words += ["--cache", str(tmp_path / "cache")] if out != "direct" else []
        assert main(words) == 0, capsys.readouterr().err
        forwards[out], told[out] = sum(COUNTED), " ".join(capsys.readouterr().out.split())
        results[out] = Results.load(tmp_path / out)
    overhead = 4 + 2  # pictures of the fingerprint and the probe
    assert "to record: train (150 images), val (" in told["first"]
    assert 230 <= forwards["first"] <= 230 + 2 * overhead
    assert "cache hit for" in told["second"]
    assert forwards["second"] <= overhead
    assert "shifted; to record: tiny (1 image)" in told["third"]
    assert forwards["third"] <= 1 + 2 * overhead
    for out in ("second", "direct"):
        table = results[out].table[results[out].table["detector"] != "odin"].reset_index(drop=True)
        pd.testing.assert_frame_equal(table, results["first"].table, rtol=0, atol=0)
    assert [entry["streams"] for entry in results["third"].run.cache["recordings"]] == [
        ["train", "val", "far", "tests", "shifted"],
        ["tiny"],
    ]
    reason = results["first"].run.not_applicable["odin"]
    assert reason.startswith("needs images and access to the network; a cache contains neither images nor the network")
    assert reason.endswith("run this detector without the cache")
    assert results["third"].run.not_applicable == results["first"].run.not_applicable


def test_an_interrupted_recording_of_the_command_line_resumes(tmp_path, capsys):
    record(tmp_path / "cache", kill_at=2, batch_size=64)
    (tmp_path / "run.yaml").write_text(CONFIG)
    COUNTED.clear()
    words = ["evaluate", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")]
    assert main([*words, "--cache", str(tmp_path / "cache")]) == 0, capsys.readouterr().err
    assert "to record: train (150 images, resuming after 64), val" in " ".join(capsys.readouterr().out.split())
    assert sum(COUNTED) <= 230 - 64 + 12


def test_a_run_from_a_cache_is_not_repeated_and_not_taken_for_one_from_another_cache(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(CONFIG.replace("small_data", "more_data"))
    words = ["evaluate", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out"), "--detectors", "[MSP]"]
    told = []
    for cache, dtype in (("a", "float32"), ("a", "float32"), ("b", "bfloat16")):
        assert main([*words, "--cache", str(tmp_path / cache), "--cache_dtype", dtype]) == 0, capsys.readouterr().err
        told.append("this run is already complete" in " ".join(capsys.readouterr().out.split()))
    assert told == [False, True, False]
    assert Results.load(tmp_path / "out").run.cache["dtype"] == "bfloat16"
    words += ["--detectors", "null", "--fitted", str(tmp_path / "out" / "fitted"), "--out", str(tmp_path / "again")]
    assert main([*words, "--cache", str(tmp_path / "b")]) == 0, capsys.readouterr().err
    assert Results.load(tmp_path / "again").detectors == ("msp",)
    assert "recorded with dtype bfloat16 (requested: float32)" in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_read_from_a_cache_is_refused_before_it_is_recorded(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text(CONFIG)
    words = ["evaluate", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")]
    words += ["--cache", str(tmp_path / "cache")]
    for more in (["--strict"], ["--detectors", "[ODIN]"]):
        assert main([*words, *more]) == 1
        assert "neither images nor the network, so it cannot be used with odin" in " ".join(
            capsys.readouterr().err.split()
        )
    assert not (tmp_path / "cache").exists()


@pytest.mark.integration
@pytest.mark.ddp
@pytest.mark.parametrize("each", [[{}], by_hand(2)], ids=["started by Lightning", "started by hand"])
def test_two_processes_of_the_command_line_record_and_read(tmp_path, each):
    (tmp_path / "run.yaml").write_text(CONFIG)
    words = ["evaluate", "--config", tmp_path / "run.yaml", "--cache", tmp_path / "cache", "--out", tmp_path / "out"]
    command = python("oodlit", *words, "--devices", 2, "--accelerator", "cpu")
    check_ended(run_commands([command] * len(each), tmp_path / "logs", each=each, timeout=300))
    direct = ["evaluate", "--config", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "direct")]
    assert main([*direct, "--detectors", "[MSP, Mahalanobis, {class_path: KNN, init_args: {k: 5}}]"]) == 0
    compare(Results.load(tmp_path / "out"), Results.load(tmp_path / "direct"))
