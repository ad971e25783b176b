# Needs Python 3.11 or newer and make. Each target installs what it needs into .venv.
.DEFAULT_GOAL := help
.PHONY: help install run test check clients npm-clients sweep-rows injections mutants mutants-sample fuzz bench bench-quick bench-against bench-takeover bench-language bfcl lock clean

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
# uv installs in a fifth of pip's time. Where only pip knows the way to the packages, pip does it.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

install: $(INSTALLED)  ## install the locked dependencies and segue itself into .venv

$(INSTALLED): requirements-dev.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Segue needs Python 3.11 or newer; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements-dev.lock > .venv/uv.lock
	$(PIP) --require-hashes -r .venv/uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.lock \
		|| $(PIP) --require-hashes -r requirements-dev.lock
	$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

run: install  ## migrate and serve on http://127.0.0.1:8000 (PORT), with its own PostgreSQL and Redis unless URLs are set
	exec $(BIN)/segue serve

# Where it is set, every process compiles the package and the tests again.
test check chaos soak: export PYTHONDONTWRITEBYTECODE :=

test: install  ## run the whole test suite
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=10

check: install  ## run all other checks of CI: format, lint, types, imports, contract, vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/check.py
	$(BIN)/python .ci/audit.py

sweep-rows: install  ## spoil every column of JSON in every way, a session each, and see the others unharmed
	SWEEP=1 $(BIN)/python -m pytest tests/api/test_unreadable_rows.py

injections: install  ## have a model obey 629 mails, and see that nothing happens unasked; CI runs ten of them
	SWEEP=1 $(BIN)/python -m pytest -s tests/turns/plans/test_injections.py

CLIENTS := .venv/clients
OPENAPI_CLIENT := openapi-python-client==0.29.1

clients: $(CLIENTS)/bin/openapi-python-client  ## generate a client from docs/openapi.json with openapi-python-client, and call a service with it
	$(BIN)/python -m pytest tests/api/test_generated_client.py

$(CLIENTS)/bin/openapi-python-client: | install
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv --without-pip $(CLIENTS)
	$(BIN)/uv pip install --quiet --python $(CLIENTS)/bin/python $(OPENAPI_CLIENT) \
		|| $(PIP:install=--python $(CLIENTS)/bin/python install) $(OPENAPI_CLIENT)

NPM_CLIENTS := tests/clients/node_modules/.package-lock.json

npm-clients: $(NPM_CLIENTS)  ## install the clients of others that run on Node, for the tests that speak through them

$(NPM_CLIENTS): tests/clients/package.json tests/clients/package-lock.json
	cd tests/clients && npm ci --loglevel error
	@touch $@

mutants: install  ## break every promise in turn and see its tests fail; prints a table
	$(BIN)/python -m tests.mutants

chaos: install  ## two instances under load, killed and frozen, their stores restarted: make chaos [SECONDS=600 SEED=1]
	$(BIN)/python -m tests.chaos chaos --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

soak: install  ## one instance under load for an hour; what it holds has to stay flat: make soak [SECONDS=3600 SEED=1]
	$(BIN)/python -m tests.chaos soak --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

COSMIC := .venv/cosmic-ray

mutants-sample: install  ## a seeded sample of small changes to the pure rules, an hour at most: make mutants-sample SAMPLE=60
	test -x $(COSMIC)/bin/cosmic-ray || $(PYTHON) -m venv $(COSMIC)
	$(COSMIC)/bin/python -m pip install --quiet --disable-pip-version-check cosmic-ray==$(shell sed -n 's/^COSMIC_RAY = "\(.*\)"/\1/p' tests/mutants/sample.py)
	$(BIN)/python -m tests.mutants.sample --cosmic-ray $(COSMIC)/bin --at-most $(or $(SAMPLE),400)

ATHERIS := .venv/atheris

fuzz: install  ## try what comes from outside on the rules and readers, guided by coverage, for a minute: make fuzz [SECONDS=3600]
	test -d $(ATHERIS) || $(PIP) --target $(ATHERIS) atheris==3.0.0
	PYTHONPATH=$(ATHERIS) $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

bench: install  ## measure what a turn costs in three minutes; writes bench/results.* and the table in docs/performance.md
	$(BIN)/python -m bench

bench-quick: install  ## measure it in less than a minute, and only print it
	$(BIN)/python -m bench --scale 0.2

bench-against: install  ## measure another checkout in the same minutes: make bench-against OTHER=path/to/checkout
	$(BIN)/python -m bench --against $(or $(OTHER),$(error give a checkout with a .venv: make bench-against OTHER=path/to/checkout))

bench-takeover: install  ## kill -9 a process, each way, and time until its turn goes on: twenty minutes, KILLS=5 for five
	$(BIN)/python -m bench.takeover --kills $(or $(KILLS),20)

bench-language: install  ## measure how well a yes is recognised, on the half not tuned on: make bench-language [DATA=more.jsonl HALF=tune]
	$(BIN)/python bench/language.py tests/plans/replies.jsonl $(DATA) --half $(or $(HALF),report)

bfcl: install  ## replay a public benchmark, killing the service between turns: make bfcl DATA=bfcl_multi_turn_base.jsonl
	$(BIN)/python bench/bfcl.py $(or $(DATA),$(error give the data: make bfcl DATA=path/to/bfcl_multi_turn_base.jsonl))

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links --extra otel --extra anthropic --extra google --extra files pyproject.toml

lock: install  ## resolve the dependencies again, for every Python and platform
	$(LOCK) --upgrade --extra dev --output-file requirements-dev.lock
	$(LOCK) --constraint requirements-dev.lock --output-file requirements.lock
	$(MAKE) install
	$(BIN)/python .ci/sbom.py  # the licences are those of what is installed now

clean:  ## remove what the other targets made, except data
	rm -rf .venv tests/clients/node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
