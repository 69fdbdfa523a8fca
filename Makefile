# Everything a newcomer needs: `make demo`, `make test`. Both install what is missing first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Bytecode is kept, whatever the shell says: without it each worker would rewrite the asserts of all tests anew, and
# each command that a test starts would compile the package.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
FAST := -m "not slow and not gpu"
SLOW := -m "slow and not gpu"
# What depends on how a processor rounds and on the instructions that it has.
NUMERIC := tests/decoding tests/features tests/models tests/parity tests/research tests/serve/test_live.py \
	tests/train/test_learner.py tests/transcription tests/whisper
FORMATS := tests/shards/test_packing.py::test_webdataset_opens_ours tests/test_docs.py::test_hugging_face_script
# Which slow tests run: the last digit counts, here of the day of the year.
TENTH ?= $(shell date +%-j)
# They are dealt out one by one, because neighbors, such as cases of one test, take equally long.
SPLIT := --splits 10 --splitting-algorithm least_duration

.PHONY: help setup demo docs test test-older test-formats test-slow test-slow-tenth check format clean

help:
	@echo "make setup      create $(VENV) and install the package with its development tools"
	@echo "make test       install if needed, run the fast tests"
	@echo "make test-older the numeric ones as processors without AVX-512, and without AVX2, compute them"
	@echo "make test-formats  install datasets and webdataset, compare with them"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-slow-tenth  a tenth of them, by default another one each day; TENTH=3 chooses one"
	@echo "make check      ruff, mypy and the fast tests"
	@echo "make docs       build the documentation's site into site/"
	@echo "make demo       synthesize a corpus of digits, train two systems on it, compare their error rates"

setup: $(VENV)/.installed

# pip runs again only when the dependencies may have changed.
$(VENV)/.installed: pyproject.toml
	@echo "Installing into $(VENV): 6.4 GB, some minutes. docs/install.md has a smaller way."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@
	@echo "Installed. Type this in each new shell: . $(VENV)/bin/activate"

test: setup
	$(PYTEST) $(FAST) -n 2 --dist loadfile

test-older: setup
	for level in avx2 default; do \
		ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=$$level \
			$(PYTEST) $(FAST) -n 2 --dist loadfile $(NUMERIC) || exit 1; \
	done

test-formats: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[formats]"
	$(PYTEST) -rs $(FORMATS)

docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/mkdocs build --strict

demo: setup
	$(BIN)/asr recipe run digits --stage prepare
	$(BIN)/asr recipe run digits --stage train --only ctc_lstm & \
		$(BIN)/asr recipe run digits --stage train --only transformer; status=$$?; wait; exit $$status
	$(BIN)/asr recipe run digits
	$(BIN)/asr transcribe $$(ls data/digits/audio/test/*.wav | head -1) --model runs/digits/transformer
	@echo "The report is runs/digits/report/report.md, the model runs/digits/transformer/model."

test-slow: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[slow]"
	$(PYTEST) $(SLOW)

# Time is limited because CI waits for it.
test-slow-tenth: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[slow]"
	timeout 12m env $(PYTEST) -rs $(SLOW) -n 2 $(SPLIT) --group $$(($(TENTH) % 10 + 1))

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
