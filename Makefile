# Needs Python 3.11 or newer and make. Each target installs what it needs into .venv.
.DEFAULT_GOAL := help
.PHONY: help install run test check console pictures clients npm-clients copilotkit sdk-clients mcp-servers sweep sweep-rows webhook-kills login-kills runbook migrations injections mutants mutants-sample chaos soak house fuzz bench bench-quick bench-against bench-takeover bench-machines bench-wide bench-storage bench-language bench-claims bfcl dialogues lock clean

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
CONSOLE := .venv/console
# uv installs in a fifth of pip's time. Where only pip knows the way to the packages, pip does it.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# $(call installed_apart,folder,packages): in an environment of their own, of which Segue's knows nothing.
define installed_apart
	test -x $(1)/bin/python || $(PYTHON) -m venv --without-pip $(1)
	$(BIN)/uv pip install --quiet --python $(1)/bin/python $(2) || $(PIP:install=--python $(1)/bin/python install) $(2)
endef

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

install: $(INSTALLED) $(CONSOLE)  ## install the locked dependencies and segue itself into .venv

$(INSTALLED): requirements-dev.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Segue needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv  # also one that was left half made
	sed -n '/^uv==/,/[^\\]$$/p' requirements-dev.lock > .venv/uv.lock
	$(PIP) --require-hashes -r .venv/uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements-dev.lock \
		|| { $(PIP) 'pip>=23.3' && $(PIP) --require-hashes -r requirements-dev.lock; }  # older ones know no extras in it
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-build-isolation --no-deps -e . \
		|| $(PIP) --no-build-isolation --no-deps -e .
	@touch $@

# Built again when a source changes. A failure is printed, and the service serves without it.
$(CONSOLE): $(INSTALLED) $(shell find console -name node_modules -prune -o -type f -print)
	command -v npm >/dev/null || $(PIP) --require-hashes -r console/requirements.txt || true
	$(BIN)/python console/build.py || true
	@touch $@

run: install  ## migrate and serve on http://127.0.0.1:8000 (PORT), with its own PostgreSQL and Redis unless URLs are set
	exec $(BIN)/segue serve

# Where it is set, every process compiles again what it imports: a start took 5.2 s of processor time instead of 2.2.
run test check chaos soak bench bench-quick bench-against bench-takeover bench-machines bench-wide bench-storage: export PYTHONDONTWRITEBYTECODE :=

test: install  ## run the whole test suite
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=10

check: install  ## run all other checks of CI: format, lint, types, imports, contract, vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/check.py
	$(BIN)/python .ci/audit.py

sweep: install  ## run the whole test suite with every input, of which CI runs a part
	SWEEP=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations=10

sweep-rows: install  ## damage every JSON column in every way, one session each, and check that the other sessions still work
	SWEEP=1 $(BIN)/python -m pytest tests/api/test_unreadable_rows.py

webhook-kills: install  ## kill -9 twenty times while a webhook hangs, and check that no event is lost or out of order
	SWEEP=1 $(BIN)/python -m pytest tests/turns/jobs/test_webhooks.py -k kill

login-kills: install  ## log in at an MCP server while processes are killed
	SWEEP=1 $(BIN)/python -m pytest tests/mcp/test_logins.py -k kill

runbook: install  ## cause every symptom of docs/runbook.md and fix it with the commands of the page; CI leaves out the slow ones
	SWEEP=1 $(BIN)/python -m pytest tests/examples/test_runbook.py

migrations: install  ## migrate while earlier releases serve: make migrations OTHER="checkouts with a .venv"
	OTHER="$(or $(OTHER),$(error give checkouts with a .venv each: make migrations OTHER="path path"))" \
		$(BIN)/python -m pytest -s tests/releases/test_migrations_under_traffic.py

injections: install  ## let a model obey 769 hostile mails and events, and check that nothing happens unasked; CI runs eleven of them
	SWEEP=1 $(BIN)/python -m pytest -s tests/turns/plans/test_injections.py

console: install  ## run all browser tests of the console, of which CI runs a few
	SWEEP=1 $(BIN)/python -m pytest tests/console

