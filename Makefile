# Two commands do everything on a fresh machine that has Python 3.10+, a C compiler and make:
#   make demo    worker processes with real environments feed a learner
#   make test    lint, types, C tests (also under sanitizers), Python tests
# Each installs what it needs into a virtual environment in this folder. Longer tests of the ring:
#   make explore             interleaves the core's steps, under three memory models
#   make orders              weakens every memory order of the core, one at a time
#   make model               checks the protocol and its mutants in Spin    (needs spin)
#   make storm SECONDS=60    kills and stops processes, accounts for every sample
#   make storm-remote SECONDS=60    the same for remote clients, their connections and their bridges
#   make storm-replay SECONDS=60    the same for a replay, its writers and its client
#   make storm-ray SECONDS=60       the same for a replay over the nodes of a Ray cluster, and for the nodes  (needs root)
#   make fuzz SECONDS=60     hostile segments, guided by coverage           (needs clang)
#   make mutants             puts bugs into the core, one at a time: which suite notices?  (hours; PRINT=1: the table)
#   make test-aarch64        runs the C tests for another processor         (needs qemu-user, a cross compiler)
# Speed:
#   make bench               measures, and writes bench/results.json, the plot and the tables

PYTHON ?= python3
ENV := .venv
BIN := $(ENV)/bin
CSRC := $(wildcard csrc/*/*.[ch])
C_FILES := $(CSRC) $(wildcard tests/*/*.[ch] bench/*.[ch])
BUILT := setup.py pyproject.toml echo_shm/_build.py $(CSRC)

SECONDS ?= 60

.PHONY: demo test test-c check-all test-aarch64 lint bench explore orders model storm storm-remote storm-replay storm-ray \
	fuzz mutants clean

demo: $(ENV)/.demo
	$(BIN)/echo-shm demo

# First all suites are compiled, while the linters run. Then two run at a time, so that no processor waits. Two are
# enough because each suite shares its work among the processors. The Python tests wait for processes much of the time:
# four run at a time. They start hundreds of interpreters, which must not compile the package and the tests each time.
# Tests that import frameworks come last, in processes of their own: what those leave behind (threads, signal handlers,
# a heap that makes each collection and each fork slow) must not be where others fork and kill.
unexport PYTHONDONTWRITEBYTECODE
C_SUITES := c explore trace stress fuzz
FRAMEWORKS := tests/adapters tests/planning
test: $(ENV)/.test
	+$(MAKE) -j2 lint $(C_SUITES:%=build-%)
	+$(MAKE) check-all
	$(BIN)/python -m pytest -n 4 --dist worksteal $(FRAMEWORKS:%=--ignore=%)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(FRAMEWORKS)

test-c:
	+$(MAKE) -j2 $(C_SUITES:%=build-%)
	+$(MAKE) check-all

check-all:
	+$(MAKE) -j2 check-c check-stress
	+$(MAKE) -j2 check-explore check-fuzz
	+$(MAKE) check-trace

.PHONY: $(C_SUITES:%=build-%) $(C_SUITES:%=check-%)
$(C_SUITES:%=build-%): build-%:
	+$(MAKE) -C tests/$* build
check-c:
	+$(MAKE) -j4 -C tests/c all
check-explore:
	$(MAKE) -C tests/explore quick
check-trace:
	$(MAKE) -C tests/trace quick
check-stress:
	$(MAKE) -C tests/stress short
check-fuzz:
	$(MAKE) -C tests/fuzz quick SECONDS=4

test-aarch64:
	$(MAKE) -C tests/c aarch64

explore orders:
	$(MAKE) -C tests/explore $@

model:
	$(PYTHON) tests/model/run.py $(if $(QUICK),--quick)

storm:
	$(MAKE) -C tests/stress run SECONDS=$(SECONDS)

storm-remote: $(ENV)/.test
	PYTHONPATH=tests $(BIN)/python -m stress.remote_storm $(SECONDS)

storm-replay: $(ENV)/.test
	PYTHONPATH=tests $(BIN)/python -m stress.replay_storm $(SECONDS)

storm-ray: $(ENV)/.test
	$(BIN)/python -m pip install --quiet --editable '.[ray]'
	PYTHONPATH=tests $(BIN)/python -m stress.ray_storm $(SECONDS)

fuzz:
	$(MAKE) -C tests/fuzz fuzz SECONDS=$(SECONDS)

mutants:
	$(PYTHON) tests/mutants/run.py $(if $(PRINT),--print) $(if $(TESTS),--tests)

lint: $(ENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)

bench: $(ENV)/.bench
	$(BIN)/python -m bench --json bench/results.json
	$(BIN)/python -m bench.plot
	$(BIN)/python -m bench.report

$(BIN)/python:
	$(PYTHON) -m venv $(ENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# Each stamp says that a set of extras is installed and up to date with the C sources.
$(ENV)/.demo $(ENV)/.test $(ENV)/.bench: $(ENV)/.%: $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@

clean:
	rm -rf build dist *.egg-info echo_shm/*.so echo_shm/_core.c .venv
