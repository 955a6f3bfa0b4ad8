"""A task that the simulated cluster has already finished, for tools that read tasks."""

from __future__ import annotations

from quorate.sim.clock import ManualClock
from quorate.sim.simulator import SimulatedCluster

_HISTORY = SimulatedCluster(clock=ManualClock()).world.tasks.newest_first("pve1")
PAST_TASK = next(str(task.upid) for task in _HISTORY if task.upid.type == "vzdump")
