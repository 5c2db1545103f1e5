"""`oodlit objects`: evaluate object detectors by files of their predictions."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import structs

from oodlit.base.errors import UsageError
from oodlit.base.text.resolve import names_in

if TYPE_CHECKING:
    from oodlit.objects import ObjectResults

HEADINGS = {
    "evaluate": {
        "OOD data": ("annotations", "predictions", "repair"),
        "ID data": ("id_predictions", "id_annotations", "train_predictions", "train_annotations", "class_names"),
        "Detectors": ("detectors", "scores", "head", "fit_on"),
        "Metrics": ("t_star", "tau_rule", "tpr", "iou", "rules", "bootstrap", "seed"),
        "Output": ("out",),
    }
}


def _types() -> dict[str, Any]:
    from oodlit.detectors import Detector

    return {"detectors": Literal["all"] | list[Detector] | None}


def evaluate(
    *,
    annotations: str,
    predictions: str,
    id_predictions: Path,
    id_annotations: Path | None = None,
    train_predictions: Path | None = None,
    train_annotations: Path | None = None,
    detectors: Annotated[list[Any] | str | None, _types] = None,
    scores: str = "",
    head: Path | None = None,
    class_names: str = "",
    out: Path = Path("oodlit-results"),
    t_star: float | None = None,
    tau_rule: Literal["quantile", "normal"] | None = None,
    tpr: float = 0.95,
    iou: float = 0.5,
    rules: Literal["exact", "published"] = "exact",
    fit_on: Literal["predicted", "matched"] = "predicted",
    repair: bool = False,
    bootstrap: int = 200,
    seed: int = 0,
    resolved_config: str = "",
) -> None:
    """Evaluate an object detector by its predicted boxes.

    Measures how many unknown objects are found, missed, or mistaken for a known class. Annotations are COCO JSON;
    boxes are COCO results, or Parquet with logits and features.

    Args:
        annotations: annotations per split: FILE, or NAME=FILE,NAME=FILE
        predictions: boxes per split: FILE, or NAME=FILE,NAME=FILE
        id_predictions: predicted boxes on images of known classes
        id_annotations: annotations of these images, for best F1 and mAP
        train_predictions: predicted boxes on training images, to fit detectors
        train_annotations: annotations of these images (--fit_on matched)
        detectors: KNN,MSP or all (default: all; none with --scores)
        scores: columns with OOD scores, such as A,B (default: none)
        head: weight and bias of the class layer (.safetensors)
        class_names: known classes, such as A,B (default: as annotated)
        out: folder for results (default: oodlit-results)
        t_star: least confidence of a box (default: at best F1)
        tau_rule: threshold: quantile or normal (default: by --rules)
        tpr: share of ID boxes to keep (default: 0.95)
        iou: overlap (IoU) that counts as a hit
        rules: metrics: exact or published (FMIYC)
        fit_on: boxes: predicted or matched
        repair: crop boxes to the image; drop empty or ignored ones
        bootstrap: repetitions for intervals, 0 = none
        seed: seed of the bootstrap
        resolved_config: the configuration as YAML, from the command line
    """
    splits = split_files(annotations, "--annotations")
    boxes = split_files(predictions, "--predictions", like=splits)
    from oodlit.cli.console import status
    from oodlit.cli.running.outcome import check_folder
    from oodlit.detectors.contract.every import every_detector
    from oodlit.objects import BoxFiles, evaluate_files, read_head

    check_folder(out)
    every = detectors == "all" or (detectors is None and not scores)
    with status("reading and matching boxes"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="detector '.*' is skipped")  # the output lists them
        results = evaluate_files(
            BoxFiles(id_predictions, id_annotations),
            {name: BoxFiles(boxes[name], file) for name, file in splits.items()},
            train=None if train_predictions is None else BoxFiles(train_predictions, train_annotations),
            detectors=every_detector()[0] if every else detectors or (),
            scores=names_in(scores),
            head=None if head is None else read_head(head),
            class_names=names_in(class_names) or None,
            t_star=t_star,
            fit_on=fit_on,
            repair=repair,
            tau_rule=tau_rule,
            tpr=tpr,
            iou=iou,
            rules=rules,
            bootstrap=bootstrap,
            seed=seed,
        )
    _write(replace(results, run=structs.replace(results.run, config=resolved_config)), out)


def _write(results: "ObjectResults", out: Path) -> None:
    """Save results with their page, and print their tables."""
    from oodlit.cli.console import console, say
    from oodlit.cli.running.outcome import print_outcome
    from oodlit.report import write_report

    def add_page(folder: Path) -> None:
        name = out.resolve().name  # of the final folder: this one is temporary
        write_report({name: results}, folder / "report.html", folders={name: folder})

    results.save(out, add=add_page)  # in one step, so that nothing of an earlier run remains beside the new results
    print_outcome(results, console())
    say(f"\nResults: {out}\nReport:  {out / 'report.html'}")


def split_files(text: str, option: str, *, like: dict[str, Path] | None = None) -> dict[str, Path]:
    """Parse files by name of their split; a single file may have no name and is called after the annotations.

    Example:
        >>> {name: file.name for name, file in split_files("near=a.json,far=b.json", "--annotations").items()}
        {'near': 'a.json', 'far': 'b.json'}
        >>> list(split_files("data/near_coco.json", "--annotations"))
        ['near_coco']
    """
    parts = names_in(text)
    named = [part.partition("=") for part in parts]
    if len(parts) == 1 and not named[0][1]:
        name = next(iter(like)) if like and len(like) == 1 else Path(text).name.partition(".")[0]
        named = [(name, "=", text)]
    if wrong := [part for part, pieces in zip(parts, named, strict=True) if not all(pieces)]:
        raise UsageError(f"{option}: expected NAME=FILE, got {wrong[0]!r}; write several files as NAME=FILE,NAME=FILE")
    files = {name: Path(file) for name, _, file in named}
    if len(files) < len(named):
        raise UsageError(f"{option}: {text!r} repeats the name of a split; write each split once")
    if like is not None and files.keys() != like.keys():
        raise UsageError(f"{option}: expected the splits of --annotations ({', '.join(like)}), got {', '.join(files)}")
    return files
