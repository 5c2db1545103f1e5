"""What cannot work is known before the first batch, and left out with the reason."""

import re

import numpy as np
import pytest

from oodlit import OODModule
from oodlit.detectors import DDU, KNN, MSP, LaRD, NNGuide, Residual, ViM
from oodlit.errors import RequirementError
from oodlit.runs.choice import PROBE_IMAGES
from tests.callbacks.support import CountingNet, run

pytestmark = pytest.mark.filterwarnings("ignore:.*undefined .NaN.")
IMPOSSIBLE = [
    (ViM(dim=1000), {}, "needs more features than the 1000 dimensions of its principal space"),
    (
        Residual(dim=16),
        {},
        "needs more features than the 16 dimensions of its principal space, .* has 16; use dim <= 15",
    ),
    (LaRD(), {}, "needs the layer 'feature_map'"),
    (LaRD("no.such.layer"), {}, "needs the layer 'no.such.layer'; .*layer"),
    (LaRD("conv", dim=17), {}, "has dim=17, but layer 'conv' has 16 channels"),
    (LaRD("conv", density="gmm", components=151), {}, "151 .*150"),
    (KNN(k=33), {"trainer": {"limit_predict_batches": 2}}, "needs at least 33 training images, .* has 32"),
    (NNGuide(k=40), {"trainer": {"limit_predict_batches": 2}}, "needs at least 40 training images, .* has 32"),
    (DDU("full", max_bytes=1000), {}, "6 covariances of 16 features require"),
]


@pytest.mark.parametrize(("detector", "options", "reason"), IMPOSSIBLE)
def test_impossible_settings_are_left_out_before_the_first_batch(detector, options, reason):
    module = OODModule(CountingNet(6))
    with pytest.raises(RequirementError, match=reason):
        run({"odd": detector, "msp": MSP()}, module=module, strict=True, **options)
    assert len(set(module.network.seen)) <= PROBE_IMAGES + 2  # the probe, and the two pictures of the fingerprint
    with pytest.warns(UserWarning, match=rf"'odd' is skipped: it .*{reason}"):
        results = run({"odd": detector, "msp": MSP()}, **options).results
    assert results.detectors == ("msp",)
    assert re.search(reason, results.run.not_applicable["odd"])


@pytest.mark.filterwarnings("ignore::oodlit.results.FindingWarning")  # the farthest of 32 images ranks backward
def test_what_just_fits_runs():
    fitting = {"vim": ViM(dim=15), "lard": LaRD("conv", dim=16), "knn": KNN(k=32)}
    results = run(fitting, trainer={"limit_predict_batches": 2}).results
    assert results.detectors == tuple(fitting)
    assert np.isfinite(results.scores.loc[results.scores["dataset"] != "train", "vim"]).all()
