"""Statistics of the 17 generators over many sizes; the same (test, index, seed) always gives the same pixels."""

import hashlib
import io
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from oodlit.datamodules.generated import unit_test_images as images
from oodlit.datamodules.generated.unit_test_kinds import FORMATS, UNIT_TESTS, draw, encode
from oodlit.errors import InvalidArgumentError, UnknownNameError

sides = st.integers(1, 40) | st.sampled_from([1, 500])
seeds = st.integers(0, 2**32)
# the published order, names as in the archive
PUBLISHED = [
    "uni",
    "Gaussian",
    "Rademacher",
    "pixel_perm",
    "white",
    "black",
    "grey",
    "monochrome",
    "tricolour",
    "tricolour_primary",
    "horizontal_stripes",
    "vertical_stripes",
    "low_freq",
    "low_freq_channelfullscale",
    "low_freq_colorrange",
    "low_freq_pixel_perm",
    "blobs",
]


def rng_of(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def photo(width: int = 13, height: int = 7, seed: int = 0) -> Image.Image:
    return Image.fromarray(rng_of(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def colours(values: np.ndarray) -> int:
    return len(np.unique(values.reshape(-1, 3), axis=0))


def test_there_are_seventeen_in_the_published_order():
    assert list(UNIT_TESTS) == PUBLISHED


@pytest.mark.parametrize("name", UNIT_TESTS)
@given(width=sides, height=sides, index=st.integers(0, 399), seed=seeds, scale=st.sampled_from([1.0, 0.03]))
def test_any_size_gives_eight_bit_rgb_of_that_size(name, width, height, **options):
    image = photo(width, height)
    pixels = draw(name, width, height, image=image, **options)
    assert pixels.shape == (height, width, 3)
    assert pixels.dtype == np.uint8
    again = draw(name, width, height, image=image, **options)
    assert np.array_equal(pixels, again)


@pytest.mark.parametrize("name", [name for name in UNIT_TESTS if name not in ("black", "white")])
def test_index_and_seed_matter(name):
    first, *others = (
        draw(name, 40, 30, index=index, seed=seed, image=photo(40, 30)) for index, seed in [(0, 0), (1, 0), (0, 1)]
    )
    assert all(not np.array_equal(first, other) for other in others)


def test_pixels_are_the_same_in_another_process():
    code = (
        "import hashlib; from oodlit.datamodules.generated.unit_test_kinds import draw;"
        "print(hashlib.md5(b''.join(draw(n, 20, 10, index=7, seed=3).tobytes()"
        " for n in ('blobs', 'uni', 'low_freq', 'Gaussian'))).hexdigest())"
    )
    here = hashlib.md5(
        b"".join(draw(n, 20, 10, index=7, seed=3).tobytes() for n in ("blobs", "uni", "low_freq", "Gaussian"))
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here.hexdigest()


def test_values_are_fixed_numbers():
    """Golden: written by this code; a change here changes every published number on unit tests."""
    assert draw("uni", 2, 1, index=0).ravel().tolist() == UNI
    assert draw("tricolour_primary", 3, 1, index=0).ravel().tolist() == PRIMARY


UNI = [159, 173, 100, 66, 72, 181]
PRIMARY = [0, 255, 255, 0, 255, 0, 0, 0, 255]


@given(seeds)
def test_uni_is_uniform_in_every_channel(seed):
    values = images.uni(60, 50, rng_of(seed))
    assert values.min() >= 0
    assert values.max() < 1
    for channel in range(3):
        assert scipy.stats.kstest(values[..., channel].ravel(), "uniform").pvalue > 1e-9


@cache
def clipped_deviations() -> np.ndarray:
    """Standard deviation of N(0.5, sigma) clipped to [0, 1], for the seven sigmas."""
    return np.array(
        [
            scipy.stats.norm.expect(lambda x: (np.clip(x, 0, 1) - 0.5) ** 2, loc=0.5, scale=sigma) ** 0.5
            for sigma in images.GAUSSIAN_SIGMAS
        ]
    )


@given(seeds)
def test_gaussian_has_one_of_the_seven_sigmas(seed):
    values = images.gaussian(80, 60, rng_of(seed))
    assert 0 <= values.min() <= values.max() <= 1
    assert np.abs(clipped_deviations() / values.std() - 1).min() < 0.05
    assert abs(values.mean() - 0.5) < 0.03


@given(seeds)
def test_rademacher_is_a_fair_coin(seed):
    values = images.rademacher(60, 50, rng_of(seed))
    assert set(np.unique(values)) == {0.0, 1.0}
    assert scipy.stats.binomtest(int(values.sum()), values.size).pvalue > 1e-9


@given(sides, sides, seeds)
def test_pixel_perm_keeps_every_pixel_once_and_its_channels_together(width, height, seed):
    image = np.asarray(photo(width, height, seed % 100))
    values = np.rint(255 * images.pixel_perm(image, rng_of(seed))).astype(np.uint8)
    assert sorted(map(tuple, values.reshape(-1, 3))) == sorted(map(tuple, image.reshape(-1, 3)))


@given(sides, sides, seeds)
def test_plain_images(width, height, seed):
    assert not images.black(width, height, rng_of(seed)).any()
    assert (images.white(width, height, rng_of(seed)) == 1).all()
    grey = images.grey(width, height, rng_of(seed))
    assert np.unique(grey).size == 1
    monochrome = images.monochrome(width, height, rng_of(seed))
    assert colours(monochrome) == 1
    assert np.unique(monochrome).size == 3


def test_grey_and_monochrome_are_uniform_over_images():
    for generator in (images.grey, images.monochrome):
        values = np.stack([generator(1, 1, rng_of(seed)).ravel() for seed in range(500)])
        assert all(scipy.stats.kstest(column, "uniform").pvalue > 1e-6 for column in values.T)


@pytest.mark.parametrize("generator", [images.tricolour, images.tricolour_primary])
@given(third_w=st.integers(1, 13), third_h=st.integers(1, 13), seed=seeds)
def test_flags_have_three_equal_stripes_along_one_axis(generator, third_w, third_h, seed):
    values = generator(3 * third_w, 3 * third_h, rng_of(seed))
    upright = bool(np.all(values == values[:1]))
    lying = bool(np.all(values == values[:, :1]))
    assert upright or lying
    line, third = (values[0], third_w) if upright else (values[:, 0], third_h)
    for stripe in np.split(line, 3):
        assert len(stripe) == third
        assert np.all(stripe == stripe[0])
    if generator is images.tricolour_primary:
        assert set(np.unique(values)) <= {0.0, 1.0}
    else:
        assert colours(values) == 3


def test_flags_stand_and_lie_equally_often():
    upright = sum(np.ptp(images.tricolour(3, 3, rng_of(seed)), axis=0).max() == 0 for seed in range(400))
    assert 150 < upright < 250


@pytest.mark.parametrize("axis", [0, 1])
@given(length=st.integers(20, 500), other=st.integers(1, 5), seed=seeds)
def test_stripes_are_equally_thick_and_the_last_takes_the_rest(axis, length, other, seed):
    width, height, generator = (
        (other, length, images.horizontal_stripes) if axis == 0 else (length, other, images.vertical_stripes)
    )
    values = generator(width, height, rng_of(seed))
    line = values[:, 0] if axis == 0 else values[0]
    assert np.array_equal(values, np.broadcast_to(line[:, None] if axis == 0 else line, values.shape))
    edges = np.flatnonzero(np.any(line[1:] != line[:-1], axis=1)) + 1
    n = len(edges) + 1
    assert n in images.STRIPES
    assert np.array_equal(edges, length // n * np.arange(1, n))


@pytest.mark.parametrize("sigma", [0.3, 1.0, 10.0, 85.0])
@given(width=sides, height=sides, seed=seeds)
def test_smooth_is_the_wrapped_gaussian_filter(sigma, width, height, seed):
    values = rng_of(seed).random((height, width, 3))
    expected = scipy.ndimage.gaussian_filter(values, (sigma, sigma, 0), mode="wrap")
    assert np.abs(images.smooth(values, sigma) - expected).max() < 1e-12


def test_smooth_refuses_a_sigma_of_zero():
    with pytest.raises(InvalidArgumentError, match=r"got 0\.0"):
        images.smooth(np.zeros((1, 1, 3)), 0.0)


@given(width=st.integers(2, 60), height=st.integers(2, 60), seed=seeds)
def test_low_freq_spans_zero_to_one(width, height, seed):
    values = images.low_freq(width, height, rng_of(seed))
    assert values.min() == 0
    assert values.max() == pytest.approx(1, abs=1e-12)
    channels = images.low_freq_channelfullscale(width, height, rng_of(seed))
    assert np.all(channels.min(axis=(0, 1)) == 0)
    assert channels.max(axis=(0, 1)) == pytest.approx(1, abs=1e-12)


@given(seeds)
def test_low_freq_colorrange_has_the_stated_quantiles(seed):
    values = images.low_freq_colorrange(64, 48, rng_of(seed))
    low, high = np.quantile(values, (0.025, 0.975), axis=(0, 1))
    inside = (low > 0.02) & (high < 0.98)  # where clipping changed nothing
    half = (high - low)[inside] / 2
    assert np.all((half > 0.099) & (half < 0.301))
    assert np.ptp(half) < 1e-6 if half.size else True


def test_low_freq_is_smooth_and_noise_is_not():
    """Mean step between neighbours, relative to the standard deviation."""

    def roughness(name: str) -> float:
        values = draw(name, 400, 300, index=5, image=photo(400, 300)).astype(float)
        return float(np.abs(np.diff(values, axis=1)).mean() / values.std())

    assert max(roughness(n) for n in PUBLISHED if n.startswith("low_freq") and n != "low_freq_pixel_perm") < 0.12
    assert roughness("low_freq_pixel_perm") < 0.9
    assert min(roughness(n) for n in ("uni", "Gaussian", "Rademacher", "pixel_perm")) > 0.9


@given(seeds)
def test_blobs_are_zero_or_above_three_quarters(seed):
    values = images.blobs(150, 120, rng_of(seed))
    assert np.all((values == 0) | ((values >= 0.75) & (values <= 1)))
    assert 0.01 < (values > 0).mean() < 0.45


@given(seeds)
def test_low_freq_pixel_perm_keeps_the_mean_colour(seed):
    image = np.asarray(photo(40, 30, 1))
    values = images.low_freq_pixel_perm(image, rng_of(seed))
    assert values.mean(axis=(0, 1)) == pytest.approx(image.mean(axis=(0, 1)) / 255, abs=1e-12)
    assert values.std() < image.std() / 255


@pytest.mark.parametrize("name", UNIT_TESTS)
def test_png_is_exact(name):
    pixels = draw(name, 9, 8, index=1, image=photo(9, 8))
    with Image.open(io.BytesIO(encode(pixels))) as image:
        assert image.format == "PNG"
        assert np.array_equal(np.asarray(image), pixels)


def test_jpeg_changes_noise():
    """Why the format is kept and stated."""
    pixels = draw("uni", 64, 64, index=1)
    with Image.open(io.BytesIO(encode(pixels, "JPEG"))) as image:
        assert image.format == "JPEG"
        assert 1 < np.abs(np.asarray(image).astype(int) - pixels).mean() < 40


def test_bad_arguments():
    with pytest.raises(UnknownNameError, match="did you mean 'low_freq'"):
        draw("lowfreq", 3, 3, index=0)
    with pytest.raises(InvalidArgumentError, match=r"'black': .* width=0"):
        draw("black", 0, 3, index=0)
    with pytest.raises(InvalidArgumentError, match="index=-1"):
        draw("black", 1, 3, index=-1)
    with pytest.raises(InvalidArgumentError, match="scale=nan"):
        draw("black", 1, 3, index=0, scale=float("nan"))
    with pytest.raises(
        InvalidArgumentError, match=r"'pixel_perm' permutes the pixels of an ID image; pass it as image="
    ):
        draw("pixel_perm", 3, 3, index=0)
    with pytest.raises(UnknownNameError, match="unknown format 'GIF' of unit tests"):
        encode(draw("black", 1, 1, index=0), "GIF")
    assert set(FORMATS) == {"PNG", "JPEG"}
