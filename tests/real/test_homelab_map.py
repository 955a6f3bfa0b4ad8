"""The homelab discovered, mapped, changed and mapped again: the history tells what was changed, and nothing else."""

from __future__ import annotations

import pytest

from tests.real.homelab import HomelabLab, serving

pytestmark = pytest.mark.anyio


async def test_x(homelab: HomelabLab, tmp_path):
    async with serving(homelab, tmp_path) as quorate:
        import json
        print(json.dumps(await quorate.facts("network_discover"), indent=1))
        print(json.dumps(await quorate.facts("network_discover"), indent=1))
        print(json.dumps(await quorate.facts("network_changes"), indent=1))
        for name in homelab.hosts:
            print(json.dumps(await quorate.facts("host_discover", host=name, detail=False), indent=1))
        print(json.dumps(await quorate.facts("network_map"), indent=1))
        answer = await quorate.call("network_map", format="png")
        import base64
        [png] = [base64.b64decode(b.data) for b in answer.content if b.type == "image"]
        open("/tmp/9f-map.png", "wb").write(png)
