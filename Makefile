# Every target works on a fresh machine with python3.11+, make and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test thorough conformance load real check bench docs mcpb lock clean

setup: $(READY)

$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Quorate needs Python 3.11 or newer; set PYTHON=python3.12, say."; exit 1; }
	@echo "Setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

demo: setup
	@$(BIN)/quorate demo

test: setup
	@$(BIN)/python -m pytest -n auto --dist worksteal

# What takes minutes: every tool under every fault, secrets looked for everywhere, the full width of what `make test`
# only samples.
thorough: setup
	@$(BIN)/python -m pytest -n auto --dist worksteal -m thorough

# With real machines (OpenSSH, LXC, QEMU) in namespaces of their own; needs root and Debian, else it skips and says why.
real: setup
	@$(BIN)/python -m tests.real

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
	uv pip compile --universal --generate-hashes --no-header --extra postgres pyproject.toml -o requirements/runtime.txt

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
