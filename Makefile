# Two commands do all the set-up: `make demo` and `make test`. `make help` lists the rest.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
JOBS ?= 2
BENCH_ARGS ?=
FUZZ_ARGS ?=
KILLS_ARGS ?=

BIN := $(VENV)/bin
PINS := constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
# The build backend is pinned too, so it is installed first and used without isolation.
INSTALL := $(PIP) install --quiet --no-build-isolation -c $(PINS)

.DEFAULT_GOAL := help
.PHONY: help demo test check verify lint types layers docs generated serve bench benchflow fuzz kills pythons pictures format pins clean

help:  ## list the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1@\2/' | tr '@' '\t' | expand -t 20

demo: $(VENV)/.runtime  ## set up, scan a model of the package, write a report of four
	@$(BIN)/orbitlens scan orbit-nano-rotary
	@$(BIN)/orbitlens demo

test: $(VENV)/.test  ## set up, then run all tests, those of papers included
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

fuzz: $(VENV)/.test  ## damage 10,000 files of three formats; each is read or refused within bounds
	@HF_HUB_OFFLINE=1 $(BIN)/python tests/fuzzing/fuzz.py $(FUZZ_ARGS)

kills: $(VENV)/.test  ## kill 50 processes that train, sweep, study and write; what they leave is the same
	@HF_HUB_OFFLINE=1 $(BIN)/python tests/killing/kills.py $(KILLS_ARGS)

pythons:  ## run a smoke of the package under Python 3.12 and 3.13, where they are installed
	@bash tests/pythons.sh $(PINS) $(VENV)

check: lint types layers docs  ## lint, types, import layers, examples of the docs, strict docs build

lint: $(VENV)/.dev
	@echo "ruff: lint and format"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(VENV)/.dev
	@echo "mypy: types"
	@$(BIN)/mypy

layers: $(VENV)/.dev
	@echo "import-linter: layers"
	@$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev  ## check that the documentation is current, and build it into site/
	@echo "docs/generate.py: examples run, and what pages show is current"
	@HF_HUB_OFFLINE=1 $(BIN)/python docs/generate.py --check
	@$(BIN)/python docs/make_notebook.py --check
	@echo "docs/make_explorers.py: live explorers of the zoo's models"
	@HF_HUB_OFFLINE=1 $(BIN)/python docs/make_explorers.py
	@echo "mkdocs: strict build"  # never with --quiet: it drops the warnings that --strict counts
	@$(MKDOCS) build --strict

generated: $(VENV)/.dev  ## run the documentation's examples, and write what they print into its pages
	@HF_HUB_OFFLINE=1 $(BIN)/python docs/generate.py
	@$(BIN)/python docs/make_notebook.py

serve: $(VENV)/.dev  ## preview the documentation while editing it
	@$(MKDOCS) serve

verify: $(VENV)/.runtime  ## try to break every certificate on 10,000 systems
	@$(BIN)/orbitlens verify --systems 10000 --jobs $(JOBS)

bench: $(VENV)/.bench  ## run the benchmark of the scan
	@$(BIN)/python benchmarks/scan.py $(BENCH_ARGS)

benchflow: $(VENV)-flow/.ready  ## run the benchmark of the simulator
	@$(VENV)-flow/bin/python benchmarks/simulate.py $(BENCH_ARGS)

pictures: $(VENV)/.dev  ## draw the documentation's pictures anew
	@$(BIN)/python docs/make_pictures.py

format: $(VENV)/.dev  ## sort imports and format the code
	@$(BIN)/ruff check --select I --fix
	@$(BIN)/ruff format

pins:  ## write constraints.txt anew: newest versions in range, torch as it is
	@echo "Resolving the newest versions in a scratch environment ..."
	@rm -rf $(VENV)-pins && $(PYTHON) -m venv $(VENV)-pins
	@grep '^torch==' $(PINS) > $(VENV)-pins/keep.txt
	@$(VENV)-pins/bin/pip --disable-pip-version-check install --quiet -c $(VENV)-pins/keep.txt \
		hatchling editables -e '.[dev,docs,bench]' -e ./papers
	@{ grep '^#' $(PINS); $(VENV)-pins/bin/pip freeze --exclude-editable \
		| grep -E '^[A-Za-z0-9._-]+==' | sed 's/+.*//' | LC_ALL=C sort -f; } > $(VENV)-pins/new.txt
	@mv $(VENV)-pins/new.txt $(PINS) && rm -rf $(VENV)-pins
	@echo "$(PINS) is new. Run: make test check"

clean:  ## remove the environment, the results and all caches
	@rm -rf $(VENV) $(VENV)-flow $(VENV)-pins $(VENV)-3.12 $(VENV)-3.13 build dist site docs/explorers out .hypothesis .import_linter_cache
	@rm -rf .mypy_cache .pytest_cache .ruff_cache
	@find src papers tests docs benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up. A stamp is renewed only when a pyproject.toml or constraints.txt is newer than it.

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "orbitlens needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	@echo "Creating $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.backend: $(PINS) | $(VENV)/.python
	@$(PIP) install --quiet -c $(PINS) hatchling editables
	@touch $@

$(VENV)/.runtime: pyproject.toml papers/pyproject.toml $(PINS) $(VENV)/.backend
	@echo "Installing orbitlens, papers and pinned dependencies (a few minutes the first time) ..."
	@$(INSTALL) -e '.[measure,plot]' -e ./papers
	@touch $@

$(VENV)/.test: $(VENV)/.runtime
	@echo "Installing what the tests need ..."
	@$(INSTALL) -e '.[test]' -e ./papers
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@echo "Installing what the checks and the docs need ..."
	@$(INSTALL) -e '.[dev,docs]'
	@touch $@

$(VENV)/.bench: $(VENV)/.runtime
	@echo "Installing what the benchmarks need ..."
	@# one of the peer's own dependencies is built from source, and needs its build backend fetched
	@$(PIP) install --quiet -c $(PINS) -e '.[bench]'
	@touch $@

# Peers of the two benchmarks want different versions of the same package, so these live apart.
$(VENV)-flow/.ready: pyproject.toml $(PINS)
	@echo "Installing the simulator's peers into $(VENV)-flow ..."
	@$(PYTHON) -m venv $(VENV)-flow
	@$(VENV)-flow/bin/python -m pip --disable-pip-version-check install --quiet -c $(PINS) -e '.[flowbench]'
	@touch $@
