import json, time, asyncio
import pytest
from tests.real.ways import *
from tests.driving import text_of
pytestmark = pytest.mark.anyio

@pytest.mark.parametrize("way", ["pct","openrc","agent"])
async def test_x(lab, tmp_path, way):
    lab.vm
    t=time.time()
    async with reached(lab, way, tmp_path) as inside:
        def tick(x):
            nonlocal t
            print(way, f"{time.time()-t:.2f}", (x if isinstance(x,str) else json.dumps(x))[:700]); t=time.time()
        async def ex(*a, **k):
            r = await inside.quorate.call("guest_exec", guest=inside.vmid, command=a[0], **k)
            tick(("ERR " if r.is_error else "") + text_of(r))
            return r.structured_content
        tick("open")
        await ex("head -c 10000000 /dev/zero | tr '\\0' x")
        await ex("yes 0123456789", timeout=2)
        await ex("yes 0123456789", timeout=2, max_output=1000000)
        await ex("sleep 4711 & sleep 4711", timeout=1)
        tick(str(await inside.running("sleep 4711")))
        await ex(["nosuch"])
        await ex(["/etc/passwd"])
        await ex(["true"], cwd="/nosuch")
        await ex(["true"], user="nosuch")
        await ex(["md5sum"], stdin="é€x"*100000)
        r = await ex("echo begun; sleep 4712; echo never", wait=0)
        job = r["job"]
        tick(await inside.quorate.facts("guest_job"))
        tick(await inside.quorate.facts("guest_job", action="poll", job=job))
        tick(await inside.quorate.facts("guest_job", action="stop", job=job))
        tick(str(await inside.running("sleep 4712")))
        tick(await inside.quorate.facts("guest_job", action="poll", job=job))
        tick(await inside.quorate.facts("guest_job"))
        async def one(n):
            return (await inside.exec(["echo", str(n)]))["stdout"] == f"{n}\n"
        r = await asyncio.gather(*(one(n) for n in range(10)), return_exceptions=True)
        tick(str(r))
        calling = asyncio.ensure_future(inside.exec("sleep 4713 & sleep 4713"))
        await inside.there("sleep 4713")
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await inside.gone("sleep 4713")
        tick("cancelled")
    tick("closed")