pictures: install  ## take the pictures of the docs again, or pictures of every page: make pictures [ALL=folder]
	$(if $(ALL),mkdir -p $(ALL))
	$(if $(ALL),ALL_PICTURES=$(ALL),PICTURES=docs/pictures) $(BIN)/python -m pytest tests/console/test_pictures.py tests/console/test_inbox.py::test_axe_finds_nothing_serious_on_the_page_behind_a_link_which_works_on_a_phone_without_scripts

CLIENTS := .venv/clients
OPENAPI_CLIENT := openapi-python-client==0.29.1

clients: $(CLIENTS)/bin/openapi-python-client  ## generate a client from docs/openapi.json with openapi-python-client, and call a service with it
	SWEEP=1 $(BIN)/python -m pytest tests/api/test_generated_client.py

$(CLIENTS)/bin/openapi-python-client: | install
	$(call installed_apart,$(CLIENTS),$(OPENAPI_CLIENT))

KUBERNETES := .venv/kubernetes
KUBERNETES_VALIDATE := kubernetes-validate==1.37.0

.PHONY: kubernetes
kubernetes: $(KUBERNETES)/bin/kubernetes-validate  ## check deploy/kubernetes against the schemas of Kubernetes, rendered if there is a kubectl
	SWEEP=1 $(BIN)/python -m pytest tests/test_kubernetes.py

$(KUBERNETES)/bin/kubernetes-validate: | install
	$(call installed_apart,$(KUBERNETES),$(KUBERNETES_VALIDATE))

SDK_CLIENTS ?= .venv/sdk-clients
SDK_PACKAGES := openai-agents==0.24.0 "pydantic-ai-slim[openai]==2.68.0" langchain-openai==1.7.3 litellm==1.109.1 llm==0.36

sdk-clients: $(SDK_CLIENTS)/bin/llm  ## talk to a service with openai-agents, pydantic-ai, LangChain, litellm and llm, in every way they offer
	SWEEP=1 SDK_CLIENTS=$(SDK_CLIENTS) $(BIN)/python -m pytest tests/api/doors/test_sdk_clients.py

# litellm asks for a certifi of the same week, which an index may not have yet; it speaks to this machine alone here.
$(SDK_CLIENTS)/bin/llm: | install
	test -x $(SDK_CLIENTS)/bin/python || $(PYTHON) -m venv --without-pip $(SDK_CLIENTS)
	echo certifi >$(SDK_CLIENTS)/overrides.txt
	$(BIN)/uv pip install --quiet --python $(SDK_CLIENTS)/bin/python --override $(SDK_CLIENTS)/overrides.txt $(SDK_PACKAGES)

NPM_CLIENTS := tests/clients/node_modules/.package-lock.json

npm-clients: $(NPM_CLIENTS)  ## install the clients for Node that some tests use

$(NPM_CLIENTS): tests/clients/package.json tests/clients/package-lock.json
	cd tests/clients && npm ci --loglevel error
	@touch $@

COPILOTKIT := tests/clients/copilotkit

copilotkit: install $(COPILOTKIT)/build/page.js  ## click through a CopilotKit page in a browser, with kill -9 between question and yes
	$(BIN)/python -m pytest tests/api/doors/test_copilotkit.py

$(COPILOTKIT)/build/page.js: $(COPILOTKIT)/page.jsx $(COPILOTKIT)/package-lock.json
	cd $(COPILOTKIT) && npm ci --ignore-scripts --loglevel error && npm run --silent build

MCP_SERVERS := .venv/mcp-servers
MCP_SERVERS_NPM := tests/mcp/official/node_modules/.package-lock.json
MCP_SERVERS_PYPI := mcp-server-fetch==2026.10.24 mcp-server-git==2026.10.19 mcp-server-time==2026.10.19

mcp-servers: $(MCP_SERVERS)/bin/mcp-server-time $(MCP_SERVERS_NPM)  ## call every tool of the official MCP servers in turns; prints a row for each
	$(BIN)/python -m pytest -s tests/mcp/test_official_servers.py

$(MCP_SERVERS)/bin/mcp-server-time: | install
	$(call installed_apart,$(MCP_SERVERS),$(MCP_SERVERS_PYPI))

$(MCP_SERVERS_NPM): tests/mcp/official/package.json tests/mcp/official/package-lock.json
	cd tests/mcp/official && npm ci --loglevel error
	@touch $@

mutants: install  ## break every promise in turn and see its tests fail; prints a table
	$(BIN)/python -m tests.mutants

