# make demo   run with a simulated gateway
# make up     run in front of your gateway: make up UPSTREAM=http://localhost:4000
# make test   run all tests
# make help   list all targets
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python

UPSTREAM ?= http://localhost:4000
BASE ?= HEAD
# Processes that compile the product at each start cost minutes of the tests.
unexport PYTHONDONTWRITEBYTECODE
TYPED := $(shell find streamgauge/ingest -name '*.pyx' -o -name '*.pxd')
COMPILED := $(TYPED) $(wildcard $(patsubst %.pxd,%.py,$(TYPED)))
# Tests of processes do not depend on the code that these run.
PROCESSES := tests/ingest/tap/test_main.py tests/ingest/tap/test_supervisor.py
# Whole files on one worker, because they share servers; tests/conftest.py orders them.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
# Tests that fail beside others run once more, alone. The report names those that pass only then: they are unstable.
AGAIN = || { test $$? = 1 && $(PY) -m pytest -m "not slow" -x -rA --last-failed --last-failed-no-failures none; }

.PHONY: help install setup test-setup demo up test lint format types quick chaos bench browser screenshots fuzz rows-diff reference site image wheel release audit licences lock clean

help: ## list all targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

install: .venv/.installed .venv/.compiled ## install the locked packages into .venv

.venv/.installed: requirements.lock deploy/build.lock pyproject.toml
	@deploy/setup/venv run

setup: .venv/.ready .venv/.compiled ## also install the packages of tests and benchmarks

.venv/.ready: requirements.lock requirements-dev.lock pyproject.toml
	@deploy/setup/venv all

.venv/.compiled: deploy/setup/native.py $(COMPILED)
	@$(PY) deploy/setup/native.py || echo "setup: the tap runs interpreted instead, which needs more CPU time" >&2
	@touch $@

test-setup: setup ## install test services: Java and Maven, Chromium, LiteLLM
	@deploy/setup/test-parts

demo: install ## run with a simulated gateway; ARGS="--seconds 60" stops after a minute
	@$(PY) -m streamgauge demo $(ARGS)

up: install ## run in front of your gateway: UPSTREAM=http://localhost:4000
	@$(PY) -m streamgauge up --upstream $(UPSTREAM) $(ARGS)

lint: setup ## check rules and format (ruff) and layers (import-linter)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/lint-imports --no-cache

format: setup ## format the code
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: setup ## check types with mypy
	$(PY) -m mypy
	$(PY) -m mypy --platform darwin

test: test-setup lint types ## run all tests (25 minutes on two cores, and at the first time the set-up)
	$(PY) -m pytest -m "not slow" $(PARALLEL) $(ARGS) $(AGAIN)
	export STREAMGAUGE_INTERPRETED=1; $(PY) -m pytest -m "not slow" $(PARALLEL) tests/ingest/tap $(PROCESSES:%=--ignore=%) $(AGAIN)

quick: setup ## run the tests that need only Python
	$(PY) -m pytest -m "not slow and not kafka and not litellm and not browser" $(PARALLEL) $(ARGS)

chaos: test-setup ## run the long fault tests
	$(PY) -m pytest tests/chaos $(ARGS)

browser: test-setup ## test the dashboard in a real browser
	$(PY) -m pytest -m browser $(ARGS)

screenshots: test-setup ## take the screenshots of README and docs from five minutes of traffic; dark ones go to build/
	$(PY) -m tests.e2e.docs_screenshots docs/images build/dark-screenshots

fuzz: setup ## fuzz the decoders for five minutes; needs atheris in .venv
	$(PY) -m tests.fuzz.decode -max_total_time=300 $(ARGS)

rows-diff: setup ## compare the rows of everything recorded with those of a commit: BASE=main~1
	$(PY) -m tests.rows_diff $(BASE) $(ARGS)

bench: setup ## run the benchmarks and write docs/explanation/performance.md
	$(PY) -m bench $(ARGS)

reference: setup ## generate the pages of docs/reference
	$(PY) docs/generate.py

site: setup ## build the documentation site in site/
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

image: ## build both images with docker, podman or buildah; BASE=… for another base
	deploy/setup/image

wheel: setup ## build reproducible wheels in dist/: pure Python, and with the native relay if a C compiler is present
	RELAY=python SOURCE_DATE_EPOCH=315532800 $(PY) -m hatchling build -t wheel -d dist
	SOURCE_DATE_EPOCH=315532800 $(PY) -m hatchling build -t wheel -d dist

release: setup ## build the files of a release in dist/ and the images; VERSION=x.y.z checks the version first
	$(PY) deploy/setup/release.py $(VERSION) $(ARGS)

audit: setup ## check the locked packages for known vulnerabilities
	$(PY) -m pip_audit --disable-pip --require-hashes -r requirements.lock

licences: setup ## write docs/reference/licences.md
	deploy/setup/licences

lock: setup ## update the lock files from pyproject.toml
	deploy/setup/lock

clean: ## remove everything that make created
	find streamgauge/ingest -name '*.so' -delete
	rm -rf .venv .venv-litellm .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site
