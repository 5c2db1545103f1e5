"""Tables of other origin, odd names, odd settings: read exactly, or refused with a message."""

import json

import numpy as np
import pandas as pd
import pytest

from oodlit.base.checks import check_items
from oodlit.errors import InvalidArgumentError
from oodlit.metrics import UndefinedMetricWarning, auroc
from oodlit.metrics.settings import percent
from oodlit.results import DatasetInfo, Results, Settings, compare_runs, level_correlation
from oodlit.results.files.score_table import checked
from oodlit.results.names import check_name
from oodlit.results.views.export import markdown_of
from oodlit.results.views.paper import PaperCell, PaperColumn, PaperTable
from oodlit.roles import Role
from tests.results.support import DATASETS, DETECTORS, run_scores

# Tests check types as well as values: a value of a wrong type is refused by whichever check comes first.
REFUSED = (InvalidArgumentError, TypeError)
OR_TYPE = "|Type-check error"


@pytest.fixture(scope="module")
def results():
    return Results.from_scores(run_scores(), DATASETS, DETECTORS, bootstrap=0)


@pytest.mark.parametrize("dtype", ["category", "string", "object", "reversed"])
def test_types_of_text_columns_change_nothing(results, dtype):
    frame = run_scores()
    for name in ("key", "dataset"):
        if dtype == "reversed":  # pandas sorts categories in their own order
            frame[name] = pd.Categorical(frame[name], categories=sorted(set(frame[name]), reverse=True))
        else:
            frame[name] = frame[name].astype(dtype)
    again = Results.from_scores(frame.set_axis([7] * len(frame)), DATASETS, DETECTORS, bootstrap=0)
    pd.testing.assert_frame_equal(again.scores, results.scores, check_exact=True)
    pd.testing.assert_frame_equal(again.table, results.table, check_exact=True)


def test_nullable_numbers_are_read_and_missing_ones_refused(results):
    frame = run_scores().astype({"label": "Int64", "group": "int8", "poor": "Float32"})
    again = Results.from_scores(frame, DATASETS, DETECTORS, bootstrap=0)
    pd.testing.assert_frame_equal(again.table, results.table, check_exact=True)
    frame.loc[0, "label"] = pd.NA
    with pytest.raises(InvalidArgumentError, match="'label' is empty in 1 row"):
        checked(frame, DATASETS, DETECTORS)


def broken(**columns):
    return run_scores().assign(**columns)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (broken(key=range(730)), "expected text in column 'key', .*such as 0"),
        (broken(key=[None, *map(str, range(729))]), "'key' is empty in 1 of 730 rows"),
        (broken(dataset=[None, *["val"] * 729]), "'dataset' is empty in 1 of 730 rows"),
        (broken(good=np.arange(730) + 2**53), r"below 2\*\*53 in column 'good'"),
        (broken(good=1j), "'good' is complex128; expected numbers"),
        (pd.concat([run_scores(), run_scores()[["good"]]], axis=1), r"these are repeated: good"),
    ],
)
def test_unreadable_columns_are_refused(frame, message):
    with pytest.raises(InvalidArgumentError, match=message):
        checked(frame, DATASETS, DETECTORS)


@pytest.mark.parametrize("name", ["model", "n", "key", "", " ", "a\nb", "a\tb"])
def test_names_that_tables_cannot_hold_are_refused(name):
    with pytest.raises(InvalidArgumentError, match="detector name"):
        checked(run_scores().rename(columns={"good": name}), DATASETS, [name, "poor"])


@pytest.mark.parametrize("name", ["\ud800", "\u2028", 3, None])
def test_names_are_text_that_files_can_hold(name):
    with pytest.raises(InvalidArgumentError, match="class name"):
        check_name(name, "class")


@pytest.mark.parametrize("name", ["", "a\r", "\u2028"])
def test_class_names_are_text_of_one_line(name):
    with pytest.raises(InvalidArgumentError, match="DatasetInfo 'near': class name"):
        DatasetInfo("near", Role.OOD, (name, "b"))
    DatasetInfo("val", Role.ID, ("", "a\r"))  # names of labels are shown nowhere


def test_descriptions_are_made_plain():
    with pytest.raises(REFUSED, match=f"expected class_names to be a list of names, got 'abc'; write {OR_TYPE}"):
        DatasetInfo("near", Role.OOD, "abc")


