# Everything a newcomer needs: `make demo`, `make test`. Both install what is missing first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Bytecode is kept, whatever the shell says: without it each worker would rewrite the asserts of all tests anew, and
# each command that a test starts would compile the package.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
FAST := -m "not slow and not gpu"

.PHONY: help setup demo test test-slow check format clean

help:
	@echo "make setup      create $(VENV) and install the package with its development tools"
	@echo "make test       install if needed, run the fast tests"
	@echo "make test-slow  the tests that take minutes"
	@echo "make check      ruff, mypy and the fast tests"
	@echo "make demo       speak a corpus of digits, train two systems on it, compare their error rates"

setup: $(VENV)/.installed

# pip runs again only when the dependencies may have changed.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

test: setup
	$(PYTEST) $(FAST) -n 2 --dist loadfile

demo: setup
	$(BIN)/asr recipe run digits --jobs 2
	$(BIN)/asr transcribe $$(ls data/digits/audio/test/*.wav | head -1) --model runs/digits/transformer
	@echo "The report is runs/digits/report/report.html, the model runs/digits/transformer/model."

test-slow: setup
	$(PYTEST) -m "slow and not gpu"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) $(FAST) -n 2 --dist loadfile

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python tools/make_reference.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
