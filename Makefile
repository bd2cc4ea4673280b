# make env       .venv with every extra; runs nothing
# make test      every fast check: lint, types, doctests, tests
# make test-all  the slow tier too
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: env test test-all lint clean

env: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	touch $@

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -q -n auto

test-all: lint
	$(BIN)/python -m pytest -q -n auto -m 'slow or not slow'

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
