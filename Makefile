# Everything a newcomer needs: `make demo`, `make test`. Both install what is missing first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
FAST := -m "not slow and not gpu"

.PHONY: help setup demo test test-slow check format clean

help:
	@echo "make setup      create $(VENV) and install the package with its development tools"
	@echo "make test       install if needed, run the fast tests"
	@echo "make test-slow  the tests that take minutes"
	@echo "make check      ruff, mypy and the fast tests"
	@echo "make demo       speak a corpus of digits, train a small Transformer on it, show its error rate"

setup: $(VENV)/.installed

# pip runs again only when the dependencies may have changed.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

test: setup
	$(PYTEST) $(FAST) -n 2

demo: setup
	$(BIN)/asr recipe run digits
	$(BIN)/asr manifest stats data/digits/train.jsonl
	$(BIN)/asr train conf/digits/transformer.yaml
	@echo "The model is in runs/digits/transformer/model, its error rates by update in runs/digits/transformer/log.jsonl."

test-slow: setup
	$(PYTEST) -m "slow and not gpu"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) $(FAST) -n 2

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
