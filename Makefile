# HyperGRIT: `make demo` runs the main job on the miniature world, `make test` runs the tests. Both install what they need.

PYTHON ?= python3
UV_VERSION := 0.13.8
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1

.PHONY: install demo demo-models train-demo test lint lock clean

install: .venv/.installed

# The stamp is made last: an install that was cut off is begun again.
.venv/.installed: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; give one with make PYTHON=python3.12 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	touch $@

demo: install
	$(BIN)/python -m demo.run

# Trains the miniature CLIP and GLIP again and measures them on unseen scenes: about an hour on two cores.
demo-models: install
	$(BIN)/python -m demo.train_clip
	$(BIN)/python -m demo.train_glip --steps 1200 --out demo/weights/glip --init-clip demo/weights/clip/model.safetensors
	$(BIN)/python -m demo.eval

# Trains one model in miniature on shards that the pipeline makes of the demo's world: make train-demo MODEL=phyclip
MODEL ?= hycoclip
train-demo: install
	$(BIN)/python -m demo.train_demo --model $(MODEL)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The lock: every version and hash, no host.
lock: install
	$(BIN)/uv pip compile --universal --python-version 3.11 --all-extras --generate-hashes --no-emit-index-url --no-header --quiet pyproject.toml -o requirements.lock

clean:
	rm -rf .venv out
