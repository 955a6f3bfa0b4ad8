"""API tokens: the secret is shown once and stored nowhere."""

import pytest

from tests.rigs.mcp_session import rig, text_of

pytestmark = pytest.mark.anyio


async def test_the_secret_is_in_the_answer_and_nowhere_else(tmp_path, caplog):
    caplog.set_level(0)
    async with rig(tmp_path) as quorate:
        answer = await quorate.call("token_create", token="alice@pve!backup", expire="30d", comment="nightly")
        made = quorate.sim.world.access.users["alice@pve"].tokens["backup"]
        assert not answer.is_error, text_of(answer)
        assert answer.structured_content["secret"] == made.secret
        assert made.secret in text_of(answer)
        assert (made.privsep, made.comment) == (True, "nightly")
        assert made.expire == int(quorate.clock.now()) + 30 * 86400
        assert made.secret not in quorate.audit_file.read_text()
        assert made.secret not in caplog.text
        assert not any(made.secret in str(line) for line in quorate.progress)
        assert "acl_set" in answer.structured_content["next"]
        rows = await quorate.facts("access_list", kind="tokens", name="alice")
        assert made.secret not in str(rows)


async def test_a_dry_run_makes_no_token(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("token_create", token="alice@pve!backup", privsep=False, dry_run=True)
        assert "everything that alice@pve can do" in facts["warnings"][0]
        assert "backup" not in quorate.sim.world.access.users["alice@pve"].tokens


async def test_an_existing_token_gets_a_new_secret_only_when_asked(tmp_path):
    async with rig(tmp_path, version="9.2.3") as quorate:
        token = quorate.sim.world.access.users["alice@pve"].tokens["ci"]
        old = token.secret
        text = await quorate.refusal("token_create", token="alice@pve!ci")
        assert "already exists" in text
        assert "regenerate=true" in text
        facts = await quorate.facts("token_create", token="alice@pve!ci", regenerate=True)
        assert facts["secret"] == token.secret != old
        assert token.comment == "pipeline"


@pytest.mark.parametrize("version", ["8.4", "9.1"])
async def test_older_versions_cannot_renew_a_secret_and_the_refusal_names_the_alternative(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        text = await quorate.refusal("token_create", token="alice@pve!ci", regenerate=True)
        assert f"PVE {version} cannot renew a secret" in text
        assert "access_delete" in text


async def test_a_secret_lost_with_the_answer_is_admitted(tmp_path):
    async with rig(tmp_path, faults=["drop:after:POST:/access/users/*;count=1"]) as quorate:
        facts = await quorate.facts("token_create", token="alice@pve!backup")
        assert "delete the token and create it again" in facts["secret_lost"]
        assert "backup" in quorate.sim.world.access.users["alice@pve"].tokens


async def test_what_a_token_cannot_be_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "user@realm!name" in await quorate.refusal("token_create", token="alice@pve")
        assert "at least two" in await quorate.refusal("token_create", token="alice@pve!t")
        assert "There is no user" in await quorate.refusal("token_create", token="nobody@pve!x1")
        text = await quorate.refusal("token_create", token="alice@pve!none", regenerate=True)
        assert "There is no token" in text
        own = quorate.sim.token_id
        assert "would be locked out" in await quorate.refusal("token_create", token=own, regenerate=True)
