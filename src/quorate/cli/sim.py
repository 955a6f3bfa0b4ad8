"""quorate sim, quorate demo: a simulated Proxmox VE cluster, and a guided tour on one."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from quorate.cli.options import OK, add_command, require_simulator
from quorate.config import ConfigError


def add(commands: Any) -> None:
    try:
        from pve_simulator.command import add_options
    except ModuleNotFoundError:  # its options are unknown, so accept anything and say what to install
        sim = add_command(commands, "sim", _sim, prefix_chars="\0", add_help=False)
        sim.add_argument("options", nargs="*")
    else:
        add_options(add_command(commands, "sim", _sim))
    add_command(commands, "demo", _demo)


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
