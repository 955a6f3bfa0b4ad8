"""The command `pve-simulator`: a cluster that runs until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pve_simulator import __version__

if TYPE_CHECKING:  # imported on use, so that --help is quick
    from pve_simulator.clock import Clock
    from pve_simulator.pbs.server import BackupServer
    from pve_simulator.simulator import SimulatedCluster

_FAILED = 2
_DATASTORE = "main"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="pve-simulator",
        description="Run a simulated Proxmox VE cluster. When it is ready, it prints one line of JSON that says how to "
        "reach it; it runs until you stop it.",
    )
    parser.add_argument("--version", action="version", version=f"pve-simulator {__version__}")
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        if options.schema:
            from pve_simulator.world_file import schema

            sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
            return 0
        run(options)
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
    parser.add_argument(
        "--speed",
        metavar="X",
        type=float,
        default=1.0,
        help="speed of time (default: 1); with 0 it stands until the control API turns the clock",
    )
    parser.add_argument("--world", metavar="FILE", help="a cluster described in YAML or JSON, or `stock`")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of such a file, and end")
    parser.add_argument(
        "--token", metavar="TOKEN", help="USER@REALM!NAME=SECRET with a UUID as secret, not a generated one"
    )
    parser.add_argument("--cert", metavar="FOLDER", help="keep the certificate there; created at the first start")
    parser.add_argument(
        "--control",
        metavar="PORT",
        type=int,
        nargs="?",
        const=0,
        help="serve the control API on loopback, without authentication (default: off)",
    )
    parser.add_argument(
        "--pbs", metavar="PORT", type=int, nargs="?", const=0, help="also run a simulated Proxmox Backup Server"
    )
    parser.add_argument("--ssh", action="store_true", help="also answer SSH on loopback")
    parser.add_argument(
        "--fault", metavar="FAULT", action="append", default=[], help="a fault to inject; may be repeated"
    )


def run(options: argparse.Namespace) -> None:
    """Run a cluster until SIGINT or SIGTERM. Raises ValueError or OSError if an option has an invalid value."""
    asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    from pve_simulator.clock import ManualClock, RealClock

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    clock = RealClock(options.speed) if options.speed else ManualClock()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(_cluster(options, clock))
        names = ["url", "ca_file", "fingerprint", "token_id", "token_secret", "node"]
        names += ["urls"] if options.endpoints > 1 else []
        names += ["ssh_ports", "ssh_key_file", "ssh_known_hosts"] if options.ssh else []
        ready: dict[str, object] = {name: getattr(cluster, name) for name in names}
        if options.pbs is not None:
            ready["pbs"] = await _start_backup_server(stack, options, clock, cluster)
        if options.control is not None:
            from pve_simulator.control import ControlServer

            control = await stack.enter_async_context(ControlServer(cluster, options.control))
            ready["control_url"] = control.url
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        await ended.wait()


def _cluster(options: argparse.Namespace, clock: Clock) -> SimulatedCluster:
    from pve_simulator.http.certificates import create_identity, lasting_identity
    from pve_simulator.simulator import SimulatedCluster
    from pve_simulator.world_file import load

    if options.world is not None and (options.nodes is not None or options.guests is not None):
        raise ValueError("--world cannot be combined with --nodes and --guests")
    return SimulatedCluster(
        listen=options.listen,
        nodes=options.nodes,
        guests=options.guests,
        seed=options.seed,
        faults=options.fault,
        version=options.pve,
        endpoints=options.endpoints,
        clock=clock,
        auth_delay=3.0 if options.speed else 0.0,  # on a clock that stands, a refused login would wait forever
        build=None if options.world is None else load(options.world).build,
        ssh=options.ssh,
        token=options.token,
        identity=create_identity if options.cert is None else lasting_identity(Path(options.cert)),
    )


async def _start_backup_server(
    stack: AsyncExitStack, options: argparse.Namespace, clock: Clock, cluster: SimulatedCluster
) -> dict[str, str]:
    """Run a backup server with the backups of the cluster's storages of that type; returns how to reach it."""
    from pve_simulator.pbs.server import BackupServer
    from pve_simulator.simulator import parse_address
    from pve_simulator.storage.backup_server import connect

    host, _ = parse_address(options.listen)
    server = BackupServer(
        listen=(host, options.pbs), clock=clock, seed=options.seed, auth_delay=bool(options.speed),
        build=_add_datastore,
    )  # fmt: skip
    await stack.enter_async_context(server)
    connect(cluster.world, server)
    names = ("url", "ca_file", "fingerprint", "token_id", "token_secret")
    return {name: getattr(server, name) for name in names} | {"datastore": _DATASTORE}


def _add_datastore(server: BackupServer) -> None:
    server.add_datastore(_DATASTORE)
