"""Human-centric evaluation: detection error rates on OOD, shifted and ID images."""

from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet

HUMAN_CENTRIC = BenchmarkDescription(
    name="human-centric",
    title="human-centric evaluation: detection error rates at thresholds from training images",
    sets=(
        BenchmarkSet("textures", 5_640),
        BenchmarkSet("inaturalist", 10_000),
        BenchmarkSet("places", 10_000),
        BenchmarkSet("sun", 10_000),
        BenchmarkSet("imagenet_v2", 10_000),
        BenchmarkSet("imagenet_r", 30_000),
        BenchmarkSet("imagenet_c", 10_000, keep="imagenet_c_10000"),  # the paper does not state its images
    ),
    tables=("human_centric",),
    source="https://arxiv.org/abs/2211.16778",
    citation="Zhu et al.: Rethinking Out-of-Distribution Detection From a Human-Centric Perspective, IJCV 2024",
)