chaos: install  ## kill, freeze and restart two instances and their stores under load, and check all that clients saw: make chaos [SECONDS=600 SEED=1 PROCESSES=2]
	$(BIN)/python -m tests.chaos chaos --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED)) --processes $(or $(PROCESSES),1)

soak: install  ## one instance under load for an hour, whose memory, keys and connections must not grow: make soak [SECONDS=3600 SEED=1]
	$(BIN)/python -m tests.chaos soak --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

# Others' test suites run against Segue: docs/proof.md has the figures. With DATA also BFCL and the recorded dialogues.
PROOFS := proof-agentdojo proof-mcp proof-agui proof-openai proof-order
.PHONY: proof proof-data $(PROOFS)

proof: $(PROOFS) mcp-servers $(if $(DATA),proof-data)  ## run all of docs/proof.md, in an hour: make proof [DATA=folder with the public data sets]

proof-data: install
	$(MAKE) bfcl DATA=$(DATA)/bfcl_multi_turn_base.jsonl
	$(MAKE) dialogues DATA=$(DATA)/airline_dialogues.jsonl KILL=10 INSTANCES=2

AGENTDOJO ?= .venv/agentdojo

proof-agentdojo: $(AGENTDOJO)/cases.json  ## let a model obey AgentDojo's 629 injections, and count what takes effect unasked
	SWEEP=1 AGENTDOJO_CASES=$< $(BIN)/python -m pytest tests/proof/test_agentdojo.py

$(AGENTDOJO)/cases.json: tests/proof/dojo_cases.py | install
	test -x $(AGENTDOJO)/bin/python || $(PYTHON) -m venv --without-pip $(AGENTDOJO)
	$(BIN)/uv pip install --quiet --python $(AGENTDOJO)/bin/python agentdojo==0.1.35
	$(AGENTDOJO)/bin/python $< >$@.part
	mv $@.part $@

proof-mcp: install $(MCP_SERVERS_NPM)  ## run the frozen sets of MCP's conformance suite on Segue as client and server
	$(BIN)/python -m pytest tests/mcp/test_conformance.py

HEARD := .venv/heard
AGUI_TESTS := tests/events tests/api/test_streams.py tests/api/doors/test_agui.py
OPENAI_TESTS := $(addprefix tests/api/doors/test_,openai_chat.py openai_responses.py openai_options.py sent_files.py)

proof-agui: install $(NPM_CLIENTS)  ## check every stream that the tests of events read with AG-UI's own verifier
	rm -f $(HEARD)-agui
	SWEEP=1 RECORD_STREAMS=$(HEARD)-agui $(BIN)/python -m pytest $(AGUI_TESTS)
	AGUI_HEARD=$(HEARD)-agui $(BIN)/python -m pytest tests/proof/test_agui_verifier.py

proof-openai: install  ## check every answer that the tests of OpenAI's routes read against the types of its SDK
	rm -f $(HEARD)-openai
	SWEEP=1 RECORD_OPENAI=$(HEARD)-openai $(BIN)/python -m pytest $(OPENAI_TESTS)
	OPENAI_HEARD=$(HEARD)-openai $(BIN)/python -m pytest tests/proof/test_openai_shapes.py

proof-order: install  ## kill -9 two instances, and find one order that explains what clients saw: make proof-order [SECONDS=240 SEED=1]
	$(BIN)/python -m tests.chaos order --seconds $(or $(SECONDS),240) --talkers 2 $(if $(SEED),--seed $(SEED))

COSMIC := .venv/cosmic-ray

mutants-sample: install  ## make a sample of small changes to the rules and check that tests fail, in an hour at most: make mutants-sample SAMPLE=60
	test -x $(COSMIC)/bin/cosmic-ray || $(PYTHON) -m venv $(COSMIC)
	$(COSMIC)/bin/python -m pip install --quiet --disable-pip-version-check cosmic-ray==$(shell sed -n 's/^COSMIC_RAY = "\(.*\)"/\1/p' tests/mutants/sample.py)
	$(BIN)/python -m tests.mutants.sample --cosmic-ray $(COSMIC)/bin --at-most $(or $(SAMPLE),400)

ATHERIS := .venv/atheris

