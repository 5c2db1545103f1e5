"""`oodlit objects`: object detectors, judged by their files alone."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import structs

from oodlit.errors import UsageError


def _types() -> dict[str, Any]:
    from oodlit.detectors import Detector

    return {"detectors": list[Detector] | None}


def evaluate(
    *,
    annotations: str,
    predictions: str,
    id_predictions: Path,
    id_annotations: Path | None = None,
    train_predictions: Path | None = None,
    train_annotations: Path | None = None,
    detectors: Annotated[Any, _types] = None,
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
    """Judge an object detector by its predicted boxes.

    Which boxes are objects that it never learnt, and how many unknown objects are found, dismissed, or taken for
    something known? Everything is read from files: annotations as COCO JSON, boxes as COCO results or as Parquet with
    logits and features.

    Args:
        annotations: COCO JSON of the OOD split, or of several as name=file,name=file; every object is unknown
        predictions: boxes of the same splits, .json or .parquet, in the same way
        id_predictions: boxes of images of the known classes
        id_annotations: their COCO JSON; needed for t* by the best F1, for mean average precision and wilderness impact
        train_predictions: boxes of training images with logits or features, for detectors that are fitted
        train_annotations: their COCO JSON, for --fit_on matched
        detectors: a list of detectors that score logits and features: names, or class_path and init_args
        scores: columns of the files that are OOD scores already, higher = known, separated by commas
        head: .safetensors file with weight and bias of the class layer, for detectors that need it
        class_names: the known classes in the order of the logits, separated by commas; without it those of
            --id_annotations in their order
        out: folder for the results and the page; results of an earlier run there are replaced
        t_star: confidence below which boxes are dropped; without it by the best F1 on the ID set
        tau_rule: how the threshold of the OOD score comes from the ID boxes
        tpr: share of ID boxes that tau and the FPR keep
        iou: overlap from which on a box hits an object
        rules: exact, or published for the arithmetic of FMIYC's program
        fit_on: all boxes of training images, or those that hit an object of their class
        repair: cut annotated boxes at the border of their image and leave out those without area
        bootstrap: repetitions for the intervals; 0 = none
        seed: of the draws
        resolved_config: all of the above as YAML; filled in by the command line
    """
    splits = split_files(annotations, "--annotations")
    boxes = split_files(predictions, "--predictions", like=splits)
    if detectors is None and not scores:
        raise UsageError(
            "--detectors or --scores is needed; the first score logits and features, the others are columns"
        )
    from oodlit.cli.console import console, say, status
    from oodlit.cli.running.outcome import check_folder, not_applicable_lines
    from oodlit.objects import BoxFiles, evaluate_files, read_head, write_object_report
    from oodlit.objects.results.summary import summary_tables

    check_folder(out)
    with status("reading and matching boxes"):
        results = evaluate_files(
            BoxFiles(id_predictions, id_annotations),
            {name: BoxFiles(boxes[name], file) for name, file in splits.items()},
            train=None if train_predictions is None else BoxFiles(train_predictions, train_annotations),
            detectors=detectors or (),
            scores=_listed(scores),
            head=None if head is None else read_head(head),
            class_names=_listed(class_names) or None,
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
    results = replace(results, run=structs.replace(results.run, config=resolved_config))

    def add_page(folder: Path) -> None:
        write_object_report(results, folder / "report.html")

    results.save(out, add=add_page)  # one switch: what an earlier run left, its fit and pictures, goes with its results
    for table in summary_tables(results):
        console().print(table)
    for line in [*results.run.notes, *not_applicable_lines(results.run.not_applicable)]:
        say(line)
    say(f"\nResults: {out}\nReport:  {out / 'report.html'}")


def report(results: list[Path], *, out: Path | None = None) -> None:
    """Write the HTML page of saved results of boxes.

    The same as `oodlit report`.

    Args:
        results: folders of results; several are compared
        out: file to write (default: report.html in the folder; for several, comparison/report.html)
    """
    from oodlit.cli.report import report as write

    write(results, out=out)


def _listed(text: str) -> list[str]:
    """Names separated by commas.

    Example:
        >>> _listed("cat, dog"), _listed("")
        (['cat', 'dog'], [])
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def split_files(text: str, option: str, *, like: dict[str, Path] | None = None) -> dict[str, Path]:
    """Files by the name of their split; a single one may have none and is named after the annotations.

    Example:
        >>> {name: file.name for name, file in split_files("near=a.json,far=b.json", "--annotations").items()}
        {'near': 'a.json', 'far': 'b.json'}
        >>> list(split_files("data/near_coco.json", "--annotations"))
        ['near_coco']
    """
    parts = _listed(text)
    named = [part.partition("=") for part in parts]
    if len(parts) == 1 and not named[0][1]:
        name = next(iter(like)) if like and len(like) == 1 else Path(text).name.partition(".")[0]
        named = [(name, "=", text)]
    if wrong := [
        part for part, (name, equals, file) in zip(parts, named, strict=True) if not (name and equals and file)
    ]:
        raise UsageError(f"{option}: {wrong[0]!r} has no name; several files are given as name=file,name=file")
    files = {name: Path(file) for name, _, file in named}
    if len(files) < len(named):
        raise UsageError(f"{option}: a split is named twice in {text!r}")
    if like is not None and files.keys() != like.keys():
        raise UsageError(f"{option}: splits are {', '.join(files)}, but --annotations has {', '.join(like)}")
    return files
