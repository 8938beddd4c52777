# Each target sets itself up: a fresh clone needs nothing before it.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV := PATH="$$PATH:$(CURDIR)/$(BIN)" uv
# uv takes packages from the index that pip is set to use.
UV_INSTALL := index="$${PIP_INDEX_URL:-$$($(PYTHON) -m pip config get global.index-url 2> /dev/null)}"; \
	$(UV) pip install --quiet --python $(BIN)/python $${index:+--default-index "$$index"}
PIP_INSTALL := $(BIN)/python -m ensurepip > /dev/null && $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test faults faults-long lint bench tables lock clean

# uv installs the locked versions in seconds, into an environment without pip; where uv cannot be had, pip installs what it
# finds.
$(READY): pyproject.toml requirements-dev.lock
	test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	command -v uv > /dev/null || $(PYTHON) -m pip --python $(BIN)/python install --quiet uv || true
	$(UV_INSTALL) --requirement requirements-dev.lock --editable . || { $(PIP_INSTALL) --editable ".[dev]"; }
	touch $@

demo: $(READY)  ## find clusters, train HSML on them and MAML, compare them, draw the figures
	$(BIN)/python -m metagrove demo

LINT := $(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports --no-logo --no-cache && $(BIN)/basedpyright

lint: $(READY)  ## formatting, style, types, and the order of packages
	$(LINT)

# Lint takes one core for some seconds, beside the tests. The tests start many processes that import the same modules:
# their bytecode is kept, whatever the environment says.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)  ## everything that must hold
	($(LINT)) & lint=$$!; \
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$lint || { echo "lint failed: see above, or make lint" >&2; exit 1; }; exit $$tests

faults: $(READY)  ## fault injection: 200 kills at random times, and death before every write, fsync and rename
	$(BIN)/python tests/safety/faults.py --kills 200

faults-long: $(READY)  ## the same with 1,000 kills, written to results/faults.json
	$(BIN)/python tests/safety/faults.py --kills 1000 --out results/faults.json

bench: $(READY)  ## speed against PyTorch, on the same work in the same run
	$(UV_INSTALL) --editable ".[bench]" || { $(PIP_INSTALL) --editable ".[bench]"; }
	$(BIN)/python benchmarks/toy.py --out results/benchmark-toy.json
	$(BIN)/python benchmarks/images.py --out results/benchmark-images.json
	$(BIN)/python benchmarks/methods.py --out results/benchmark-methods.json

tables: $(READY)  ## write the results' tables into the documents
	$(BIN)/python -m metagrove.paper.tables README.md docs/*.md

lock: $(READY)  ## choose the versions that make installs anew
	$(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev \
	  --no-header pyproject.toml --output-file requirements-dev.lock

clean:
	rm -rf $(VENV) dist build .pytest_cache
