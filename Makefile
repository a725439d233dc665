# Everything a developer types. `make run` and `make test` do all the set-up themselves: they need Python 3.11 or
# newer with venv, make, and access to a package index. What is built stays in the repository: .venv and .state.

PYTHON ?= python3
PYTEST_ARGS ?=
TEST_WORKERS ?= 2
BENCH_ARGS ?=
SOAK_ARGS ?=
HTTP_ARGS ?=
LOAD_ARGS ?=
CONTAINER_ARGS ?= --runtime runsc
SERVE_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
CPYTHON_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
BELLJAR := $(BIN)/belljar
INSTALLED := $(VENV)/.installed
PEERS := $(VENV)/.peers

# The guest environments that tests and examples use, apart from any that this machine serves.
export BELLJAR_STATE_DIR := $(CURDIR)/.state
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup languages run hello test root check format bench languagebench cpython fuzz soak http load containers mcpb clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Belljar needs Python 3.11 or newer, and '$(PYTHON)' is not. Try: make PYTHON=python3.11 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
		echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "── installing Belljar and its tools into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --editable '.[dev,bench]'
	@$(BIN)/python -m pip install -qq --only-binary atheris --editable '.[fuzz]' || \
		echo "── NO FUZZING HERE: atheris has no wheel for this Python and machine; the tests mutate their corpus blindly" >&2
	@touch $@

# No stamp for the guest environment: only Belljar knows whether it is there and whole, and asking is quick.
setup: $(INSTALLED) ## install everything; run, test, bench and soak do this first
	@$(BELLJAR) env create default --if-missing

languages: $(INSTALLED) ## install every toolchain that Debian, npm and PyPI offer (about 4.5 GB)
	@$(BELLJAR) languages install all --yes

run: setup ## start the server on http://127.0.0.1:8000
	@$(BELLJAR) serve $(SERVE_ARGS)

hello: setup ## run a first program in the sandbox, without a server
	@$(BELLJAR) run examples/hello.py

test: root setup check ## check, then run every test; needs root
	$(BIN)/python -m pytest --numprocesses=$(TEST_WORKERS) --dist=loadfile $(PYTEST_ARGS)

# Before the set-up: a plain user would see hundreds of tests fail, and only after minutes.
root:
	@[ "$$(id -u)" = 0 ] || { echo "The tests need every isolation layer, and two of them need root: sudo make test" >&2; exit 1; }

check: $(INSTALLED) ## check format, lint, types and import rules, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## measure beside peers; prints a table and draws a plot
	$(BIN)/python bench/run.py $(BENCH_ARGS)

languagebench: setup ## measure every language by hand and through Belljar; writes docs/languages.md
	$(BIN)/python bench/languages.py --output-dir docs $(BENCH_ARGS)

fuzz: $(INSTALLED) ## fuzz every parser of hostile bytes, FUZZ_SECONDS each (60); FUZZ_TARGETS names some of them
	$(BIN)/python tests/fuzz/all.py --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

soak: setup ## run tens of thousands of mixed programs; fail if anything is left behind
	$(BIN)/python bench/soak.py $(SOAK_ARGS)

cpython: setup ## run CPython's own tests in the jail; fail if one fails only there
	$(BIN)/python bench/cpython.py $(CPYTHON_ARGS)

mcpb: $(INSTALLED) ## build the MCP bundle for desktop assistants, in dist/
	$(BIN)/python deploy/mcpb/build.py

# Servers that are only needed to compare with.
$(PEERS): $(INSTALLED)
	@echo "── installing the servers to compare with"
	@$(BIN)/python -m pip install -qq --editable '.[dev,bench,peers]'
	@touch $@

http: setup $(PEERS) ## measure HTTP beside other servers; needs wrk
	$(BIN)/python bench/http_server.py $(HTTP_ARGS)

load: setup ## send 200,000 requests or for an hour; fail if a response is wrong or anything grows
	$(BIN)/python bench/http_load.py $(LOAD_ARGS)

containers: setup ## measure runs in containers; needs root, docker.io and mmdebstrap, writes docs/containers.md
	@$(BIN)/python -m pip install -qq 'llm-sandbox[docker]'
	$(BIN)/python bench/container.py $(CONTAINER_ARGS)

clean: ## remove everything that was built here, guest environments included
	rm -rf $(VENV) .state .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
