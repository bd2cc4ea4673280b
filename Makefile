# make tune      the main job: a private vote on digits, with its report
# make test      every fast check: lint, types, doctests, tests
# make test-all  the slow tier too
# make audit     the quick audit of every epsilon: fails if a claim is false
# make docs      site/, the documentation as pages
# make pictures  the README's pictures, made anew
# make env       .venv with every extra; runs nothing
# make browser   Debian's Chromium for the tests of pages, where it is missing
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
FOR_USE := .venv/.for-use
FOR_WORK := .venv/.for-work

.PHONY: tune audit env browser test pytest test-all lint docs pictures clean

tune: $(FOR_USE)
	$(BIN)/tacit tune

env: $(FOR_WORK)

$(FOR_USE): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv
	$(PIP) --editable '.[torch]'
	touch $@

$(FOR_WORK): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable '.[dev]'
	touch $(FOR_USE) $@

# Where it cannot be installed, the tests that need it are skipped and say so.
INSTALL = DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends
browser:
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  { $(INSTALL) chromium || { apt-get update && $(INSTALL) chromium; }; } } || \
	  echo "No Chromium here: tests of pages in a browser are skipped."

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: env
	$(MAKE) --no-print-directory --jobs 2 lint pytest

# One worker more than cores, since some tests wait for processes of their own.
WORKERS = $$($(BIN)/python -c 'import os; print((os.cpu_count() or 1) + 1)')

pytest: env browser
	$(BIN)/python -m pytest -q -n $(WORKERS)

test-all: lint browser
	$(BIN)/python -m pytest -q -n $(WORKERS) -m 'slow or not slow'

audit: env
	$(BIN)/tacit audit --quick

docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'Read site/index.html; for the search field: $(BIN)/python -m http.server --directory site'

pictures: env browser
	$(BIN)/python tools/pictures.py

clean:
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
