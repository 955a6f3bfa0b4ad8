"""A Proxmox VE cluster that lives in this process: the test bed, the demo and a tool of its own.

Start it with `quorate.sim.simulator.SimulatedCluster`; nothing heavy is imported here.
"""
