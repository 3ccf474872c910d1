# Every verb of the project; CI runs the same ones. Needs Python 3.11 or newer and a reachable package index.
PYTHON ?= python3
VENV   ?= .venv
WORKERS ?= 3
EXAMPLES ?= 5
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.kvyield-ready

unexport PYTHONDONTWRITEBYTECODE # servers and clients that tests start by the hundred are compiled once

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-long test-pythons check format serve migrate accuracy bench bench-list benchmarks-page openapi-examples wheels release constraints clean

help: ## list the verbs (this text)
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the virtual environment with both distributions and the tools

$(STAMP): pyproject.toml clients/python/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvyield-server needs Python 3.11 or newer; say which with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' --editable clients/python
	@touch $@

demo: $(STAMP) ## the main job on an embedded database: read real logs, post the starts, print the advice
	@$(BIN)/python docs/examples/demo.py

test: $(STAMP) ## the whole suite: SQLite, a real PostgreSQL, real HTTP; WORKERS processes share it
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not long"

test-long: $(STAMP) ## the full counts of what make test runs briefly, and properties over new examples each time
	KVYIELD_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "long or hypothesis"

test-fast: $(STAMP) ## the suite without the slow parts (faults, simulations)
	$(BIN)/python -m pytest -m "not slow and not long"

test-pythons: $(STAMP) ## the client's tests on Python 3.10 to 3.13, each with the oldest dependencies allowed
	$(BIN)/python tests/clients/matrix.py

check: $(STAMP) ## format, lint, types, Dockerfile, installed requirements, known vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy service/kvyield_server clients/python/kvyield
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/python -m pip check --disable-pip-version-check
	@$(BIN)/python tests/architecture/audit.py

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

serve: $(STAMP) ## serve on 127.0.0.1:8321 with an embedded database (kvyield.db)
	$(BIN)/kvyield-server serve

migrate: $(STAMP) ## bring the database of KVYIELD_DATABASE to the newest schema
	$(BIN)/kvyield-server db upgrade

accuracy: $(STAMP) ## predictions against real and simulated starts; fails when a bar is missed
	@PYTHONPATH=tests $(BIN)/python tests/bench/run.py yield-model

bench: $(STAMP) ## every benchmark, ratios measured side by side in one run; bench-NAME runs one, bench-list names them
	@PYTHONPATH=tests $(BIN)/python tests/bench/run.py

bench-list: $(STAMP) ## name the benchmarks, each with what it checks
	@PYTHONPATH=tests $(BIN)/python tests/bench/run.py --list

bench-%: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python tests/bench/run.py $*

benchmarks-page: $(STAMP) ## write docs/benchmarks.md from what the last runs printed
	@PYTHONPATH=tests $(BIN)/python tests/bench/page.py

openapi-examples: $(STAMP) ## record the answers of the OpenAPI document's examples anew
	@PYTHONPATH=tests $(BIN)/python tests/api/examples.py

gpu-trial: $(STAMP) ## on a GPU host: ENGINE_COMMAND='vllm serve ...' started, measured, restarted with the advice; prints predicted against measured
	@$(BIN)/python tests/gpu/trial.py $(TRIAL_OPTIONS)

wheels: $(STAMP) ## build both distributions into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . ./clients/python

release: $(STAMP) ## build what a release uploads, wheels and sources of both, into dist/ and check it
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	$(BIN)/python -m build --no-isolation --outdir dist clients/python > /dev/null
	$(BIN)/python -m twine check --strict dist/*
	@echo "Checked. Upload with: $(BIN)/python -m twine upload dist/*"

constraints: $(STAMP) ## pin what is installed now into constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable --disable-pip-version-check | grep -E '^[A-Za-z0-9_.-]+==' > constraints.txt

clean: ## remove what the other verbs made
	rm -rf $(VENV) .bench .demo dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
