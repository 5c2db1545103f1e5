"""Private names stay private, and a name means one thing."""

import ast
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import oodlit

PACKAGE = Path(oodlit.__file__).parent
DOCUMENTED = {"_asdict", "_replace", "_exit"}
"""Public in spite of the underscore: methods of named tuples, and `os._exit`."""
OF_TORCH = {
    "_AdaptiveAvgPoolNd": "base of the pooling layers of all dimensions; there is no public one",
    "_AdaptiveMaxPoolNd": "the same",
    "_AvgPoolNd": "the same",
    "_MaxPoolNd": "the same",
    "_compiled_call_impl": "`nn.Module.compile` has no public way back",
    "_DropoutNd": "base of all dropout layers; there is no public one",
    "_forward_hooks": "torch has no public list of hooks",
    "_get_backend": "only the backend itself tells the timeout of collective operations",
    "_get_default_group": "the same",
    "_new_shared": "the public way to shared memory copies the data first",
    "_version": "torch has no public count of writes; `outputs.version_of` is the only reader",
}
"""Private names of torch that oodlit reads, and why."""

REPEATED_FILES = {
    "errors",
    "manifest",
    "outputs",
    "roles",
    "module",
    "record",
    "recorder",
    "registry",
    "results",
    "rows",
    "settings",
    "summary",
    "tables",
}
"""Names of files that occur in several rooms, because images, boxes and recorded features each have such a part."""
NAMED_BY_SUBJECT = ("cli/", "datamodules/benchmarks/", "datamodules/sets/", "report/sections/", "results/plots/")
NAMED_BY_SUBJECT += ("results/published/",)
"""Folders whose files are named after a command, data set, section, figure or paper, as users call them."""


@cache
def trees() -> dict[str, ast.Module]:
    files = [*PACKAGE.rglob("*.py"), PACKAGE.with_name("oodlit_pytest.py")]
    return {f.relative_to(PACKAGE.parent).as_posix(): ast.parse(f.read_text(encoding="utf-8")) for f in sorted(files)}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_own(owner: ast.expr) -> bool:
    """Whether an attribute of `owner` belongs to the class that reads it."""
    return ast.unparse(owner) in {"self", "cls", "super()"}


def defined_in(tree: ast.Module) -> set[str]:
    """Names of functions, classes and fields, and attributes that methods set on `self`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def private_reads(tree: ast.Module) -> list[ast.Attribute]:
    known = defined_in(tree)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)]
    return [node for node in attributes if not is_own(node.value) and node.attr not in known | DOCUMENTED]


def test_a_private_attribute_of_another_object_is_found():
    (found,) = private_reads(ast.parse("class A:\n    def f(self, b):\n        self._x = b._y + b._x + self._z\n"))
    assert ast.unparse(found) == "b._y"


def test_no_file_uses_private_attributes_of_other_files():
    reads = [(file, node) for file, tree in trees().items() for node in private_reads(tree)]
    assert [f"{file}:{n.lineno}: {ast.unparse(n)}" for file, n in reads if n.attr not in OF_TORCH] == []
    assert {node.attr for _, node in reads} == OF_TORCH.keys(), "delete the names that nothing reads any more"
    assert {file for file, node in reads if node.attr == "_version"} == {"oodlit/base/outputs.py"}


def test_no_file_imports_private_names_of_other_files():
    found = [
        f"{file}: {node.module}.{alias.name}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if is_private(alias.name) and alias.name != "_lightning"
    ]
    assert found == []


def test_no_two_public_classes_have_the_same_name():
    places = defaultdict(list)
    for file, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not is_private(node.name):
                places[node.name].append(file)
    assert len(places) > 200
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_few_files_have_the_same_name():
    files = [Path(file).relative_to("oodlit") for file in trees() if file.startswith("oodlit/")]
    names = Counter(file.stem for file in files if not file.as_posix().startswith(NAMED_BY_SUBJECT))
    assert {name for name, number in names.items() if number > 1} - {"__init__"} == REPEATED_FILES
