"""quorate sim, quorate demo: a simulated Proxmox VE cluster, and a guided tour on one."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from quorate.cli.options import OK, command
from quorate.config import ConfigError


def add(commands: Any) -> None:
    sim = command(commands, "sim", _sim, "run a simulated Proxmox VE cluster")
    sim.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default: a free port on loopback")
    sim.add_argument("--nodes", metavar="N", type=int, help="number of nodes, instead of the small homelab")
    sim.add_argument("--guests", metavar="N", type=int, help="number of guests")
    sim.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the generated cluster (default: 0)")
    sim.add_argument("--pve", metavar="VERSION", default="9.1.8", help="PVE version to simulate (default: 9.1.8)")
    sim.add_argument("--endpoints", metavar="N", type=int, default=1, help="number of API addresses (default: 1)")
    sim.add_argument("--speed", metavar="X", type=float, default=1.0, help="speed of time (default: 1)")
    sim.add_argument("--ssh", action="store_true", help="also answer SSH on loopback")
    sim.add_argument("--fault", metavar="FAULT", action="append", default=[], help="a fault to inject; may be repeated")
    command(commands, "demo", _demo, "take a guided tour on a simulated cluster; needs no settings")


def _sim(options: argparse.Namespace) -> int:
    from quorate.sim.simulator import RunOptions, run

    chosen = RunOptions(
        listen=options.listen,
        nodes=options.nodes,
        guests=options.guests,
        seed=options.seed,
        faults=options.fault,
        version=options.pve,
        endpoints=options.endpoints,
        speed=options.speed,
        ssh=options.ssh,
    )
    try:
        asyncio.run(run(chosen))
    except (ValueError, OSError) as error:  # an invalid address, size or fault
        raise ConfigError(f"The simulated cluster cannot start: {error}.") from None
    return OK


def _demo(_: argparse.Namespace) -> int:
    from quorate.demo import tour

    return asyncio.run(tour())
