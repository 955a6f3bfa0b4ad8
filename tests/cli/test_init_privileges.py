"""A token with the privileges that `quorate init` grants for a level and a toolset can use every tool in it."""

from __future__ import annotations

from itertools import islice

import pytest

from pve_simulator.access.directory import Token, User
from quorate.cli.grants import least_privileges
from quorate.config import Access
from quorate.operations.privileges import describe_withheld
from quorate.operations.registry import TOOLSETS, operations
from tests.generators import examples
from tests.generators.population import CONTENT, populate
from tests.generators.read_arguments import read_arguments
from tests.rigs.mcp_session import rig, second_server, text_of

pytestmark = pytest.mark.anyio

GRANTED = [name for name in TOOLSETS if name != "api"]
LEVELS = [("9.1.8", "admin"), ("9.1.8", "operate"), ("9.1.8", "read"), ("8.4.14", "admin"), ("8.4.14", "operate")]
NAMED = {("read", "backup_show"), ("read", "node_inspect")}
"""What init names instead of granting."""
ALSO_NEEDS = {"image_to_template": "provision", "backup_file_restore": "inside"}
"""Tools that need what init grants for another toolset, too: it is not granted to those who choose only theirs."""


@pytest.mark.thorough
@pytest.mark.parametrize("most", [1, 8])
@pytest.mark.parametrize(("version", "level"), LEVELS)
async def test_whatever_root_can_do_with_a_listed_tool_the_token_can_do(tmp_path, version, level, most):
    """With up to `most` examples of each change."""
    async with rig(tmp_path, version=version, in_memory=True) as quorate:
        await populate(quorate)
        image = tmp_path / "tiny.iso"
        image.write_bytes(CONTENT)
        calls = {
            name: [
                {**example, "dry_run": True} for example in islice(examples(operation, quorate.sim.world, image), most)
            ]
            if operation.changes
            else read_arguments(operation, quorate.sim.world)
            for name, operation in operations(GRANTED).items()
        }
        allowed = 0
        for toolset in [*GRANTED, *((operations()[name].toolset, other) for name, other in ALSO_NEEDS.items())]:
            chosen = [toolset] if isinstance(toolset, str) else list(toolset)
            token = token_for(quorate, version, level, *chosen)
            async with second_server(quorate, quorate.audit_file, token=token, access=Access(level)) as weak:
                for name in operations(chosen[:1]):
                    if name in ALSO_NEEDS and ALSO_NEEDS[name] not in chosen:
                        continue
                    for arguments in calls[name]:
                        if "startup" in str(arguments):  # PVE wants Sys.Modify: it changes how the node starts
                            continue
                        answer = await weak.submit(name, arguments)
                        allowed += not answer.is_error
                        if answer.is_error and "is refused at access level" not in text_of(answer):
                            by_root = await quorate.submit(name, arguments)
                            assert by_root.is_error or (level, name) in NAMED, f"{name} {arguments}: {text_of(answer)}"
        assert allowed > 40


def token_for(quorate, version, level, *toolsets):
    """A new user's token, with just what a level needs for these toolsets."""
    access, user = quorate.sim.world.access, f"{'-'.join(toolsets)}@pve"
    access.users[user] = User(user, tokens={"mcp": Token("0badc0de-0000-4000-8000-00000000cafe", privsep=False)})
    for number, (path, privileges) in enumerate(least_privileges(level, int(version[0]), list(toolsets)).items()):
        role = f"{'-'.join(toolsets)}-{number}"
        access.custom_roles[role] = privileges
        access.grant(path, role, user)
    access.invalidate_cache()
    return f"{user}!mcp"


def test_what_the_read_level_leaves_out_is_named():
    said = " ".join(describe_withheld("read", GRANTED))
    assert "to see the pending updates of nodes: Sys.Modify on /nodes" in said
    assert "VM.Backup on /vms" in said
    assert describe_withheld("read", ["cluster"]) == []
    assert describe_withheld("admin", GRANTED) == []
