from tests.real.test_homelab_crowd import *
from tests.real.homelab_crowd import *
from tests.real.test_homelab_map import picture
import asyncio

async def test_x(homelab, crowd, tmp_path):
    known = crowd.known_hosts() + "".join(h.known_hosts for h in homelab.hosts.values())
    async with serving(homelab, tmp_path, known=known) as quorate:
        await quorate.facts("network_discover", hosts=[*homelab.hosts, *crowd.addresses[:6]])
        await quorate.facts("network_scan", targets=["10.79.0.4-9", OURS_IN_LAN], ports=[22, 80])
        data = await picture(quorate)
        await asyncio.to_thread(Path("/tmp/9f-big.png").write_bytes, data)
