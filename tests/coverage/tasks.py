"""A task that the simulated cluster has already finished, for tools that read tasks."""

from __future__ import annotations

from pve_simulator.clock import ManualClock
from pve_simulator.simulator import SimulatedCluster

_HISTORY = SimulatedCluster(clock=ManualClock()).world.tasks.newest_first("pve1")
PAST_TASK = next(str(task.upid) for task in _HISTORY if task.upid.type == "vzdump")
