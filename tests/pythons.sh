#!/usr/bin/env bash
# Runs a smoke of the package and its exact tests under Python 3.12 and 3.13, where they are
# installed: each in an environment of its own, VENV-3.12 and VENV-3.13, made with the pinned
# packages the first time. A version that is not installed is said to be left out.
set -euo pipefail
pins=${1:?constraints.txt} venv=${2:?name of the environment}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local name
    for name in "python$1" "$HOME"/.pyenv/versions/"$1".*/bin/python; do
        if "$name" -c 'import sys; sys.exit(0)' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
}

for version in 3.12 3.13; do
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        echo "Python $version: left out, it is not installed"
        continue
    fi
    own="$venv-$version"
    if [ ! -e "$own/.ready" ]; then
        echo "Python $version: installing into $own (a few minutes the first time) ..."
        "$python" -m venv "$own"
        "$own/bin/python" -m pip install --quiet -c "$pins" hatchling editables
        "$own/bin/python" -m pip install --quiet --no-build-isolation -c "$pins" -e '.[test]' -e ./papers
        touch "$own/.ready"
    fi
    echo "Python $version: smoke"
    HF_HUB_OFFLINE=1 "$own/bin/python" -W error::SyntaxWarning tests/smoke.py
    HF_HUB_OFFLINE=1 "$own/bin/python" -m pytest -q -p no:cacheprovider \
        tests/test_errors.py tests/test_files.py tests/results tests/theory tests/heads
done
