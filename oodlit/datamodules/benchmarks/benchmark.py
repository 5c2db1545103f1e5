"""A benchmark by its name: sets, lists of images, ID split, rules and means over sets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from typing_extensions import Unpack

from oodlit.base.errors import DataError, InvalidArgumentError, MissingExtraError, UnknownNameError
from oodlit.base.roles import NAMES_OF_LABELS, Role
from oodlit.base.text.warn import warn
from oodlit.datamodules.benchmarks.imagenet import Generated, Locations, MissingSetError
from oodlit.datamodules.benchmarks.lists import listed, published_list
from oodlit.datamodules.benchmarks.tables import describe_benchmark
from oodlit.datamodules.benchmarks.tables.description import BenchmarkDescription, BenchmarkSet
from oodlit.datamodules.datamodule import OODDataModule
from oodlit.datamodules.decode import decode_image
from oodlit.datamodules.keys import repeated
from oodlit.datamodules.loading_options import LoadingOptions
from oodlit.datamodules.sets import describe
from oodlit.datamodules.sets.imagenet import IMAGENET_TRAIN
from oodlit.datamodules.shards.locate import Shards
from oodlit.datamodules.stream import Stream
from oodlit.datamodules.subsets import SampleFacts, SubsetSource, facts_of
from oodlit.datamodules.thinning import whole_size


class MissingSetWarning(UserWarning):
    """Warning for a data set of a benchmark that was not found and is left out."""


class Benchmark(OODDataModule):
    """The streams of a benchmark, see `oodlit list benchmarks`.

    Every set has a folder with its name below `root`, as for `ImageNetBenchmark`: shards, or images in the official
    layout. A set may have more images than the benchmark uses; the published list is applied when it is read. Unit
    tests and "imagenet_c" are generated if they do not exist. Optional sets are used if they exist.

    Args:
        name: Name of the benchmark.
        root: Folder of the sets. Default: the current folder.
        sets: Names of the sets to use; None (default) = all sets of the benchmark.
        train: See `ImageNetBenchmark`.
        locations: Locations of sets that are not below `root`, by name, such as
            {"ssb_hard": "shards/imagenet21k"}.
        complete: If True (default), all sets must exist, and every set must have the published number of images. If
            False, missing sets and images are left out with a warning.
        seed: Seed of the generated sets.
        loading: See `OODDataModule`; `class_subset` replaces that of the benchmark.

    Attributes:
        about: The description of the benchmark.

    Raises:
        UnknownNameError: There is no such benchmark, or it has no such set.
        InvalidArgumentError: The benchmark evaluates object detectors, or a set is chosen twice.
        DataError: A set is missing or incomplete, a folder has shards of another set, or images of a list are missing
            or ambiguous.

    Warns:
        MissingSetWarning: `complete` is False, and a set, all images of its list, or some of them are missing.
    """

    def __init__(
        self,
        name: str,
        root: str | Path = ".",
        *,
        sets: Sequence[str] | None = None,
        train: bool | None = None,
        locations: Mapping[str, Shards] | None = None,
        complete: bool = True,
        seed: int = 0,
        **loading: Unpack[LoadingOptions],
    ) -> None:
        """Find the sets and apply the lists; no image is read."""
        self.about = about = describe_benchmark(name)
        if about.boxes:
            raise InvalidArgumentError(
                f"benchmark {name!r} evaluates object detectors; use ObjectBenchmark.fmiyc or `oodlit objects evaluate`"
            )
        _check_names(about, sets, locations or ())

        def place(one: BenchmarkSet) -> Locations:
            whole = complete and not (one.keep or one.drop)
            return Locations(Path(root), dict(locations or {}), whole, any_set=bool(one.keep))

        wanted = [one for one in about.sets if (one.name in sets if sets else not one.is_optional)]
        if complete:
            every = (about.id_set, *wanted)
            _check_found(about, Path(root), [one.name for one in every if place(one).is_missing(one.name)])
        val = place(about.id_set).stream(describe(about.id_set.name))
        training = place(BenchmarkSet(IMAGENET_TRAIN.name)).training(train)
        found = [_with_list(val, about.id_set, complete=complete), *training]
        made = Generated(val, seed=seed, decode=loading.get("decode", decode_image))
        for one in about.sets:
            if one not in wanted and (sets or not place(one).find(one.name)):
                continue
            try:
                stream = place(one).found_or_generated(describe(one.name), made)
                found.append(_with_list(stream, one, complete=complete))
            except (MissingSetError, MissingExtraError) as error:
                if complete:
                    raise
                warn(f"{one.name} is left out of benchmark {name!r}: {error}", MissingSetWarning)
        if {stream.role for stream in found} <= {Role.ID, Role.TRAIN}:
            raise DataError(
                f"no test set of benchmark {name!r} was found below {root} (sets: {', '.join(o.name for o in wanted)});"
                f" build one with `oodlit shards build NAME SOURCE --out {root}/NAME`"
            )
        if about.class_subset:
            loading.setdefault("class_subset", about.class_subset)
        loading["evaluation"] = about.evaluation | dict(loading.get("evaluation") or {})
        super().__init__(found, **loading)
        if self.class_subset == about.class_subset:
            self._compare_counts((about.id_set, *about.sets), complete=complete)

    def _compare_counts(self, sets: Sequence[BenchmarkSet], *, complete: bool) -> None:
        expected = {one.name: one.images for one in sets if one.images is not None}
        for stream in self.streams if complete else ():
            if (number := whole_size(stream)) != (there := expected.get(stream.name, number)):
                raise DataError(
                    f"{stream.name}: expected {there:,} images in benchmark {self.about.name!r}, got {number:,};"
                    " download the official archive again, or pass complete=False to use the existing images"
                )
        self.streams = tuple(replace(s, expected_count=expected.get(s.name, s.expected_count)) for s in self.streams)


def _check_names(about: BenchmarkDescription, sets: Sequence[str] | None, locations: Iterable[str]) -> None:
    """Check the names of chosen sets, and of sets with a location."""
    if sets is not None and (isinstance(sets, str) or not sets or repeated(sets)):
        raise InvalidArgumentError(
            f"sets: expected None (all sets of {about.name!r}) or a non-empty list of distinct names, got {sets!r}"
        )
    known = [one.name for one in about.sets]
    for chosen in sets or ():
        UnknownNameError.check(f"set of {about.name!r}", chosen, known)
    for given in locations:
        UnknownNameError.check(f"set of {about.name!r}", given, [about.id_set.name, *known, IMAGENET_TRAIN.name])


def _check_found(about: BenchmarkDescription, root: Path, missing: Sequence[str]) -> None:
    """Name all missing sets in one message; a single one has its own message."""
    if len(missing) > 1:
        raise MissingSetError(
            f"benchmark {about.name!r}: {len(missing)} sets were not found below {root}: {', '.join(missing)}. Build"
            f" each with `oodlit shards build NAME SOURCE --out {root}/NAME`; `oodlit data list` shows where to get the"
            f" sources. To run without missing test sets, pass complete=False ({about.id_set.name} is always required)"
        )


def _with_list(stream: Stream, about: BenchmarkSet, *, complete: bool) -> Stream:
    """The stream with the images that the benchmark uses."""
    if not about.keep and not about.drop:
        return stream
    names = published_list(about.keep or about.drop)
    facts = list(facts_of(stream.source))
    positions = listed(facts, names, stream.name)
    if about.drop:
        kept = sorted({*range(len(facts))} - {*positions})
    else:
        kept = sorted(position for position in positions if position >= 0)
        if missing := [name for name, position in zip(names, positions, strict=True) if position < 0]:
            text = f"{stream.name}: could not find {len(missing)} of {len(names)} listed images (first: {missing[0]!r})"
            if complete:
                raise DataError(f"{text}; download the official archive again, or pass complete=False to omit them")
            if not kept:
                raise MissingSetError(text)
            warn(f"{text}; missing images are left out", MissingSetWarning)
    return _with_groups(replace(stream, expected_count=len(names) if about.keep else None), facts, kept)


def _with_groups(stream: Stream, facts: Sequence[SampleFacts], kept: Sequence[int]) -> Stream:
    """Keep some samples, and only the groups that they belong to."""
    names = stream.class_names
    if stream.role in NAMES_OF_LABELS or not names:
        return replace(stream, source=SubsetSource(stream.source, kept))
    present = sorted({facts[position].group for position in kept} - {-1})
    source = SubsetSource(stream.source, kept, groups={old: new for new, old in enumerate(present)})
    return replace(stream, source=source, class_names=tuple(names[i] for i in present))
