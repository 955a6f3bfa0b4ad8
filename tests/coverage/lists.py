"""Looks at what the product lists and tells, against what the world holds or PVE itself says."""

from __future__ import annotations

from quorate.sim.clock import ManualClock
from quorate.sim.simulator import SimulatedCluster

_HISTORY = SimulatedCluster(clock=ManualClock()).world.tasks.newest_first("pve1")
PAST_TASK = next(str(task.upid) for task in _HISTORY if task.upid.type == "vzdump")
