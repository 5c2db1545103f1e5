"""Faster ways to the outputs are compared with the plain network, and refused where they lead elsewhere."""

import math

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from oodlit import OODModule
from oodlit.backbones.acceleration import Acceleration
from oodlit.detectors import MSP, Energy, Mahalanobis
from oodlit.errors import InvalidArgumentError, RequirementError
from oodlit.results.record_parts import AccelerationRecord
from oodlit.runs.verification import MOST_OF_LOGITS, Verification, relative_deviation
from oodlit.testing.backbones import TinyConvNet
from tests.callbacks.support import make_module, make_streams, run


def module(**options) -> OODModule:
    return OODModule(TinyConvNet(6, dropout=0.2), name="tiny", **options)


@pytest.fixture
def compiled_by_nobody(monkeypatch):
    """`nn.Module.compile` with a backend that needs no compiler; counts the passes that went through it."""
    original, passes = nn.Module.compile, []

    def backend(graph, _example):
        def passed(*arguments):
            passes.append(1)
            return graph(*arguments)

        return passed

    monkeypatch.setattr(nn.Module, "compile", lambda self, mode: original(self, backend=backend))
    yield passes
    torch.compiler.reset()


def test_a_plain_run_is_not_compared():
    assert run([MSP()], streams=make_streams(with_train=False)).results.run.acceleration == AccelerationRecord()


def test_channels_last_is_compared_and_recorded_and_gone_afterwards():
    fast = module(channels_last=True)
    seen = []
    fast.network.register_forward_pre_hook(
        lambda _, images: seen.append(images[0].is_contiguous(memory_format=torch.channels_last))
    )
    results = run([MSP(), Mahalanobis()], module=fast).results
    record = results.run.acceleration
    assert record.channels_last is True
    assert record.deviation_of_logits <= MOST_OF_LOGITS[False]
    assert set(record.deviation_of_scores) == {"msp", "mahalanobis"}
    assert any(seen)
    plain = run([MSP(), Mahalanobis()], module=make_module()).results
    torch.testing.assert_close(
        torch.tensor(results.scores["mahalanobis"]), torch.tensor(plain.scores["mahalanobis"]), rtol=1e-4, atol=1e-4
    )
    weights = [p for p in fast.network.parameters() if p.ndim == 4]
    assert all(p.is_contiguous() for p in weights)
    assert results.run.backbone.fingerprint == plain.run.backbone.fingerprint


def test_a_compiled_network_is_compared_and_left_as_it_was(compiled_by_nobody):
    fast = module(compile=True)
    results = run([MSP()], module=fast, streams=make_streams(with_train=False)).results
    assert compiled_by_nobody  # passes went through it
    assert results.run.acceleration.compile == "default"
    assert results.run.acceleration.deviation_of_scores["msp"] == 0.0
    plain = run([MSP()], module=make_module(), streams=make_streams(with_train=False)).results
    assert results.scores["msp"].tolist() == plain.scores["msp"].tolist()
    assert fast.network._compiled_call_impl is None


def test_a_compiler_that_is_wrong_is_refused_before_anything_counts(monkeypatch):
    original = nn.Module.compile
    wrong = lambda graph, _: lambda *arguments: tuple(2 * v for v in graph(*arguments))  # noqa: E731
    monkeypatch.setattr(nn.Module, "compile", lambda self, mode: original(self, backend=wrong))
    with pytest.raises(
        RequirementError,
        match=r"^tiny with compile=default: on the first images, the logits deviate .*Run without compile=default",
    ):
        run([MSP()], module=module(compile=True), streams=make_streams(with_train=False))
    torch.compiler.reset()


def test_half_precision_is_compared_with_float32():
    record = run([Energy()], streams=make_streams(with_train=False), trainer={"precision": "bf16-mixed"}).results.run
    found = record.acceleration
    assert found.precision == "bf16-mixed"
    assert 0 < found.deviation_of_logits <= MOST_OF_LOGITS[True]


def test_scores_that_deviate_name_the_detector(monkeypatch):
    monkeypatch.setattr("oodlit.runs.verification.MOST_OF_SCORES", {False: 0.05, True: 1e-9})
    with pytest.raises(RequirementError, match="on the first images, the scores of 'energy' deviate"):
        run([Energy()], streams=make_streams(with_train=False), trainer={"precision": "bf16-mixed"})