fuzz: install  ## fuzz what reads outside input, guided by coverage, for a minute: make fuzz [SECONDS=3600]
	test -d $(ATHERIS) || $(PIP) --target $(ATHERIS) atheris==3.0.0
	PYTHONPATH=$(ATHERIS) $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

house: install  ## print the size of the code, and the modules that a message passes: make house [AGAINST=another checkout]
	PYTHONPATH=. $(BIN)/python .ci/house.py $(AGAINST)

PEERS_HOME := .venv/peers
PEERS ?= $(abspath $(wildcard $(PEERS_HOME)/bin/python))
PEER_PACKAGES := aegra-api==0.6.0 greenlet langchain==1.5.2 langchain-openai==1.7.4 "langgraph-cli[inmem]==0.4.40" "pydantic-ai-slim[openai]==2.68.0"
bench bench-quick: export PEERS := $(PEERS)

.PHONY: peers
peers: install  ## install the agents and servers of others that `make bench` measures beside Segue
	test -x $(PEERS_HOME)/bin/python || $(PYTHON) -m venv --without-pip $(PEERS_HOME)
	$(BIN)/uv pip install --quiet --python $(PEERS_HOME)/bin/python $(PEER_PACKAGES)

bench: install  ## measure what a turn costs in five minutes; writes bench/results.* and the targets it missed into docs/performance.md
	$(BIN)/python -m bench

bench-quick: install  ## measure it in less than a minute, and only print it
	$(BIN)/python -m bench --scale 0.2

bench-against: install  ## measure another checkout in the same minutes: make bench-against OTHER=path/to/checkout
	$(BIN)/python -m bench --against $(or $(OTHER),$(error give a checkout with a .venv: make bench-against OTHER=path/to/checkout))

bench-takeover: install  ## measure how long a turn waits after a kill -9 of its process: five minutes
	$(BIN)/python -m bench.takeover --kills $(or $(KILLS),20)

bench-machines: install  ## measure the processor time of each part on one to eight processes: three minutes
	$(BIN)/python -m bench.machines

bench-wide: install  ## measure every route with very many rows, turns that wait and idle streams: ten minutes
	$(BIN)/python -m bench.wide

bench-storage: install  ## measure what a turn takes in PostgreSQL over a million turns: ten minutes; make bench-storage TURNS=100000
	$(BIN)/python -m bench.storage --turns $(or $(TURNS),1000000)

bench-language: install  ## measure how well a yes is recognised, on one half of the replies: make bench-language [DATA=more.jsonl HALF=tune]
	$(BIN)/python bench/language.py tests/plans/replies.jsonl $(DATA) --half $(or $(HALF),report)

bench-claims: install  ## measure how well answers that claim an effect are told from others: make bench-claims [DATA=dialogues.jsonl TOOLS=tools.json]
	$(BIN)/python bench/claims.py tests/agent/claims.jsonl $(if $(DATA),--dialogues $(DATA) --tools $(TOOLS))

bfcl: install  ## replay a public benchmark, killing the service between turns: make bfcl DATA=bfcl_multi_turn_base.jsonl
	$(BIN)/python bench/bfcl.py $(or $(DATA),$(error give the data: make bfcl DATA=path/to/bfcl_multi_turn_base.jsonl))

dialogues: install  ## play recorded dialogues, and count what is asked twice: make dialogues DATA=airline_dialogues.jsonl [KILL=10 INSTANCES=2 READER=yes]
	$(BIN)/python -m bench.dialogues $(or $(DATA),$(error give the data: make dialogues DATA=path/to/airline_dialogues.jsonl)) \
		--kill $(or $(KILL),0) --instances $(or $(INSTANCES),1) --reader $(or $(READER),none)

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links --extra otel --extra anthropic --extra google --extra files pyproject.toml

lock: install  ## resolve the dependencies again, for every Python and platform
	$(LOCK) --upgrade --extra dev --output-file requirements-dev.lock
	$(LOCK) --constraint requirements-dev.lock --output-file requirements.lock
	$(MAKE) install
	$(BIN)/python .ci/sbom.py  # the licences are those of what is installed now

clean:  ## remove what the other targets made, except data
	rm -rf .venv $(addsuffix /node_modules,console tests/clients $(COPILOTKIT) tests/mcp/official) $(COPILOTKIT)/build
	rm -rf console/src/api-types.d.ts backend/segue/api/pages build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
