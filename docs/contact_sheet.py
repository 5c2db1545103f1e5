"""Draws docs/images/unit_tests.png: four images of each of the 17 unit tests. Run it from the root of the project."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image
from sklearn.datasets import load_sample_images

from oodlit.datamodules.generated.unit_test_kinds import UNIT_TESTS, draw

WIDTH, HEIGHT, PER_TEST = 120, 90, 4
SCALES = {"low_freq_pixel_perm": 1.0, "blobs": 1.0}  # shown as a detail at full size
SCALE = WIDTH / 500  # the others: smoothing as on an image 500 pixels wide


def main() -> None:
    """Write the sheet; two tests a row."""
    photos = [Image.fromarray(image).resize((WIDTH, HEIGHT)) for image in load_sample_images().images]
    rows = -(-len(UNIT_TESTS) // 2)
    figure, axes = plt.subplots(rows, 2 * PER_TEST, figsize=(10, 0.95 * rows + 0.2), dpi=90)
    for axis in axes.flat:
        axis.axis("off")
    for place, name in enumerate(UNIT_TESTS):
        row, column = place % rows, place // rows * PER_TEST
        for index in range(PER_TEST):
            axis = axes[row, column + index]
            pixels = draw(name, WIDTH, HEIGHT, index=index, image=photos[index % 2], scale=SCALES.get(name, SCALE))
            axis.imshow(pixels, interpolation="nearest")
            axis.axis("on")
            axis.set_xticks([])
            axis.set_yticks([])
        axes[row, column].set_title(name, fontsize=7, loc="left", pad=2)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.98, bottom=0.01, wspace=0.06, hspace=0.28)
    folder = Path(__file__).parent / "images"
    folder.mkdir(exist_ok=True)
    path = folder / "unit_tests.png"
    figure.savefig(path)
    with Image.open(path) as image:
        image.convert("RGB").save(path, optimize=True)


if __name__ == "__main__":
    main()
