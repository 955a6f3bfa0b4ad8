"""The command `pve-simulator`: a cluster that runs until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence

from pve_simulator import __version__

_FAILED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="pve-simulator",
        description="Run a simulated Proxmox VE cluster. When it is ready, it prints one line of JSON that says how to "
        "reach it; it runs until you stop it.",
    )
    parser.add_argument("--version", action="version", version=f"pve-simulator {__version__}")
    add_options(parser)
    try:
        run(parser.parse_args(arguments))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"pve-simulator: The simulated cluster cannot start: {error}.\n")
        return _FAILED
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="default: a free port on loopback")
    parser.add_argument("--nodes", metavar="N", type=int, help="number of nodes, instead of the small homelab")
    parser.add_argument("--guests", metavar="N", type=int, help="number of guests")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the generated cluster (default: 0)")
    parser.add_argument("--pve", metavar="VERSION", default="9.1.8", help="PVE version to simulate (default: 9.1.8)")
    parser.add_argument("--endpoints", metavar="N", type=int, default=1, help="number of API addresses (default: 1)")
    parser.add_argument("--speed", metavar="X", type=float, default=1.0, help="speed of time (default: 1)")
    parser.add_argument("--ssh", action="store_true", help="also answer SSH on loopback")
    parser.add_argument(
        "--fault", metavar="FAULT", action="append", default=[], help="a fault to inject; may be repeated"
    )


def run(options: argparse.Namespace) -> None:
    """Run a cluster until SIGINT or SIGTERM. Raises ValueError or OSError if an option has an invalid value."""
    asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    from pve_simulator.clock import RealClock
    from pve_simulator.simulator import SimulatedCluster

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    cluster = SimulatedCluster(
        listen=options.listen,
        nodes=options.nodes,
        guests=options.guests,
        seed=options.seed,
        faults=options.fault,
        version=options.pve,
        endpoints=options.endpoints,
        clock=RealClock(options.speed),
        ssh=options.ssh,
    )
    async with cluster:
        names = ["url", "ca_file", "fingerprint", "token_id", "token_secret", "node"]
        names += ["urls"] if options.endpoints > 1 else []
        names += ["ssh_ports", "ssh_key_file", "ssh_known_hosts"] if options.ssh else []
        sys.stdout.write(json.dumps({name: getattr(cluster, name) for name in names}) + "\n")
        sys.stdout.flush()
        await ended.wait()
