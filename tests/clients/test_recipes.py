"""The recipes of the simulator for other languages, as docs/recipes.md has them, where their tools are installed."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.clients.programs import FLOWING, NEEDS_ANSIBLE, play, run, simulator
from tests.paths import ROOT

RECIPES = (ROOT / "packages/pve-simulator/docs/recipes.md").read_text()
MANUAL = ("--world", "stock", "--speed", "0", "--control")


def code(language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", RECIPES, re.DOTALL | re.MULTILINE)
    return str(block)


@pytest.mark.thorough  # Go compiles its HTTP library first
@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_the_recipe_for_go(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module simulator\n\ngo 1.20\n")
    (tmp_path / "simulator_test.go").write_text(code("go"))
    with simulator(tmp_path, *MANUAL):
        shown = run(tmp_path, "go", "test", "-vet=off", "-v", "./...", GOTOOLCHAIN="local", GOFLAGS="-mod=mod")
    assert "--- PASS: TestAStoppedGuestStarts" in shown


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_the_recipe_for_javascript(tmp_path: Path) -> None:
    (tmp_path / "simulator.test.mjs").write_text(code("js"))
    with simulator(tmp_path, *MANUAL) as ready:
        shown = run(tmp_path, "node", "--test", "simulator.test.mjs", NODE_EXTRA_CA_CERTS=ready["ca_file"])
    assert re.search(r"pass 2\b", shown)
    assert re.search(r"fail 0\b", shown)


@NEEDS_ANSIBLE
def test_the_recipe_for_ansible(tmp_path: Path) -> None:
    with simulator(tmp_path, *FLOWING) as ready:
        assert "failed=0" in play(tmp_path, ready, code("yaml"))


def test_the_recipe_for_terraform(tmp_path: Path) -> None:
    terraform = shutil.which("terraform") or shutil.which("tofu")
    mirror = os.environ.get("TERRAFORM_PROVIDERS")
    if terraform is None or mirror is None:
        pytest.skip("Terraform or the folder of its providers (TERRAFORM_PROVIDERS, with bpg/proxmox) is missing")
    with simulator(tmp_path, *FLOWING) as ready:
        (tmp_path / "main.tf").write_text(code("hcl").replace("https://127.0.0.1:8006", ready["url"]))
        run(tmp_path, terraform, "init", f"-plugin-dir={mirror}")
        shown = run(tmp_path, terraform, "apply", "-auto-approve", SSL_CERT_FILE=ready["ca_file"])
    assert "1 added" in shown


def test_the_command_of_the_recipe_has_options_that_exist() -> None:
    line = RECIPES.partition("pve-simulator --listen")[2].partition("> ready.json")[0]
    options = {*re.findall(r"--[a-z]+", line), "--listen"}
    shown = run(ROOT, sys.executable, "-m", "pve_simulator", "--help")
    assert len(options) == 6
    assert options <= set(re.findall(r"--[a-z]+", shown))
