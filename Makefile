# Each target sets itself up: a fresh clone needs nothing before it.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench tables clean

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

demo: $(READY)  ## train HSML and MAML for about two minutes, compare them, draw the figures
	$(BIN)/python -m metagrove demo

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

test: lint  ## everything that must hold
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

bench: $(READY)  ## speed against PyTorch, on the same work in the same run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	$(BIN)/python benchmarks/toy.py --out results/benchmark-toy.json
	$(BIN)/python benchmarks/images.py --out results/benchmark-images.json

tables: $(READY)  ## write the results' tables into the documents
	$(BIN)/python -m metagrove.paper.tables README.md docs/*.md

clean:
	rm -rf $(VENV) dist build .pytest_cache
