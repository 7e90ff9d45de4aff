#!/usr/bin/env bash
# Run the test suite on several releases of torch, each in an environment of its own, and print a table for docs/installing.md.
#   tools/versions.sh [VERSION[@PYTHON] ...] [-- PYTEST_ARGUMENT ...]
# VERSION is such as 2.4; `newest` for the newest releases of everything, `lowest` for the oldest that pyproject.toml admits.
# PYTHON is an interpreter, python3 unless given: 2.6@python3.13. Without arguments: the releases that we promise.
# Most releases bring gigabytes of CUDA libraries; each environment is removed before the next is made.
set -uo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
versions=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do versions+=("$1"); shift; done
[ $# -eq 0 ] || shift
[ ${#versions[@]} -gt 0 ] || versions=(2.4 2.6 2.9 2.13 newest lowest)
python3 -m venv "$work/tools" && "$work/tools/bin/pip" install -q uv || exit 1

printf '| | torch | torchvision | Python | pillow | typer | captum | result | date |\n|---|---|---|---|---|---|---|---|---|\n'
status=0
for each in "${versions[@]}"; do
    version=${each%@*}
    python=python3
    [ "$version" = "$each" ] || python=${each#*@}
    case $version in
        newest) what=('.[test]') ;;
        lowest) what=(--resolution lowest-direct '.[test]') ;;
        *) what=("torch==$version.*" '.[test]') ;;
    esac
    rm -rf "$work/venv"
    if ! { "$python" -m venv --without-pip "$work/venv" &&
        "$work/tools/bin/uv" pip install -q --no-cache --python "$work/venv/bin/python" "${what[@]}"; } >"$work/install.log" 2>&1; then
        printf '| %s | does not install |\n' "$each"
        tail -3 "$work/install.log" >&2
        status=1
        continue
    fi
    run="$work/venv/bin/python"
    PATH="$work/venv/bin:$PATH" "$run" -m pytest -q -p no:cacheprovider "$@" >"$work/tests.log" 2>&1 ||
        { status=1; grep -E '^(FAILED|ERROR)' "$work/tests.log" >&2; }
    found=$("$run" -c 'import platform; from importlib.metadata import version as of
print(of("torch"), of("torchvision"), platform.python_version(), of("pillow"), of("typer"), of("captum"), sep=" | ")')
    printf '| %s | %s | %s | %s |\n' "$version" "$found" "$(tail -1 "$work/tests.log" | sed 's/=//g; s/^ *//; s/ *$//')" "$(date +%F)"
done
exit $status
