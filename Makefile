# Every target works on a fresh machine with python3.11+, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Tests also wait, for programs and for time to pass, so there are more workers than cores.
WORKERS = $(shell $(BIN)/python -c 'import os; print(max(2, (os.cpu_count() or 2) * 2))')
# Without the bytecode cache every worker compiles everything again. pytest compiles the tests itself (tests/conftest.py).
unexport PYTHONDONTWRITEBYTECODE
COMPILE = $(BIN)/python -m compileall -qq -j 0 -x /test_ src tests || true

.PHONY: setup demo test thorough conformance load real real/bench browser check bench docs mcpb lock clean

setup: $(READY)

# The demo installs only what it needs and compiles only what it uses; the rest also gets the development tools.
$(READY): requirements/dev.txt pyproject.toml
	$(call install,-r requirements/dev.txt)
	@touch $(READY) $(DEMO_READY)

$(DEMO_READY): requirements/demo.txt pyproject.toml
	$(call install,--no-compile -r requirements/demo.txt)
	@touch $(DEMO_READY)

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Quorate needs Python 3.11 or newer; set PYTHON=python3.12, say."; exit 1; }
	@echo "Setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes $(1)
	@$(PIP) --no-deps --no-build-isolation -e .
endef

demo: $(DEMO_READY)
	@$(BIN)/quorate demo

test: setup
	@$(COMPILE)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# What takes minutes: every tool under every fault, searches for leaked secrets, fifty thousand random calls after which
# nothing may be lost (`python -m tests.oracle SEED` repeats some), and what `make test` only samples. FULL_WIDTH=1: hours.
# SHARE=2/4 takes every fourth of these tests, from the second.
thorough: setup
	@$(COMPILE)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m thorough

# With real machines (OpenSSH, LXC, QEMU) in namespaces of their own; needs root and Debian, else it skips and says why.
real: setup
	@$(BIN)/python -m tests.real

# The console in Chromium, driven by Playwright; skipped where there is no Chromium.
browser: setup
	@$(PIP) --require-hashes -r requirements/browser.txt
	@$(BIN)/python -m tests.browser

# How long the status of a hundred hosts takes of which thirty are dead, measured with real hosts.
real/bench: setup
	@$(BIN)/python -m tests.real tests/real/test_homelab_crowd.py -k status_of_a_hundred

# Many clients at once, and replicas on one PostgreSQL (skipped where it is not installed); LOAD_SECONDS=60 for longer.
load: setup
	@$(BIN)/python -m tests.load

# The MCP project's own conformance tool and Inspector; needs npm.
conformance: setup
	@$(BIN)/python -m tests.conformance

check: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.style
	@$(BIN)/python -m tools.docs --check

bench: setup
	@$(BIN)/python -m bench

docs: setup
	@$(BIN)/python -m tools.docs

# The bundle for desktop clients, in dist/.
mcpb: setup
	@$(BIN)/python -m tools.bundle

# Renew the hashed requirements after a change of dependencies (needs uv).
lock:
	uv pip compile --universal --generate-hashes --no-header --group dev pyproject.toml -o requirements/dev.txt
	uv pip compile --universal --generate-hashes --no-header --group demo -c requirements/dev.txt pyproject.toml -o requirements/demo.txt
	uv pip compile --universal --generate-hashes --no-header --group pyproject.toml:browser -c requirements/dev.txt -o requirements/browser.txt
	uv pip compile --universal --generate-hashes --no-header --extra postgres pyproject.toml -o requirements/runtime.txt

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
