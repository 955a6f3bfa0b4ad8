"""quorate sim: a simulated Proxmox VE cluster."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from quorate.cli.options import OK, command
from quorate.config import ConfigError


def add(commands: Any) -> None:
    sim = command(commands, "sim", _sim, "run a simulated Proxmox VE cluster until ended")
    sim.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default: a free port on loopback")
    sim.add_argument("--nodes", metavar="N", type=int, help="a cluster of this many nodes instead of the small homelab")
    sim.add_argument("--guests", metavar="N", type=int, help="and this many guests")
    sim.add_argument("--seed", metavar="N", type=int, default=0, help="which of the possible clusters (default 0)")
    sim.add_argument("--pve", metavar="VERSION", default="9.1.8", help="the PVE version to behave as (default 9.1.8)")
    sim.add_argument("--endpoints", metavar="N", type=int, default=1, help="addresses of the cluster (default 1)")
    sim.add_argument("--speed", metavar="X", type=float, default=1.0, help="how much faster time goes (default 1)")
    sim.add_argument("--ssh", action="store_true", help="let the nodes answer SSH as well, on loopback")
    sim.add_argument("--fault", metavar="FAULT", action="append", default=[], help="a fault to inject; may be repeated")


def _sim(options: argparse.Namespace) -> int:
    from quorate.sim.cluster import RunOptions, run

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
    except (ValueError, OSError) as error:  # an address, size or fault that cannot be
        raise ConfigError(f"The simulated cluster cannot start: {error}.") from None
    return OK
