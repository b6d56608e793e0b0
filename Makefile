# Two commands do everything on a fresh machine with Python 3.10+, a C compiler and make:
#   make demo    real environments in worker processes feed a learner
#   make test    lint, types, C tests (also under sanitizers), Python tests
# Each makes its own virtual environment in this folder.

PYTHON ?= python3
ENV := .venv
BIN := $(ENV)/bin
CSRC := $(wildcard csrc/*.[ch] csrc/python/*.c)
BUILT := setup.py pyproject.toml echo_shm/_build.py $(CSRC)

.PHONY: demo test test-c lint bench clean

demo: $(ENV)/.demo
	$(BIN)/echo-shm demo

test: lint test-c $(ENV)/.test
	$(BIN)/python -m pytest

test-c:
	$(MAKE) -C tests/c all

lint: $(ENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(ENV)/.bench
	$(BIN)/python -m bench

$(BIN)/python:
	$(PYTHON) -m venv $(ENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# One stamp for each set of extras that is installed and up to date with the C sources.
$(ENV)/.demo $(ENV)/.test $(ENV)/.bench: $(ENV)/.%: $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@

clean:
	rm -rf build dist *.egg-info echo_shm/*.so echo_shm/_core.c .venv
