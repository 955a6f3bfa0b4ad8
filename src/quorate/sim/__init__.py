"""A Proxmox VE cluster in this process, for tests, the demo and `quorate sim`.

Start it with `quorate.sim.simulator.SimulatedCluster`; nothing heavy is imported here.
"""
