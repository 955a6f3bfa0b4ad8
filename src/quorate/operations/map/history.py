"""What has changed on the network."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from quorate.homelab.devices.showing import shown
from quorate.homelab.devices.store import Devices, found
from quorate.homelab.home import Homelab
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import When, moment, parse_moment

DeviceRef = Annotated[int | str, Meta(description="Id, name or address")]


@operation(risk=Risk.READ)
async def network_changes(
    home: Homelab,
    device: DeviceRef | None = None,
    since: When | None = None,
    limit: Annotated[int, Meta(ge=1, le=500)] = 50,
) -> Table:
    """The history of devices, newest first: what appeared, went away, came back, and which fields changed. Load, uptime
    and the like are no changes."""
    known = (await shown(home)).devices
    wanted = known if device is None else [found(known, device)]
    begin = 0.0 if since is None else parse_moment(since, now=home.clock.time())
    told = await Devices(home.store).changes([one.id for one in wanted], since=begin, limit=limit + 1)
    rows = [
        [moment(one.time), one.device, one.name, change["path"], change["old"], change["new"]]
        for one in told[:limit]
        for change in one.changes
    ]
    table = page(("time", "device", "name", "what", "old", "new"), rows, limit=max(1, len(rows)), offset=0)
    if len(told) > limit:
        table.note = "There are older changes: ask with a higher limit, for one device, or look at them with since"
    return table