def test_unknown_modes_are_refused():
    with pytest.raises(InvalidArgumentError, match="compile to be True, False or one of default, reduce-overhead"):
        module(compile="fast")


def test_nothing_is_switched_on_where_nothing_is_asked_for():
    network = TinyConvNet(6)
    acceleration = Acceleration(network)
    acceleration.start()
    with acceleration.eager():
        assert network._compiled_call_impl is None
    assert acceleration.options == {}


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=8, unique=True),
    st.floats(0.5, 50.0),
    st.floats(-10, 10),
)
def test_deviations_are_in_units_of_the_spread(values, scale, shift):
    exact = torch.tensor(values, dtype=torch.float64)
    exact = exact + torch.arange(len(values))  # not all alike by rounding
    other = exact + torch.linspace(-1, 1, len(values), dtype=torch.float64)
    if float(exact.std()) < 1e-3:
        return
    found = relative_deviation(other, exact)
    assert relative_deviation(exact, exact) == 0
    assert math.isclose(relative_deviation(scale * other + shift, scale * exact + shift), found, rel_tol=1e-6)
    assert relative_deviation(other.where(other != other[0], torch.tensor(math.nan)), exact) == math.inf


def test_equal_infinities_are_no_difference():
    exact = torch.tensor([1.0, -math.inf, 2.0])
    assert relative_deviation(exact.clone(), exact) == 0
    assert relative_deviation(torch.tensor([1.0, 0.0, 2.0]), exact) == math.inf
    assert relative_deviation(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 1.0])) == 0


class Flat(TinyConvNet):
    """Takes no images whose channels lie together."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images.view(len(images), -1)
        return super().forward(images)


class Restless(TinyConvNet):
    """Drops whatever it is told."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.dropout(images, 0.5, training=True))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Flat, r"^tiny fails with channels_last=True .RuntimeError: view size .*; omit channels_last$"),
        (
            Restless,
            r"^tiny: two forward passes on the same images return logits that differ by .* for example active dropout",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*returned different outputs for the same images")
def test_a_network_is_left_as_it_was_where_it_is_refused(network, message):
    fast = OODModule(network(6), name="tiny", channels_last=True)
    with pytest.raises(RequirementError, match=message):
        run([MSP()], module=fast, streams=make_streams(with_train=False))
    assert all(p.is_contiguous() for p in fast.network.parameters() if p.ndim == 4)


def test_without_a_compiler_there_is_one_clear_line(monkeypatch):
    original = nn.Module.compile

    def backend(*_):
        raise OSError("No working C++ compiler found\n\nfor more, set TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(nn.Module, "compile", lambda self, mode: original(self, backend=backend))
    fast = module(compile=True)
    with pytest.raises(RequirementError, match=r"tiny fails with compile='default' .* compiler found.*; omit compile$"):
        run([MSP()], module=fast, streams=make_streams(with_train=False))
    assert fast.network._compiled_call_impl is None
    torch.compiler.reset()


def test_an_error_of_the_network_itself_stays_what_it_is():
    fast = module(channels_last=True)
    fast.acceleration.start()

    def fails():
        raise KeyError("plain")

    with pytest.raises(KeyError, match="fast"), fast.acceleration.explain_failure("tiny", fails):
        raise KeyError("fast")
    fast.acceleration.stop()
    with pytest.raises(KeyError, match="fast"), fast.acceleration.explain_failure("tiny", list):
        raise KeyError("fast")


def test_the_record_has_the_largest_deviations_of_all_processes(monkeypatch):
    """One of them may have seen no image that a device decoded."""
    others = [{"deviation_of_logits": 0.02, "deviation_of_scores": {"msp": 0.1}}, {"deviation_of_pixels": {"mean": 2}}]
    monkeypatch.setattr("oodlit.runs.verification.gather_objects", lambda group, mine: [mine, *others])
    verification = Verification(make_module(), "32-true", decode_on_device=True)
    verification._note("deviation_of_logits", 0.03)
    verification._note("deviation_of_scores", 0.05, of="msp")
    verification.join(None)
    assert verification.record == msgspec.convert(
        {
            "decode_on_device": True,
            "deviation_of_logits": 0.03,
            "deviation_of_scores": {"msp": 0.1},
            "deviation_of_pixels": {"mean": 2},
        },
        AccelerationRecord,
    )
