"""The four OOD sets that zero-shot detectors with CLIP report."""

from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet

CLIP_FOUR = BenchmarkDescription(
    name="clip-four",
    title="four OOD sets from the CLIP literature: iNaturalist, SUN, Places, Textures",
    sets=(
        BenchmarkSet("inaturalist", 10_000),
        BenchmarkSet("sun", 10_000),
        BenchmarkSet("places", 10_000),
        BenchmarkSet("textures", 5_640),
    ),
    aggregates={"four": ("inaturalist", "sun", "places", "textures")},
    source="https://github.com/deeplearning-wisc/MCM",
    citation="Huang, Li: MOS: Towards Scaling Out-of-distribution Detection for Large Semantic Space, CVPR 2021; Ming"
    " et al.: Delving into Out-of-Distribution Detection with Vision-Language Representations, NeurIPS 2022",
)