ODD = ["a/b", "a b", "_x", "$\\frac$", "x|y", "<b>&%$#_{}~^\\", "[*]", "None", "nan", "ood_class", "_rank", "ü 猫"]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_odd_names_survive_files_and_figures(tmp_path):
    frame = run_scores()
    for index, name in enumerate(ODD):
        frame[name] = frame["good"] + index * frame["poor"]
    odd_set = DatasetInfo("near $x", Role.OOD, ("fpr95", "$\\bad", "_NA"))
    frame["dataset"] = frame["dataset"].replace("near", odd_set.name)
    datasets = [odd_set if info.name == "near" else info for info in DATASETS]
    results = Results.from_scores(frame, datasets, ODD, bootstrap=0)
    folder = tmp_path / "with blanks ü"
    results.save(folder)
    again = Results.load(folder)
    pd.testing.assert_frame_equal(again.table, results.table, check_exact=True)
    pd.testing.assert_frame_equal(again.recompute().table, results.table, check_exact=True)
    assert again.detectors == tuple(ODD)
    assert len(set(results.metrics_by_name())) == len(results.table)
    for kind in ("fpr_per_class", "class_distribution", "roc", "score_histograms", "unit_tests", "accuracy_fpr"):
        figure = results.plot(kind)
        figure.savefig(tmp_path / "figure.png", dpi=30)
        results.plot(kind, detectors=ODD[2:4]).savefig(tmp_path / "figure.png", dpi=30)
        shown = [t.get_text() for legend in figure.legends for t in legend.get_texts()]
        assert not shown or kind == "score_histograms" or len(shown) == len(ODD), kind


def test_text_tables_keep_names_as_they_are():
    column = PaperColumn("a|b", "FPR95", "lower", (PaperCell("50.0"), PaperCell("25.0", "", True)))
    markdown = markdown_of(PaperTable(("<b>*x*_y", "[1]"), (column,), ())).splitlines()
    assert markdown[0] == r"| detector | a\|b: FPR95 ↓ |"
    assert markdown[2:] == [r"| \<b\>\*x\*\_y | 50.0 |", r"| \[1\] | **25.0** |"]


def test_settings_read_back_are_the_same(tmp_path):
    settings = Settings(tpr=np.float64(0.9), der=[np.float64(0.95)], seed=3)
    assert type(settings.tpr) is type(settings.der[0]) is float
    assert Settings(**json.loads(json.dumps(settings.to_json()))) == settings
    results = Results.from_scores(run_scores(), DATASETS, DETECTORS, tpr=np.float64(0.9), der=[0.9], bootstrap=0)
    results.save(tmp_path / "run")
    again = Results.load(tmp_path / "run")
    assert again.settings == results.settings
    pd.testing.assert_frame_equal(again.recompute().table, results.table, check_exact=True)


def test_names_of_shares_have_all_digits():
    assert [percent(share) for share in (0.95, 0.995, 0.9500001, 1 - 1e-8)] == ["95", "99.5", "95.00001", "99.999999"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tpr": "0.95"}, "tpr .* got '0.95'"),
        ({"der": 0.95}, r"der to be fractions, such as \(0\.95, 0\.99\), got 0\.95"),
        ({"der": (0.95, 0.95)}, "expected each fraction once"),
        ({"bootstrap": 2.5}, r"bootstrap .* got 2\.5"),
        ({"bootstrap": True}, "bootstrap .* got True"),
        ({"seed": -1}, "seed .* got -1"),
        ({"classes": {"near": "sky"}}, "a list of class names, got 'sky'"),
        ({"classes": {"val": ["zero"]}}, "'val' has role id"),
    ],
)
def test_settings_without_a_meaning_are_refused(results, change, message):
    with pytest.raises(REFUSED, match=message + OR_TYPE):
        results.recompute(**change)


def test_pooling_keeps_to_the_chosen_classes(results):
    some = results.recompute(classes={"near": ["sky"], "shifted": ["fog"]})
    pooled = some.pooled(["near", "far"])
    assert pooled.run.counts["pooled"] == 30 + 40
    assert pooled.settings.classes == {"shifted": ["fog"]}


def test_the_sign_test_names_the_detector_that_wins():
    """A wins 19 of 20 classes by a little and loses one by much: the mean is against it, the sign test for it."""
    classes = tuple(f"c{i:02d}" for i in range(20))
    frame = pd.DataFrame({"dataset": ["val"] * 100 + ["ood"] * 400, "label": -1, "prediction": -1})
    frame["key"] = [f"{d}/{i}" for i, d in enumerate(frame["dataset"])]
    frame["group"] = [-1] * 100 + [i for i in range(20) for _ in range(20)]
    number = np.tile(np.arange(20), 20)
    last = np.repeat(np.arange(20), 20) == 19
    frame["a"] = np.r_[np.arange(100.0), np.where(last, 50.0, -1.0)]
    frame["b"] = np.r_[np.arange(100.0), np.where(~last & (number == 0), 50.0, -1.0)]
    datasets = [DatasetInfo("val", Role.ID), DatasetInfo("ood", Role.OOD, classes)]
    results = Results.from_scores(frame, datasets, ["a", "b"], bootstrap=0)
    row = results.compare("a", "b", "b", test="sign")
    assert len(row) == 1
    assert (row.loc[0, "wins"], row.loc[0, "losses"], row.loc[0, "better"]) == (19, 1, "a")
    assert row.loc[0, "difference"] > 0
    with pytest.raises(InvalidArgumentError, match="expected repetitions to be at least 1"):
        results.compare("a", repetitions=0)


