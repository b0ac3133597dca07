# `make help` lists what there is. ARGS passes flags on; PYTHON chooses the interpreter that makes the environment,
# JOBS the number of processes that share the tests. uv installs where it is on the PATH, pip elsewhere or with UV=.

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
FOUND = $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c "$(NEW_ENOUGH)" 2>/dev/null && echo $$p && break; done)
PYTHON ?= $(or $(FOUND),python3)
VENV ?= .venv
JOBS ?= auto
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
BIN := $(VENV)/bin
TRAIN_STAMP := $(VENV)/.installed-train
STAMP := $(VENV)/.installed
UV ?= $(shell command -v uv)
# Python compiles what it imports when it does; what nobody imports need not be compiled here. Torch comes by pip on
# either road: where its build for this machine lies is often told to pip alone, and uv keeps what is installed.
PIP = $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt
WITH_UV = $(PIP) --no-deps torch && $(UV) pip install --quiet --python $(BIN)/python -c constraints.txt
INSTALL = $(if $(UV),$(WITH_UV),$(PIP))

# The tests start hundreds of processes: what each imports is compiled once, even where Python was told to keep no
# bytecode.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow mutants coverage lint format types check docs wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## make .venv and install the tested set of packages; nothing when that is up to date

$(TRAIN_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c "$(NEW_ENOUGH)" 2>/dev/null || { \
		echo "'$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing), but Python 3.11 or newer is needed;" \
			"name one: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; exit 2; }
	@echo "setting up $(VENV) for training (a minute or two the first time)"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[train]'
	@touch $@

$(STAMP): $(TRAIN_STAMP)
	@echo "adding to $(VENV) what tests and checks need"
	$(INSTALL) -e '.[train,dev]'
	@# What tests import is compiled here, once; it would be in every process of the first run.
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null || true
	@touch $@

train: ARGS ?= --mixer hybrid
train: $(TRAIN_STAMP) ## train a model: make train ARGS="--mixer attention --mixer.n_heads 4"
	$(BIN)/python train.py $(ARGS)

test: $(STAMP) ## run the tests: make test ARGS="-k attention"
	$(PYTEST) $(ARGS)

test-slow: $(STAMP) ## run the tests that take minutes
	$(PYTEST) -m slow $(ARGS)

mutants: $(STAMP) ## plant random errors and count how many the tests see: make mutants ARGS="--size 30 --seed 7"
	$(BIN)/python tools/mutants.py $(ARGS)

coverage: $(STAMP) ## the tests in one process, and which lines of zoo, tasks and lab they do not reach
	$(BIN)/python -m coverage run -m pytest $(ARGS)
	$(BIN)/python -m coverage report --show-missing --skip-covered

lint: $(STAMP) ## ruff: rules and format; import-linter: who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=. $(BIN)/lint-imports

format: $(STAMP) ## let ruff fix what it can, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) ## pyright on zoo, tasks and lab
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint types test ## all three, as before a commit

docs: $(STAMP) ## build the site into build/site; open build/site/index.html
	$(BIN)/python -m tools.site

wheel: $(STAMP) ## build the wheel into dist/
	$(BIN)/python -m build --wheel

clean: ## remove the environment, caches and builds (not runs/)
	rm -rf $(VENV) build dist .cache .coverage .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
