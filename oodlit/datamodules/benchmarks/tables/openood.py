"""OpenOOD v1.5 on ImageNet-1k, standard and full spectrum."""

from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet

OPENOOD = BenchmarkDescription(
    name="openood-v1.5",
    title="OpenOOD v1.5, ImageNet-1k",
    id_set=BenchmarkSet("imagenet_val", 45_000, drop="imagenet_val_5000"),
    sets=(
        BenchmarkSet("ssb_hard", 49_000, keep="ssb_hard_49000"),
        BenchmarkSet("ninco", 5_879),
        BenchmarkSet("inaturalist", 10_000, keep="inaturalist_10000"),
        BenchmarkSet("textures", 5_160, keep="textures_5160"),
        BenchmarkSet("openimage_o", 15_869, keep="openimage_o_15869"),
        BenchmarkSet("imagenet_v2", 10_000),
        BenchmarkSet("imagenet_c", 10_000, keep="imagenet_c_10000"),
        BenchmarkSet("imagenet_r", 30_000),
    ),
    aggregates={"near": ("ssb_hard", "ninco"), "far": ("inaturalist", "textures", "openimage_o")},
    full_spectrum=("imagenet_v2", "imagenet_c", "imagenet_r"),
    tables=("openood_imagenet1k",),
    source="https://github.com/Jingkang50/OpenOOD",
    citation="Zhang et al.: OpenOOD v1.5: Enhanced Benchmark for Out-of-Distribution Detection, DMLR 2024",
)
