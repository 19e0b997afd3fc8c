# make demo | make test: each sets up everything it needs in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test lint docs tables bench dist clean

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

# The site, in docs/_build/html. Its tutorials are executed; warnings are errors.
docs: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# After new records: the tables in the documents are rendered anew (a test compares them).
tables: install
	for document in README.md $$(find docs -name _build -prune -o -name '*.md' -print); do $(BIN)/phast paper reproduce all --records-only --into $$document >/dev/null || exit; done

bench: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,bench]'
	$(BIN)/phast paper bench

# Wheel and sdist in dist/, each installed into an empty environment and tried.
dist: install
	rm -rf dist build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build
	$(BIN)/python -m build
	for file in dist/*.whl dist/*.tar.gz; do \
		rm -rf build/try && $(PYTHON) -m venv build/try && \
		build/try/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $$file && \
		(cd build && try/bin/phast --version && try/bin/python -c 'import phast; phast.fit') || exit; \
	done

clean:
	rm -rf $(VENV) demo dist build docs/_build .pytest_cache .hypothesis .ruff_cache *.egg-info
