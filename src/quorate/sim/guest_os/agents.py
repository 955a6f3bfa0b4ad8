"""Which agent answers for which VM."""

from __future__ import annotations

from quorate.sim.guest_os.agent import Agent
from quorate.sim.guest_os.machine import Machines
from quorate.sim.guest_os.simulated_agent import SimulatedAgent
from quorate.sim.guests import Guest
from quorate.sim.world import World


class Agents:
    """The agents of all VMs: simulated ones, unless another was put in a VM's place with `attach`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._attached: dict[int, Agent] = {}

    def of(self, guest: Guest) -> Agent:
        return self._attached.get(guest.vmid) or SimulatedAgent(self._world.part(Machines).of(guest))

    def attach(self, vmid: int, agent: Agent) -> None:
        """Let this agent answer for the VM from now on. Whether the VM runs is still the world's to say."""
        self._attached[vmid] = agent
