# Each target sets up what it needs (see .ci/setup) and does its whole job, on a fresh Debian 12 machine or a used one.
#   make demo    the main job on a real project, explained step by step
#   make test    all tests                             TESTS=tests/store to run some; PYTEST_ARGS for more
#   make cover   all tests, with branch coverage and its floor; takes longer
#   make check   format, lint, types, import contracts
#   make bench   the comparison table                  BENCH_ARGS=--quick for a few minutes' worth
#   make clean   remove everything that these made
SHELL := /bin/bash
PYTHON ?= python3
RUN := .venv/bin/python
TESTS ?=
PYTEST_ARGS ?=
JOBS ?= 2
BENCH_ARGS ?=
COVERAGE_FLOOR ?= 88
# Commands start from bytecode once they are installed; where it may not be written they would compile themselves each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test cover check format lint types imports bench clean
help:
	@sed -n 's/^#   //p' Makefile

demo:
	@PYTHON=$(PYTHON) .ci/setup demo
	@$(RUN) -m tests.demo

test:
	@PYTHON=$(PYTHON) .ci/setup test
	@top=$$(mktemp -d /tmp/plyfs-tests.XXXXXX); \
	COVERAGE_FILE=$$top/coverage $(RUN) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --basetemp=$$top/t -p no:cacheprovider \
	  $(PYTEST_ARGS) $(TESTS); \
	status=$$?; rm -rf --one-file-system $$top; exit $$status

cover:
	@$(MAKE) --no-print-directory test PYTEST_ARGS="--cov --cov-report=term --cov-fail-under=$(COVERAGE_FLOOR) $(PYTEST_ARGS)"

check:
	@PYTHON=$(PYTHON) .ci/setup test
	@$(MAKE) --no-print-directory --keep-going format lint types imports

format:
	$(RUN) -m ruff format --check .
lint:
	$(RUN) -m ruff check .
types:
	$(RUN) -m mypy
imports:
	.venv/bin/lint-imports

bench:
	@PYTHON=$(PYTHON) .ci/setup bench
	@$(RUN) -m bench $(BENCH_ARGS)

clean:
	rm -rf .venv .bench .agents .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
