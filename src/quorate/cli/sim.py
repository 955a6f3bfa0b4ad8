"""quorate sim, quorate demo: a simulated Proxmox VE cluster, and a guided tour on one."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from quorate.cli.options import OK, command, require_simulator
from quorate.config import ConfigError


def add(commands: Any) -> None:
    summary = "run a simulated Proxmox VE cluster"
    try:
        from pve_simulator.command import add_options
    except ModuleNotFoundError:  # its options are unknown, so accept anything and say what to install
        sim = command(commands, "sim", _sim, summary, prefix_chars="\0", add_help=False)
        sim.add_argument("options", nargs="*")
    else:
        add_options(command(commands, "sim", _sim, summary))
    command(commands, "demo", _demo, "take a guided tour on a simulated cluster; needs no settings")


def _sim(options: argparse.Namespace) -> int:
    require_simulator()
    from pve_simulator.command import run

    try:
        run(options)
    except (ValueError, OSError) as error:  # an invalid address, size or fault
        raise ConfigError(f"The simulated cluster cannot start: {error}.") from None
    return OK


def _demo(_: argparse.Namespace) -> int:
    require_simulator()
    from quorate.demo import tour

    return asyncio.run(tour())
