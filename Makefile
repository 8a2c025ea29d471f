# make demo   the main job: simulated gateway, tap, analytics, dashboard
# make up     in front of your gateway: make up UPSTREAM=http://localhost:4000
# make test   everything that must hold
# make help   the rest
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PY := .venv/bin/python

UPSTREAM ?= http://localhost:4000

.PHONY: help install setup test-setup demo up test lint format types quick chaos bench browser screenshots fuzz reference site image wheel audit licences lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

install: .venv/.installed ## build .venv from the lock (hashes checked), to run Streamgauge

.venv/.installed: requirements.lock deploy/build.lock pyproject.toml
	@deploy/setup/venv run

setup: .venv/.ready ## the same with what tests and benches need

.venv/.ready: requirements.lock requirements-dev.lock pyproject.toml
	@deploy/setup/venv all

test-setup: setup ## what only the tests need: Java and Maven, Chromium, the LiteLLM environment
	@deploy/setup/test-parts

demo: install ## run the demo and open the address that it prints; ARGS="--seconds 60" ends by itself
	@$(PY) -m streamgauge demo $(ARGS)

up: install ## in front of your gateway, with its dashboard: UPSTREAM=http://localhost:4000
	@$(PY) -m streamgauge up --upstream $(UPSTREAM) $(ARGS)

lint: setup ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: setup ## format in place
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: setup ## mypy, strict
	$(PY) -m mypy

test: test-setup lint types ## everything that must hold, under 15 minutes on two cores
	$(PY) -m pytest -m "not slow" -n 2 --dist loadfile $(ARGS)

quick: setup ## the tests that need nothing but Python
	$(PY) -m pytest -m "not slow and not kafka and not litellm and not browser" -n 2 --dist loadfile $(ARGS)

chaos: test-setup ## the long fault runs
	$(PY) -m pytest tests/chaos $(ARGS)

browser: test-setup ## the dashboard in a real browser
	$(PY) -m pytest -m browser $(ARGS)

screenshots: test-setup ## the pictures of README and docs, from a demo of five minutes
	$(PY) -m tests.dashboard.demo_screenshots docs/images

fuzz: setup ## coverage-guided, five minutes; needs atheris in .venv
	$(PY) -m tests.fuzz.decode -max_total_time=300 $(ARGS)

bench: setup ## measure; writes what docs/explanation/performance.md quotes
	$(PY) -m bench $(ARGS)

reference: setup ## write the generated pages of docs/reference
	$(PY) docs/generate.py

site: setup ## the documentation as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

image: ## both images, with docker, podman or buildah; BASE=… for another base
	deploy/setup/image

wheel: setup ## the wheel, the same bytes wherever it is built, and the bill of materials (CycloneDX), in dist/; COMPILED=1: the tap as machine code
	SOURCE_DATE_EPOCH=315532800 COMPILED=$(COMPILED) $(PY) -m pip wheel --quiet --no-deps --no-build-isolation -w dist .
	.venv/bin/cyclonedx-py requirements --output-reproducible -o dist/streamgauge.cdx.json requirements.lock

audit: setup ## known vulnerabilities of what is locked (asks the advisory database of the package index)
	$(PY) -m pip_audit --disable-pip --require-hashes -r requirements.lock

licences: setup ## renew docs/reference/licences.md
	deploy/setup/licences

lock: setup ## renew the locks from pyproject.toml
	deploy/setup/lock

clean: ## remove what make made
	rm -rf .venv .venv-litellm .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site
