# HyperGRIT. `make demo` runs the pipeline on the miniature world; `make test` runs lint, type checks and tests. Both
# first install the environment.

PYTHON ?= python3
UV_VERSION := 0.13.8
LOCK ?= requirements.lock
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: install demo demo-models train-demo hierarchy notebook paper test figures soak lint lock clean

install: .venv/.installed

# The stamp file is written last, so that an interrupted installation is repeated.
.venv/.installed: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is required; choose one with: make PYTHON=python3.12 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r $(LOCK)
	touch $@

demo: install
	$(BIN)/python -m demo.run

# Trains the miniature CLIP and GLIP from scratch, trains them further on the wide world, and evaluates them on unseen
# scenes. Takes about two hours on two cores.
demo-models: install
	$(BIN)/python -m demo.train_clip --out out/models/clip
	$(BIN)/python -m demo.train_glip --steps 1200 --out out/models/glip --init-clip out/models/clip/model.safetensors
	$(BIN)/python -m demo.train_clip --init out/models/clip --steps 520 --processes 1 --lr 1e-3
	$(BIN)/python -m demo.train_glip --init out/models/glip --steps 1100 --processes 1 --lr 1.2e-3 --out demo/weights/glip
	$(BIN)/python -m demo.eval

# Trains a miniature of one model on shards of the demo's world, for example: make train-demo MODEL=phyclip
MODEL ?= hycoclip
train-demo: install
	$(BIN)/python -m demo.train_demo --model $(MODEL)

# Trains the miniature HyCoCLIP of demo/weights/hycoclip again, and runs the notebook that shows it.
hierarchy: install
	$(BIN)/python -m demo.train_demo --model hycoclip --keep demo/weights/hycoclip
	$(BIN)/python -m docs.figures.notebook

# Runs docs/hierarchy.ipynb, and saves it with its outputs.
notebook: install
	$(BIN)/python -m docs.figures.notebook

# Rebuilds the papers' tables in miniature: shards, trainings with several seeds, evaluations, and one page in
# out/paper/SIZE. SIZE is smoke, small (about one hour on two cores), full or gpu. Repeat the command to resume.
SIZE ?= small
paper: install
	$(BIN)/python -m demo.paper --size $(SIZE) $(ARGS)

# Draws the pictures of README.md and docs/ from the demo, its training and the page in docs/paper/. Needs Chromium.
figures: install
	$(BIN)/python -m docs.figures $(NAMES)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Runs the long tests. Tests that have already passed at this commit are skipped, unless ARGS=--fresh. Example:
# SOAK_SEED=1 make soak ARGS=--fresh
soak: install
	$(BIN)/python -m pytest --soak $(ARGS)

# Writes requirements.lock, with the versions and hashes of all dependencies, and the part of it that the Docker image has.
COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet pyproject.toml
lock: install
	$(COMPILE) --all-extras -o requirements.lock
	$(COMPILE) --extra demo --extra language --extra s3 --extra train --constraint requirements.lock -o docker/requirements.lock

clean:
	rm -rf .venv out
