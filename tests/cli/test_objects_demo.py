"""`oodlit demo objects`, small: scenes that are right, a network that learns, a page with pictures."""

import numpy as np
import pytest
import torch

from oodlit.cli.demos.digit_scenes import KNOWN, UNKNOWN, DigitScenes
from oodlit.cli.demos.network import detection_loss, small_faster_rcnn
from oodlit.cli.demos.objects import run_objects
from oodlit.datamodules.decode import decode_image
from oodlit.objects import ObjectResults


@pytest.mark.integration
def test_the_demo_leaves_results_and_a_page(tmp_path) -> None:
    page = run_objects(tmp_path / "out", epochs=4, scenes=(40, 6), t_star=0.1, bootstrap=0)
    results = ObjectResults.load(tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    text = page.read_text()
    assert text.count("data:image/jpeg;base64,") >= 3 * 6
    assert "A detector of the digits 0-6 on scenes with OOD objects" in text
    assert results.splits == ("digits_near", "shapes_far")
    assert results.class_names == KNOWN
    assert len(results.detectors) >= 35
    assert (results.images.groupby("dataset").size() == 6).all()
    page.unlink()
    run_objects(tmp_path / "out", epochs=1, scenes=(40, 6), t_star=0.06, bootstrap=0)  # what a demo wrote is replaced
    assert page.is_file()


def test_scenes_show_what_their_annotations_say(tmp_path) -> None:
    data = DigitScenes(tmp_path, train=12, test=10, seed=3)
    again = DigitScenes(tmp_path / "again", train=12, test=10, seed=3)
    assert data.annotations["digits_near"].class_names == UNKNOWN
    assert data.class_names == KNOWN
    for name, annotations in data.annotations.items():
        stream = data.stream(name)
        for number, sample in enumerate(stream.source.read(0, len(stream))):
            picture = np.asarray(decode_image(sample.image).convert("L")) / 255
            rows = annotations.image == number
            inside = np.zeros(picture.shape, dtype=bool)
            for x0, y0, x1, y1 in annotations.boxes[rows].long().tolist():
                assert not inside[y0:y1, x0:x1].any()  # objects do not overlap
                inside[y0:y1, x0:x1] = True
                assert picture[y0:y1, x0:x1].max() > 0.65  # the ink is bright
            assert picture[~inside].max() < 0.65
        assert annotations.counts[9] == 0  # one scene of ten is empty
        assert annotations.boxes.tolist() == again.annotations[name].boxes.tolist()


def test_training_lowers_the_loss(tmp_path) -> None:
    data = DigitScenes(tmp_path, train=8, test=1)
    batch = next(iter(data.train_dataloader()))
    torch.manual_seed(0)
    network = small_faster_rcnn(7).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3)
    losses = []
    for _ in range(12):
        loss = detection_loss(network, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]
