import importlib.util, sys
import pytest
from tests.homelab.test_services_ansible import TEMPLATE, given, lab, there
pytestmark = pytest.mark.anyio

async def test_vars(tmp_path, there):
    owned = tmp_path / "owned"
    async with lab(tmp_path) as built:
        try:
            print(await built.quorate.call("ansible_check", **given(there, colour='{{ lookup("pipe", "touch %s") }}' % owned), tags=["note"]))
        finally:
            assert not owned.exists()

async def test_user(tmp_path, there):
    owned = tmp_path / "owned"
    async with lab(tmp_path) as built:
        await built.quorate.facts("host_update", host="nas", user='{{ lookup("pipe", "touch %s") }}' % owned)
        print(await built.quorate.call("ansible_check", **given(there), tags=["note"]))
        assert not owned.exists()
