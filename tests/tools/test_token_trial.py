"""What a token may do, asked as the token itself; and privileges that include others."""

import pytest

from pve_simulator.access.directory import Token, User
from quorate.config.policy import Policy, Rule
from tests.rigs.mcp_session import second_server

pytestmark = pytest.mark.anyio

SECRET = "0badc0de-0000-4000-8000-00000000cafe"
CI = "ci@pve!deploy"


@pytest.fixture
def token(quorate, monkeypatch):
    """A token whose secret the operator keeps in a variable; it may look at VMs and take their snapshots."""
    monkeypatch.setenv("HOMELAB_CI_TOKEN", SECRET)
    access = quorate.sim.world.access
    access.users["ci@pve"] = User("ci@pve", tokens={"deploy": Token(SECRET, privsep=False)})
    access.custom_roles["Snapper"] = frozenset({"VM.Audit", "VM.Snapshot"})
    access.grant("/vms", "Snapper", "ci@pve")
    return access


async def test_the_token_itself_is_asked_and_its_reads_are_really_made(quorate, token):
    mark = len(quorate.sim.requests)
    answer = await quorate.facts(
        "permission_audit", who=CI, secret="env:HOMELAB_CI_TOKEN", tool="snapshot_create", arguments={"guest": 108}
    )
    assert answer["allowed"] is True
    assert answer["exercised"].endswith(f"reads as {CI}")
    assert int(answer["exercised"].split()[2]) > 2
    assert all(method == "GET" for method, _ in quorate.requests_since(mark))
    assert SECRET not in str(answer)
    refused = await quorate.facts(
        "permission_audit", who=CI, secret="env:HOMELAB_CI_TOKEN", tool="guest_power",
        arguments={"guest": 108, "action": "start"},
    )  # fmt: skip
    assert refused["missing"][0]["privileges"] == ["VM.PowerMgmt"]
    text = str(await quorate.facts("permission_audit", who=CI, secret="env:HOMELAB_CI_TOKEN", guests=108))
    assert "all of role Snapper" in text


async def test_without_the_privilege_to_see_others_the_tokens_own_secret_still_answers(quorate, token, tmp_path):
    access = token
    access.users["eve@pve"] = User("eve@pve", tokens={"t1": Token(SECRET.replace("cafe", "beef"), privsep=False)})
    access.grant("/vms/108", "PVEAuditor", "eve@pve")
    question = {"who": CI, "guests": 108, "privileges": ["VM.Snapshot"]}
    async with second_server(quorate, tmp_path / "weak.jsonl", token="eve@pve!t1") as weak:
        assert "may not GET /access/permissions" in await weak.refusal("permission_audit", **question)
        answer = await weak.facts("permission_audit", secret="env:HOMELAB_CI_TOKEN", **question)
        assert answer["allowed"] is True


async def test_a_privilege_that_includes_the_requested_one_counts_and_is_named(quorate, token):
    answer = await quorate.facts("permission_audit", who="ci@pve", guests=108, privileges=["VM.Snapshot.Rollback"])
    assert answer["allowed"] is True
    assert answer["included"] == [
        "/vms/108: VM.Snapshot is held, and PVE takes it wherever it asks for VM.Snapshot.Rollback"
    ]
    rollback = {"tool": "snapshot_rollback", "arguments": {"guest": 108, "snapshot": "clean"}}
    assert (await quorate.facts("permission_audit", who="ci@pve", **rollback))["allowed"] is True


async def test_the_narrower_of_two_privileges_is_suggested_and_the_other_named(quorate, token):
    token.custom_roles["Snapper"] = frozenset({"VM.Audit"})
    answer = await quorate.facts(
        "permission_audit", who="ci@pve", tool="snapshot_rollback", arguments={"guest": 108, "snapshot": "clean"}
    )
    (lacking,) = answer["missing"]
    assert lacking["privileges"] == ["VM.Snapshot.Rollback"]
    assert lacking["or"] == ["VM.Snapshot instead of VM.Snapshot.Rollback"]


@pytest.mark.parametrize(
    ("who", "secret", "words"),
    [
        ("ci@pve", "env:HOMELAB_CI_TOKEN", "ci@pve is not a token"),
        (CI, "env:HOMELAB_OTHER", "does not hold the secret of an API token"),
        (CI, "env:HOMELAB_WRONG", "PVE does not accept ci@pve!deploy"),
        (CI, SECRET, "A secret must be a reference"),
        (CI, "env:HOMELAB_MISSING", "is not set"),
    ],
)
async def test_a_secret_that_cannot_be_used_is_explained_and_never_shown(
    quorate, token, monkeypatch, who, secret, words
):
    monkeypatch.setenv("HOMELAB_OTHER", "the password of the nas")
    monkeypatch.setenv("HOMELAB_WRONG", "0badc0de-0000-4000-8000-00000000beef")
    text = await quorate.refusal("permission_audit", who=who, secret=secret, guests=108)
    assert words in text
    assert "password of the nas" not in text
    assert "00000000beef" not in text


async def test_a_stored_secret_is_sent_only_to_the_cluster_that_its_name_contains(quorate, token):
    for reference in ("vault:nas-token", "keyring:ci", "vault:demolition-ci"):
        text = await quorate.refusal("permission_audit", who=CI, secret=reference, guests=108)
        assert "That stored secret is not named as one of the cluster demo" in text, reference
    text = await quorate.refusal("permission_audit", who=CI, secret="vault:demo-ci", guests=108)
    assert "is not named" not in text


async def test_guests_that_the_rules_hide_do_not_appear_among_what_the_token_may(quorate, token, tmp_path):
    token.grant("/vms/100", "Snapper", "ci@pve")
    hidden = Policy((Rule("no router", False, "read", vmids=(range(100, 101),)),))
    async with second_server(quorate, tmp_path / "ruled.jsonl", policy=hidden) as ruled:
        answer = await ruled.facts("permission_audit", who=CI, secret="env:HOMELAB_CI_TOKEN")
        assert "/vms/100" not in str(answer)
        assert "/vms" in str(answer)
