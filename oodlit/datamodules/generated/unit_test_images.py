"""Generators of the 17 synthetic images that no classifier should accept: pure functions of size and random generator.

Every function takes `(width, height, rng)` in pixels and returns float64 values in [0, 1] of shape (height, width, 3).
The two that permute pixels accept an image instead of a size. Smoothing is a Gaussian filter with wrapped borders.
"""

import numpy as np
import scipy.fft
from jaxtyping import Float64, UInt8

from oodlit.base.errors import InvalidArgumentError

Pixels = Float64[np.ndarray, "height width 3"]
Limits = Float64[np.ndarray, " channels"] | float
Rng = np.random.Generator

GAUSSIAN_SIGMAS = (0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5)
STRIPES = (4, 5, 7, 10, 15, 20)
LOW_FREQ_SIGMAS = (10.0, 15.0, 25.0, 40.0, 60.0, 85.0)
PIXEL_PERM_SIGMAS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
BLOB_SIGMAS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
_TRUNCATE = 4.0  # the filter is cut off at this many sigmas


def uni(width: int, height: int, rng: Rng) -> Pixels:
    """Uniform noise: every channel of every pixel U(0, 1)."""
    return rng.random((height, width, 3))


def gaussian(width: int, height: int, rng: Rng) -> Pixels:
    """Gaussian noise N(0.5, sigma), clipped; one sigma of `GAUSSIAN_SIGMAS` per image."""
    return _clip(0.5 + rng.choice(GAUSSIAN_SIGMAS) * rng.standard_normal((height, width, 3)))


def rademacher(width: int, height: int, rng: Rng) -> Pixels:
    """Every channel of every pixel 0 or 1 with equal probability."""
    return rng.integers(0, 2, (height, width, 3)).astype(np.float64)


def pixel_perm(image: UInt8[np.ndarray, "height width 3"], rng: Rng) -> Pixels:
    """The pixels of an ID image in random order; the three channels of a pixel stay together."""
    pixels = image.reshape(-1, 3)
    return np.asarray(pixels[rng.permutation(len(pixels))] / 255.0).reshape(image.shape)


def black(width: int, height: int, rng: Rng) -> Pixels:
    """All 0."""
    return np.zeros((height, width, 3))


def white(width: int, height: int, rng: Rng) -> Pixels:
    """All 1."""
    return np.ones((height, width, 3))


def grey(width: int, height: int, rng: Rng) -> Pixels:
    """One value U(0, 1) for all channels and pixels."""
    return np.full((height, width, 3), rng.random())


def monochrome(width: int, height: int, rng: Rng) -> Pixels:
    """One color U(0, 1)^3."""
    return np.broadcast_to(rng.random(3), (height, width, 3)).copy()


def tricolour(width: int, height: int, rng: Rng) -> Pixels:
    """A flag: three equal stripes of colors U(0, 1)^3, vertical or horizontal with equal probability."""
    return _flag(width, height, rng, rng.random((3, 3)))


def tricolour_primary(width: int, height: int, rng: Rng) -> Pixels:
    """A flag of colors with channels 0 or 1."""
    return _flag(width, height, rng, rng.integers(0, 2, (3, 3)).astype(np.float64))


def horizontal_stripes(width: int, height: int, rng: Rng) -> Pixels:
    """Horizontal stripes of colors U(0, 1)^3, their number one of `STRIPES`; the last gets the remaining rows.

    Images with fewer rows than stripes have stripes of one pixel.
    """
    return np.broadcast_to(_stripes(height, rng)[:, None], (height, width, 3)).copy()


def vertical_stripes(width: int, height: int, rng: Rng) -> Pixels:
    """Draw vertical stripes in uniformly random colors; their number is drawn from `STRIPES`."""
    return np.broadcast_to(_stripes(width, rng), (height, width, 3)).copy()


def low_freq(width: int, height: int, rng: Rng, *, scale: float = 1.0) -> Pixels:
    """Smooth noise: uniform noise, filtered, scaled so that minimum and maximum over all channels are 0 and 1.

    Args:
        width: In pixels.
        height: In pixels.
        rng: Random generator of the noise.
        scale: Factor of the sigmas in `LOW_FREQ_SIGMAS` (pixels), for images much smaller than ImageNet's.
    """
    noise = _smooth_noise(width, height, rng, scale)
    return _clip(_spread(noise, float(noise.min()), float(noise.max()), 0.0, 1.0))


def low_freq_channelfullscale(width: int, height: int, rng: Rng, *, scale: float = 1.0) -> Pixels:
    """Smooth noise with every channel scaled to [0, 1]; see `low_freq`."""
    noise = _smooth_noise(width, height, rng, scale)
    return _clip(_spread(noise, noise.min(axis=(0, 1)), noise.max(axis=(0, 1)), 0.0, 1.0))


