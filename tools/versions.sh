#!/usr/bin/env bash
# Run the test suite on several releases of torch, each in an environment of its own, and print a table for docs/installing.md.
#   tools/versions.sh [VERSION ...]     such as 2.4 2.6 2.9 2.13; `newest` for the newest releases of everything,
#                                       `lowest` for the oldest that pyproject.toml admits. PYTHON names the interpreter.
# Releases other than the pinned one bring gigabytes of CUDA libraries; each environment is removed before the next is made.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ $# -gt 0 ] || set -- 2.4 2.6 2.9 2.13 newest lowest

printf '| torch | torchvision | Python | pillow | result | date |\n|---|---|---|---|---|---|\n'
status=0
for version in "$@"; do
    rm -rf "$work/venv"
    "$python" -m venv "$work/venv"
    run="$work/venv/bin/python"
    case $version in
        newest) "$run" -m pip install -q --upgrade '.[test]' ;;
        lowest) "$run" -m pip install -q uv && "$work/venv/bin/uv" pip install -q --python "$run" --resolution lowest-direct '.[test]' ;;
        *) "$run" -m pip install -q "torch==$version.*" torchvision '.[test]' ;;
    esac >"$work/install.log" 2>&1 || { printf '| %s | | | | does not install |\n' "$version"; tail -3 "$work/install.log" >&2; status=1; continue; }
    "$run" -m pytest -q -p no:cacheprovider >"$work/tests.log" 2>&1 || { status=1; grep -E '^(FAILED|ERROR)' "$work/tests.log" >&2; }
    versions=$("$run" -c 'import platform, torch, PIL; from importlib.metadata import version as of
print(torch.__version__, of("torchvision"), platform.python_version(), PIL.__version__, sep=" | ")')
    printf '| %s | %s | %s |\n' "$versions" "$(tail -1 "$work/tests.log" | sed 's/=//g; s/^ *//; s/ *$//')" "$(date +%F)"
done
exit $status
