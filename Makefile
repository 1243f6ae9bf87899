# HyperGRIT. `make demo` runs the pipeline on the miniature world; `make test` runs lint, type checks and tests. Both
# first install the environment.

PYTHON ?= python3
UV_VERSION := 0.13.8
LOCK ?= requirements.lock
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
# Without compiled modules, every process of the tests would compile the project's own again: a third of their time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo train-demo hierarchy notebook paper test test-rest test-all coverage figures site soak lint pytest lock clean

install: .venv/.installed

# The stamp file is written last, so that an interrupted installation is repeated.
.venv/.installed: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is required; choose one with: make PYTHON=python3.12 ..."; exit 2; }
	@echo "Installing the packages of $(LOCK) into .venv: 8 GB, one to ten minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@echo "Installing and compiling the packages ..."
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r $(LOCK)
	@test ! -e pyproject.toml || $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: install
	@echo "Running a job on 240 generated rows: one to three minutes on two cores"
	$(BIN)/python -m demo.run

# Trains a miniature of one model on shards of the demo's world, for example: make train-demo MODEL=phyclip
MODEL ?= hycoclip
train-demo: install
	$(BIN)/python -m demo.train_demo --model $(MODEL)

# Trains the miniature HyCoCLIP of demo/weights/hycoclip again, and runs the notebook that shows it.
hierarchy: install
	$(BIN)/python -m demo.train_demo --model hycoclip --keep demo/weights/hycoclip optim.steps=2000
	$(BIN)/python -m docs.figures.notebook

# Runs docs/hierarchy.ipynb, and saves it with its outputs.
notebook: install
	$(BIN)/python -m docs.figures.notebook

# Rebuilds the papers' tables in miniature: shards, features of frozen towers, heads with several seeds, and one page in
# out/paper/SIZE. SIZE is smoke, small (about 15 minutes on two cores), full or gpu. Repeat the command to resume.
SIZE ?= small
paper: install
	$(BIN)/python -m demo.paper --size $(SIZE) $(ARGS)

# Draws the pictures of README.md and docs/ from the demo and its training. Needs Chromium.
figures: install
	$(BIN)/python -m docs.figures $(NAMES)

# Builds the site of docs/ to out/site, with the packages of docs/requirements.lock in .venv-site. Serve it with
# python -m http.server -d out/site: its search needs a server.
site: .venv-site/.installed
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/python -m mkdocs build --strict

.venv-site/.installed: docs/requirements.lock
	@test -x .venv-site/bin/python || $(PYTHON) -m venv .venv-site
	@.venv-site/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Four processes on two cores: tests wait for other processes half of the time. Each needs up to 2.5 GB, in test-rest up
# to 4 GB: three there.
TEST_PROCESSES ?= 4
PYTEST = -m pytest -n $(TEST_PROCESSES) --dist loadgroup

# The checks of every change, lint beside the tests. Exhaustive variants and long journeys have the marker `rest`.
test: install
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

pytest: install
	$(BIN)/python $(PYTEST) -m "not rest"

test-rest: TEST_PROCESSES = 3
test-rest: install
	-@$(MAKE) --no-print-directory .venv-site/.installed  # without it, the test of the site is skipped
	$(BIN)/python $(PYTEST) -m rest

test-all: test test-rest

# Prints how many lines and branches of the packages run in the checks of `make test`, and in all. Child processes count,
# apart from those that SIGKILL ends. Tests take longer, and one that fails does not end it.
MEASURE = PYTHONPATH=$(CURDIR)/tests/coverage $(BIN)/python -m coverage
TOTALS = $(MEASURE) combine --quiet --append && $(MEASURE) json --quiet -o out/coverage/report.json && $(BIN)/python tests/coverage/totals.py
coverage: install
	@mkdir -p out/coverage
	$(MEASURE) erase
	-$(MEASURE) run $(PYTEST) -m "not rest"
	@$(TOTALS)
	-$(MEASURE) run $(subst -n $(TEST_PROCESSES),-n 3,$(PYTEST)) -m rest
	@$(TOTALS)

# Runs the long tests. Tests that have already passed at this commit are skipped, unless ARGS=--fresh. Example:
# SOAK_SEED=1 make soak ARGS=--fresh
soak: install
	$(BIN)/python -m pytest --soak $(ARGS)

# Writes requirements.lock, with the versions and hashes of all dependencies, and the part of it that the Docker image has.
COMPILE_ANY := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet
COMPILE := $(COMPILE_ANY) pyproject.toml
lock: install
	$(COMPILE) --all-extras -o requirements.lock
	$(COMPILE) --extra demo --extra language --extra models --extra robots --extra s3 --extra train --constraint requirements.lock -o docker/requirements.lock
	$(COMPILE_ANY) --group docs -o docs/requirements.lock

clean:
	rm -rf .venv .venv-site out