def low_freq_colorrange(width: int, height: int, rng: Rng, *, scale: float = 1.0) -> Pixels:
    """Smooth noise around one color c U(0, 1)^3; see `low_freq`.

    c - delta and c + delta are the 2.5 % and 97.5 % quantiles of each channel, delta U(0.1, 0.3); then clipped.
    """
    noise = _smooth_noise(width, height, rng, scale)
    delta, colour = rng.uniform(0.1, 0.3), rng.random(3)
    low, high = np.quantile(noise, (0.025, 0.975), axis=(0, 1))
    return _clip(_spread(noise, low, high, colour - delta, colour + delta))


def low_freq_pixel_perm(image: UInt8[np.ndarray, "height width 3"], rng: Rng, *, scale: float = 1.0) -> Pixels:
    """Permuted pixels of an ID image, filtered with a sigma of `PIXEL_PERM_SIGMAS` times `scale`, in pixels."""
    sigma = scale * rng.choice(PIXEL_PERM_SIGMAS)
    return _clip(smooth(pixel_perm(image, rng), sigma))


def blobs(width: int, height: int, rng: Rng, *, scale: float = 1.0) -> Pixels:
    """Channels 1 with 70 % probability, filtered with a sigma of `BLOB_SIGMAS` times `scale`; below 0.75 set to 0."""
    sigma = scale * rng.choice(BLOB_SIGMAS)
    noise = smooth((rng.random((height, width, 3)) < 0.7).astype(np.float64), sigma)
    return _clip(np.where(noise < 0.75, 0.0, noise))


def smooth(values: Pixels, sigma: float) -> Pixels:
    """Gaussian filter over height and width with wrapped borders, cut off at four sigmas.

    Equal to `scipy.ndimage.gaussian_filter(values, (sigma, sigma, 0), mode="wrap")` up to rounding, but computed by
    Fourier transform, so that large sigmas are as fast as small ones.

    Args:
        values: The image.
        sigma: In pixels, > 0.

    Raises:
        InvalidArgumentError: sigma is not positive.

    Example:
        >>> float(smooth(np.ones((2, 5, 3)), 85.0).round(12).min())
        1.0
    """
    if not sigma > 0:
        raise InvalidArgumentError(f"smooth: expected sigma to be positive, got {sigma}")
    height, width, _ = values.shape
    response = _response(height, sigma)[:, None] * _response(width, sigma)[: width // 2 + 1]
    spectrum = scipy.fft.rfft2(values, axes=(0, 1)) * response[:, :, None]
    return np.asarray(scipy.fft.irfft2(spectrum, s=(height, width), axes=(0, 1)))


def _response(length: int, sigma: float) -> Float64[np.ndarray, " frequencies"]:
    """Frequency response of the filter on a circle of `length` pixels."""
    radius = int(_TRUNCATE * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    ring = np.bincount(offsets % length, weights / weights.sum(), minlength=length)
    return np.asarray(scipy.fft.fft(ring).real)  # the filter is symmetric


def _smooth_noise(width: int, height: int, rng: Rng, scale: float) -> Pixels:
    sigma = scale * rng.choice(LOW_FREQ_SIGMAS)
    return smooth(rng.random((height, width, 3)), sigma)


def _spread(values: Pixels, low: Limits, high: Limits, new_low: Limits, new_high: Limits) -> Pixels:
    """Map `low` and `high` linearly to the new values, and a constant to the middle."""
    span = high - low
    flat = span < 1e-12  # a single pixel: rounding errors would be scaled up
    fraction = np.where(flat, 0.5, (values - low) / np.where(flat, 1.0, span))
    return np.asarray(new_low + fraction * (new_high - new_low))


def _flag(width: int, height: int, rng: Rng, colours: Float64[np.ndarray, "3 3"]) -> Pixels:
    upright = bool(rng.integers(0, 2))
    length = width if upright else height
    line = colours[np.arange(length) * 3 // length]
    return np.broadcast_to(line if upright else line[:, None], (height, width, 3)).copy()


def _stripes(length: int, rng: Rng) -> Float64[np.ndarray, "length 3"]:
    n = int(rng.choice(STRIPES))
    colours = rng.random((n, 3))
    thickness = max(length // n, 1)
    return np.asarray(colours[np.minimum(np.arange(length) // thickness, n - 1)])


def _clip(values: Pixels) -> Pixels:
    return np.asarray(np.clip(values, 0.0, 1.0))
