# Everything a fresh machine needs: git, make, Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: run test lint bench clean

run: $(STAMP)   ## cold launch, then warm launch, of the embedded defaults
	$(BIN)/warmrank demo

test: $(STAMP)  ## the whole test suite
	$(BIN)/python -m pytest

lint: $(STAMP)  ## every linter CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## every benchmark, as ratios
	for b in benchmarks/*.py; do $(BIN)/python $$b || exit 1; done

$(STAMP): pyproject.toml constraints.txt
	@echo "installing torch, Ray and the tools into $(VENV): one to two minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf $(VENV) warmrank-out .mypy_cache .ruff_cache .pytest_cache
