"""Where large buffers lie: on the device of a run as far as they fit, once for all that share them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oodlit.detectors import KNN, MSP, Detector, LaRD, NNGuide, fit, load, save
from oodlit.detectors.contract import placement
from oodlit.detectors.contract.placement import follow, place_large
from oodlit.detectors.formulas import neighbors as neighbours
from oodlit.outputs import Outputs

META = torch.device("meta")
ROWS, WIDTH = 200, 16


def outputs(rows: int = ROWS, seed: int = 0) -> Outputs:
    values = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))
    return Outputs(values[:, :4].contiguous(), values, hidden={"feature_map": values})


def fitted() -> dict[str, Detector]:
    """Two of them read the same bank, one of them a part of it."""
    made = {"all": KNN(k=3), "part": KNN(k=3, bank_size=50), "guide": NNGuide(k=3), "lard": LaRD(density="knn", k=3)}
    fit([*made.values(), MSP()], [outputs()])
    return made


def sizes(made: dict[str, Detector]) -> list[int]:
    """Bytes of what lies alone: banks, and the norms of two."""
    shared = [made["all"].bank, made["all"].norms, made["guide"].bank, made["lard"].bank, made["lard"].norms]
    return sorted(tensor.nbytes for tensor in shared)


def on_meta(made: dict[str, Detector]) -> int:
    storages = [b.untyped_storage() for d in made.values() for b in d.buffers() if b.device == META]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


@settings(max_examples=15, deadline=None)
@given(room=st.integers(0, 80_000))
def test_as_much_is_placed_as_fits_the_small_ones_first(room):
    made = fitted()
    place_large(made, META, room)
    expected = 0
    for size in sizes(made):
        expected += size if expected + size <= room else 0
    assert on_meta(made) == expected <= room


def test_who_shares_a_bank_shares_it_there():
    made = fitted()
    text = place_large(made, META, 10**9)
    assert text == "bank of all, part, guide, lard (0.1 MB): on meta"
    whole, part = made["all"].bank, made["part"].bank
    assert whole.untyped_storage()._cdata == part.untyped_storage()._cdata
    assert (len(whole), len(part)) == (ROWS, 50)
    assert all(made[name].neighbour.device.type == "cpu" for name in ("all", "part", "lard"))
    assert place_large(made, META, 0) == ""  # nothing is left to be moved


def test_nothing_is_moved_where_a_device_has_no_memory_of_its_own():
    made = fitted()
    before = {name: detector.bank.data_ptr() for name, detector in made.items()}
    assert place_large(made, torch.device("cpu")) == ""
    assert place_large({"msp": MSP()}, META, 10**9) == ""
    assert {name: detector.bank.data_ptr() for name, detector in made.items()} == before


def test_copies_score_and_are_saved_as_what_they_are_copies_of(tmp_path):
    made, tests = fitted(), outputs(40, seed=1)
    scores = {name: detector.score(tests) for name, detector in made.items()}
    state = {name: {n: b.clone() for n, b in detector.named_buffers()} for name, detector in made.items()}
    for _, places in placement._large(made, META):
        assert placement._move(places, torch.device("cpu"))
    assert made["all"].bank.data_ptr() == made["part"].bank.data_ptr()
    save(made, tmp_path)
    for detectors in (made, load(tmp_path)[0]):
        for name, detector in detectors.items():
            assert torch.equal(detector.score(tests), scores[name]), name
            assert all(torch.equal(b, state[name][n]) for n, b in detector.named_buffers()), name


def test_a_device_that_is_full_after_all_leaves_the_bank_where_it_is(monkeypatch):
    made = fitted()

    def full(*args, **kwargs):
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(torch.Tensor, "to", full)
    text = place_large(made, META, 10**9)
    assert text.startswith(
        "bank of all, part, guide, lard (0.1 MB): on the CPU, moved to meta in parts for every batch ("
    )
    assert made["all"].bank.device.type == "cpu"


def test_the_room_is_what_is_free_less_a_share_of_the_memory(monkeypatch):
    made = fitted()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (250_500, 1_000_000))
    text = place_large(made, torch.device("cuda", 0))
    assert ": on the CPU, moved to cuda:0 in parts" in text
    assert text.endswith("(0.0 MB available)")


def test_other_buffers_follow_and_numbers_stay_on_the_cpu():
    detector = fitted()["lard"]
    follow(detector, META)
    kinds = {name: buffer.device.type for name, buffer in detector.named_buffers()}
    assert kinds == {"mean": "meta", "basis": "meta", "bank": "cpu", "norms": "cpu", "neighbour": "cpu"}


@pytest.mark.parametrize("moved", [1, 64, 1000])
def test_parts_that_are_converted_are_bounded_and_change_nothing(moved, monkeypatch):
    bank, queries = outputs().features, outputs(7, seed=2).features.double()
    expected = neighbours.largest_products(queries, bank, 5)[0].sort(dim=1).values
    monkeypatch.setattr(neighbours, "MOVED", moved)
    values = neighbours.largest_products(queries, bank, 5)[0].sort(dim=1).values
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
    parts = list(neighbours.chunks(7, ROWS, at_least=5, at_most=moved // WIDTH))
    assert max(part.stop - part.start for part in parts) == max(5, moved // WIDTH)
