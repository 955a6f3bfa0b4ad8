"""A Proxmox VE cluster for tests and demos: `pve-simulator`, the pytest fixture `pve`, or in the same process.

Start it with `pve_simulator.simulator.SimulatedCluster`; nothing heavy is imported here.
"""

__version__ = "0.1.0"
