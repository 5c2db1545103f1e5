"""FindMeIfYouCan: object detectors and unknown objects."""

from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet

FMIYC = BenchmarkDescription(
    name="fmiyc",
    title="FindMeIfYouCan: near, far and farther OOD objects for Pascal VOC or BDD100k",
    sets=(
        BenchmarkSet("near_coco", 1_174),
        BenchmarkSet("near_oi", 908),
        BenchmarkSet("far_coco", 938),
        BenchmarkSet("far_oi", 1_179),
        BenchmarkSet("farther_coco", 1_873),
        BenchmarkSet("farther_oi", 1_695),
    ),
    id_set=BenchmarkSet("voc"),
    tables=("fmiyc",),
    boxes=True,
    citation="FindMeIfYouCan: Bringing Open Set Metrics to near, far and farther Out-of-Distribution Object Detection",
)