def test_runs_of_any_make_up_have_tables():
    frame = run_scores()
    units = [info for info in DATASETS if info.name in ("val", "tests")]
    only = Results.from_scores(frame[frame["dataset"].isin(["val", "tests"])], units, DETECTORS, bootstrap=0)
    assert list(only.summary().columns) == [("val", "id_auroc"), ("tests", "unit_test_failures")]
    alone = Results.from_scores(frame, DATASETS, [], bootstrap=0)
    assert set(alone.table["detector"]) == {"model"}
    single = pd.concat([frame[frame["dataset"] == "val"], frame[frame["dataset"] == "near"].drop_duplicates("group")])
    results = Results.from_scores(single, DATASETS[1:3], DETECTORS, bootstrap=50)
    assert set(results.per_class("near")["n"]) == {1}
    unlabelled = Results.from_scores(
        frame[frame["dataset"] != "train"].assign(label=-1), DATASETS, DETECTORS, bootstrap=0
    )
    with pytest.raises(InvalidArgumentError, match=r"accuracy_fpr: .* has no accuracy on 'val'"):
        unlabelled.plot("accuracy_fpr")
    with pytest.warns(UndefinedMetricWarning):
        nothing = Results.from_scores(frame[:0], DATASETS, DETECTORS, bootstrap=50)
    assert nothing.table["value"].isna().all()


@pytest.mark.parametrize(
    "call",
    [
        lambda results: results.summary("mean_auroc"),
        lambda results: results.to_latex(metrics="mean_auroc"),
        lambda results: results.pooled("near"),
        lambda results: compare_runs({"a": results, "b": results}, detectors="msp"),
        lambda results: level_correlation({"a": results, "b": results}, "near", "msp"),
        lambda results: Results.from_scores(results.scores, results.datasets, "msp"),
    ],
)
def test_one_name_instead_of_a_list_is_not_read_letter_by_letter(results, call):
    with pytest.raises(InvalidArgumentError, match=r"to be a list of names, got '(\w+)'; write \['\1'\]"):
        call(results)


def test_names_without_values(results):
    with pytest.raises(REFUSED, match="expected classes to map data sets to lists of class names" + OR_TYPE):
        results.recompute(classes=["near"])
    with pytest.raises(REFUSED, match=r"expected classes\['near'\] to be a list of class names, got None" + OR_TYPE):
        results.recompute(classes={"near": None})
    with pytest.raises(REFUSED, match="expected runs by name, such as .*, got a list" + OR_TYPE):
        compare_runs([results, results])


@pytest.mark.parametrize("export", ["to_csv", "to_parquet", "to_json", "to_latex", "to_markdown"])
def test_exports_to_a_missing_folder_name_the_folder(results, tmp_path, export):
    with pytest.raises(InvalidArgumentError, match=r"the folder .*tables does not exist; create it first"):
        getattr(results, export)(tmp_path / "tables" / "table.txt")
    with pytest.raises(InvalidArgumentError, match="expected a file name, got a folder"):
        getattr(results, export)(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [DATASETS[1], ["val", "near"], {"val": DATASETS[1]}, "val"])
def test_data_sets_that_are_no_list_are_refused(given):
    with pytest.raises(REFUSED, match="expected datasets to be a list of DatasetInfo" + OR_TYPE):
        Results.from_scores(run_scores(), given, DETECTORS)
    with pytest.raises(InvalidArgumentError, match=r"R: expected datasets to be a list of DatasetInfo objects, got "):
        check_items("R", "datasets", given, DatasetInfo)


def test_a_single_object_in_place_of_a_list_is_suggested_as_a_list():
    with pytest.raises(InvalidArgumentError, match=r"got 3; write \[3\]"):
        check_items("R", "numbers", 3, int)
    check_items("R", "numbers", [3, 4], int)


def test_scores_that_float64_would_round_are_refused(results):
    frame = run_scores()
    wide = frame["good"].to_numpy().astype(np.longdouble)
    same = Results.from_scores(frame.assign(good=wide), DATASETS, DETECTORS, bootstrap=0)
    pd.testing.assert_frame_equal(same.table, results.table, check_exact=True)
    wide[7] += np.longdouble(2) ** -60
    with pytest.raises(
        InvalidArgumentError,
        match=rf"column 'good': 1 of {len(frame)} values .* cannot be represented exactly in float64",
    ):
        Results.from_scores(frame.assign(good=wide), DATASETS, DETECTORS, bootstrap=0)
    # One value more than a threshold that float64 holds, and a value beyond the largest one.
    for value in (np.longdouble(1) + np.longdouble(2) ** -60, np.longdouble(10) ** 400):
        with pytest.raises(InvalidArgumentError, match=r"1 of 2 values of dtype .* pass values\.astype"):
            auroc(np.array([value, 1], dtype=np.longdouble), [0.0, 2.0])
    assert auroc(np.array([3, np.inf], dtype=np.longdouble), [0.0, 2.0]) == 1
