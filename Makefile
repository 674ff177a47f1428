# `make` alone prints this list.
.DEFAULT_GOAL := help
.PHONY: help setup lab run batch test unit notebooks sync refresh new format lint lock clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BATCH := $(BIN)/python -m lib.batch
JOBS ?= 2
NB ?=
PRESET ?=
GRID ?=

# Tests reach no network but this machine, kernels and child processes included.
OFFLINE := PYTHONPATH=$(CURDIR)/tests/offline HF_HUB_OFFLINE=1
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST := $(OFFLINE) $(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist loadscope

help: ## print this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: requirements.lock requirements-substrates.lock pyproject.toml
	@echo "setting up $(VENV), a minute or two"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --requirement requirements.lock
	@$(BIN)/pip install --quiet --no-deps --require-hashes --requirement requirements-substrates.lock
	@$(BIN)/pip install --quiet --no-deps --editable .
	@touch $@

setup: $(VENV)/.installed ## make the virtual environment with the locked versions

lab: setup ## open JupyterLab on the notebooks
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks

run: setup ## run every notebook, or NB=<slug>, at PRESET=<name> (small), then print the claims
	@$(BATCH) run $(NB) $(if $(PRESET),--preset $(PRESET)) --jobs $(JOBS)

batch: setup ## run a grid: GRID=presets/<slug>.toml:<name>
	@$(BATCH) grid $(GRID) --jobs $(JOBS)

test: lint unit notebooks ## everything that CI runs

unit: setup ## tests of the library, and of every notebook's form and smoke run
	$(PYTEST) tests --durations 15

notebooks: setup ## run every notebook and compare what it prints with what is committed
	$(PYTEST) notebooks -p no:cacheprovider --nbval-lax --nbval-current-env --nbval-sanitize-with tests/sanitize.cfg
	$(BATCH) reproduced

sync: setup ## bring the halves of every pair together; refuses where both were edited
	@$(BATCH) sync

refresh: setup ## execute NB=<slug> again and update its outputs, record, figures and README
	@$(BATCH) refresh $(NB) $(if $(PRESET),--preset $(PRESET))

new: setup ## lay out a new paper, NB=<slug>, from the template
	@$(BATCH) new $(NB)

format: setup ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: setup ## check style, types and the arrows between the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lock: ## make requirements.lock anew from the ranges of pyproject.toml
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --editable '.[all]'
	echo '# Exact versions for make and CI; made from the ranges of pyproject.toml by `make lock`.' > requirements.lock
	echo '# torch: pip takes the CPU build where it offers one.' >> requirements.lock
	build/lock/bin/pip freeze --exclude-editable | sed -E 's/\+cpu$$//' >> requirements.lock

clean: ## remove runs and caches of tools; the virtual environment stays
	rm -rf runs build .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
