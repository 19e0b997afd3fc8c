# make demo | make test: each sets up everything it needs in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test lint tables bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

demo: install
	$(BIN)/phast demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

test: lint
	$(BIN)/python -m pytest

# After new records: the tables in the documents are rendered anew (a test compares them).
tables: install
	for document in README.md docs/*.md; do $(BIN)/phast paper reproduce all --records-only --into $$document >/dev/null || exit; done

bench: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,bench]'
	$(BIN)/phast paper bench

clean:
	rm -rf $(VENV) demo .pytest_cache .hypothesis .ruff_cache *.egg-info
