# Every target works on a fresh machine with python3.11+, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Tests spend time waiting for other programs, so use more workers than cores.
WORKERS = $(shell $(BIN)/python -c 'import os; print(max(2, (os.cpu_count() or 2) * 2))')
# Without the bytecode cache, every worker would compile everything. pytest compiles the tests itself (tests/conftest.py).
unexport PYTHONDONTWRITEBYTECODE
COMPILE = $(BIN)/python -m compileall -qq -j 0 -x /test_ src tests packages || true
# The distributions of this repository, in the order of their dependencies.
DISTRIBUTIONS := packages/pve-schema packages/pve-simulator .
PROJECTS := $(DISTRIBUTIONS:%=%/pyproject.toml)
LOCK = uv pip compile --universal --generate-hashes --no-header --no-emit-package pve-schema --no-emit-package pve-simulator

.PHONY: setup demo test thorough conformance clients load real real/bench browser check bench docs mcpb lock clean

setup: $(READY)

# The demo installs and compiles only what it needs; the other targets also get the development tools.
$(READY): requirements/dev.txt $(PROJECTS)
	$(call install,-r requirements/dev.txt)
	@touch $(READY) $(DEMO_READY)

$(DEMO_READY): requirements/demo.txt $(PROJECTS)
	$(call install,--no-compile -r requirements/demo.txt)
	@touch $(DEMO_READY)

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Quorate needs Python 3.11 or newer. Set PYTHON, for example PYTHON=python3.12."; exit 1; }
	@echo "Setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes $(1)
	@$(PIP) --no-deps --no-build-isolation $(DISTRIBUTIONS:%=-e %)
endef

demo: $(DEMO_READY)
	@$(BIN)/quorate demo

test: setup
	@$(COMPILE)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Tests that take minutes: every tool under every fault, searches for leaked secrets, fifty thousand random calls that must
# lose nothing (`python -m tests.oracle SEED` repeats some). FULL_WIDTH=1 takes hours.
# SHARE=2/4 runs every fourth of these tests, starting with the second.
thorough: setup
	@$(COMPILE)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m thorough

# Real machines (OpenSSH, LXC, QEMU) in their own namespaces; without root or Debian, these tests are skipped with the reason.
real: setup
	@$(BIN)/python -m tests.real

# The console in Chromium, driven by Playwright; skipped without Chromium.
browser: setup
	@$(PIP) --require-hashes -r requirements/browser.txt
	@$(BIN)/python -m tests.browser

# Time to get the status of a hundred real hosts, thirty of them dead.
real/bench: setup
	@$(BIN)/python -m tests.real tests/real/test_homelab_crowd.py -k status_of_a_hundred

# Many concurrent clients, and replicas on one PostgreSQL (skipped if it is not installed). LOAD_SECONDS sets the duration.
load: setup
	@$(BIN)/python -m tests.load

# The MCP project's own conformance tool and Inspector; needs npm.
conformance: setup
	@$(BIN)/python -m tests.conformance

# Other people's clients of PVE against the simulator; fetches them from npm and the package index.
clients: setup
	@$(BIN)/python -m tests.clients

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

# Update the hashed requirements after a change of dependencies (needs uv).
lock:
	$(LOCK) --group dev --extra demo pyproject.toml -o requirements/dev.txt
	$(LOCK) --group demo --extra demo -c requirements/dev.txt pyproject.toml -o requirements/demo.txt
	$(LOCK) --group pyproject.toml:browser -c requirements/dev.txt -o requirements/browser.txt
	$(LOCK) --extra demo --extra postgres pyproject.toml -o requirements/runtime.txt

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
