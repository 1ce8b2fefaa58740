"""The core of the package in a few seconds: read, scan, trace, save and load a model of the zoo."""

import sys
import tempfile
from pathlib import Path

import orbitlens as ol
from orbitlens.errors import OrbitlensError


def main():
    model = ol.load("orbit-nano-rotary")
    scan, trace = ol.scan(model), ol.trace(model, [list(range(1, 33))] * 4)
    with tempfile.TemporaryDirectory() as folder:
        for result in (scan, trace):
            file = result.save(Path(folder) / "result.json")
            assert type(result).load(file).to_json() == result.to_json()
        try:
            ol.load(Path(folder) / "missing")
        except OrbitlensError as error:
            assert "no such file" in str(error)
        else:
            raise AssertionError("a model that is not there was opened")
    print(f"Python {sys.version.split()[0]}: {len(scan.layers)} layers read, traced and saved")


if __name__ == "__main__":
    main()
