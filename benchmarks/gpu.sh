#!/bin/sh
# Everything that needs a GPU, on a machine without network access:
#
#     sh benchmarks/gpu.sh [WHEELS] [OUT]
#
# installs the wheels of the folder WHEELS, where one is given, runs the tests marked "gpu" and then benchmarks/gpu.py.
# OUT (default: .) gets gpu_tests.txt, gpu.json and gpu.txt. Failing tests do not keep the numbers from being measured;
# the exit code says whether anything failed. Wheels for a machine with another Python are downloaded like this:
#
#     pip download --dest WHEELS --only-binary :all: --no-deps --python-version 3.12 \
#         webdataset braceexpand jsonargparse docstring-parser typeshed-client importlib-resources jaxtyping wadler-lindig
set -u
wheels=${1:-}
out=${2:-.}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd)
if [ -n "$wheels" ]; then
    python -m pip install --quiet --no-index --no-deps "$wheels"/*.whl || exit 2
fi
cd "$root" || exit 2
export PYTHONPATH="$root"
failed=0
# Without the settings of pyproject.toml: they name plug-ins that need not be there.
python -m pytest -q -c /dev/null --rootdir="$root" --import-mode=importlib -m gpu -p no:cacheprovider \
    tests/test_gpu.py tests/detectors/test_gpu.py tests/metrics/test_gpu.py >"$out/gpu_tests.txt" 2>&1 || failed=1
tail -n 15 "$out/gpu_tests.txt"
python benchmarks/gpu.py --json "$out/gpu.json" >"$out/gpu.txt" 2>&1 || failed=1
cat "$out/gpu.txt"
exit $failed
