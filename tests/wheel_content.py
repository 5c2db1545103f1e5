"""Check what a built wheel holds: `python tests/wheel_content.py DIST`. Needs nothing but Python."""

import sys
import zipfile
from pathlib import Path

NEEDED = (
    "oodlit/__init__.py",
    "oodlit/py.typed",
    "oodlit/base/words/WORDNET_LICENSE.txt",
    "oodlit/base/words/neg_label_imagenet1k.tsv.xz",
    "oodlit/base/words/wordnet_words.tsv.xz",
    "oodlit/cli/detectors.json",
    "oodlit/cli/main.py",
    "oodlit/cli/template/fitted_module.txt",
    "oodlit/cli/template/fitted_page.txt",
    "oodlit/cli/template/fitted_test.txt",
    "oodlit/cli/template/module.txt",
    "oodlit/cli/template/page.txt",
    "oodlit/cli/template/pyproject.txt",
    "oodlit/cli/template/readme.txt",
    "oodlit/cli/template/test.txt",
    *(
        f"oodlit/datamodules/benchmarks/lists/{name}.txt.xz"
        for name in (
            *("imagenet_c_10000", "imagenet_ood_31802", "imagenet_val_5000", "inaturalist_10000"),
            *("openimage_o_15869", "openimage_o_val_1763", "ssb_hard_49000", "textures_5160"),
        )
    ),
    "oodlit/datamodules/sets/imagenet21k/WORDNET_LICENSE.txt",
    "oodlit/datamodules/sets/imagenet21k/is_a.txt.gz",
    "oodlit/datamodules/sets/imagenet21k/same_or_part.txt",
    "oodlit/datamodules/sets/ninco_classes.csv",
    "oodlit/datamodules/sets/published.json",
    "oodlit/report/html/bars.svg",
    "oodlit/report/html/headline.html",
    "oodlit/report/html/histogram.svg",
    "oodlit/report/html/page.html",
    "oodlit/report/html/roc.svg",
    "oodlit/report/html/scatter.svg",
    "oodlit/report/html/script.js",
    "oodlit/report/html/style.css",
    "oodlit/results/published/COOD_LICENSE.txt",
    "oodlit/results/published/adascale.csv",
    "oodlit/results/published/cood_curves.csv.gz",
    "oodlit/results/published/human_centric.csv",
    "oodlit/results/published/mahalanobis_plus_plus.csv",
    "oodlit/results/published/ninco.csv",
    "oodlit/results/published/ninco_classes.csv.gz",
    "oodlit/results/published/ninco_first_release.csv",
    "oodlit/results/published/ninco_first_release_classes.csv.gz",
    "oodlit/results/published/ninco_weights.csv",
    "oodlit/results/published/openood_imagenet1k.csv",
    "oodlit/results/published/timm_accuracy.csv",
    "oodlit/testing/__init__.py",
    "oodlit/detectors/__init__.py",
    "oodlit/report/html/boxes/splits.html",
    "oodlit/objects/published/fmiyc_osod.csv",
    "oodlit_pytest.py",
)
FORBIDDEN = ("tests/", "docs/", "benchmarks/", "examples/", "shared/")


def problems(names: list[str]) -> list[str]:
    """What is missing from the files of a wheel, and what should not be among them."""
    missing = [f"missing: {name}" for name in NEEDED if name not in names]
    extra = [f"does not belong there: {name}" for name in names if name.startswith(FORBIDDEN) or "__pycache__" in name]
    licence = [] if any(name.endswith("LICENSE") for name in names) else ["missing: the licence"]
    return missing + extra + licence


def main(folder: str) -> int:
    """Print the verdict; 1 if anything is wrong or there is no single wheel."""
    wheels = list(Path(folder).glob("*.whl"))
    if len(wheels) != 1:
        print(f"{folder}: {len(wheels)} wheels; one is expected")
        return 1
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        entry_points = [wheel.read(n).decode() for n in names if n.endswith("entry_points.txt")]
    found = problems(names)
    if not any("oodlit = oodlit.cli.main:main" in text for text in entry_points):
        found.append("missing: the command oodlit")
    if not any("oodlit = oodlit_pytest" in text for text in entry_points):
        found.append("missing: the plugin of pytest")
    print("\n".join(found) or f"{wheels[0].name}: {len(names)} files, as it should be")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
