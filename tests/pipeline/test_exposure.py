"""What a surface offers beyond the default, and what it never may: more than the operator chose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorate.config import Access, Approval, Settings
from quorate.operations.registry import EVERY
from quorate.pipeline.approval import ApprovalSettings, Approver
from quorate.pipeline.caller import ALL_BY_DEFAULT, ALL_TOOLSETS, Caller, Exposure, ToolsetChoice
from quorate.pipeline.pipeline import Pipeline
from quorate.pipeline.sites import Sites, govern
from quorate.pve.connection import SystemClock
from quorate.state.approvals import Approvals
from quorate.state.journal import Journal
from quorate.state.passphrase import Passphrase
from quorate.state.store import open_store
from quorate.state.trail import open_trail

OPT_IN = "THEIR_ALLOW_EVERYTHING"
THEIRS = Caller(exposure=Exposure(ToolsetChoice.ALL_BY_DEFAULT, OPT_IN))
UNDECIDED = Settings(opt_ins=frozenset({OPT_IN}))


@pytest.fixture
def pipeline(tmp_path):
    store = open_store(str(tmp_path / "state.sqlite"), clock=SystemClock())
    approver = Approver(Approvals(store), Passphrase(store), lambda: ApprovalSettings(Approval.ASK))
    sites = Sites()
    govern(sites, UNDECIDED)
    return Pipeline(sites, Journal(open_trail(store, tmp_path / "audit.jsonl"), store), approver)


def test_all_toolsets_are_offered_only_where_the_operator_chose_none(pipeline):
    everywhere = Caller(exposure=ALL_BY_DEFAULT)
    assert pipeline.gate(everywhere).toolsets == frozenset(EVERY)
    assert len(pipeline.visible(everywhere)) > len(pipeline.visible()) > 0
    govern(pipeline.sites, replace(UNDECIDED, toolsets=("guests",)))
    assert pipeline.gate(everywhere).toolsets == frozenset({"guests"})
    assert pipeline.visible(everywhere) == pipeline.visible()


def test_a_run_reaches_every_toolset_but_no_higher_access(pipeline):
    govern(pipeline.sites, replace(UNDECIDED, toolsets=("guests",)))
    gate = pipeline.gate(Caller(exposure=ALL_TOOLSETS))
    assert (gate.toolsets, gate.access) == (frozenset(EVERY), Access.READ)


def test_an_opt_in_of_another_server_counts_on_its_own_surface_alone(pipeline):
    assert pipeline.gate(THEIRS).access is Access.ADMIN
    assert pipeline.approver_for(THEIRS).mode is Approval.NONE
    assert pipeline.approver_for(THEIRS).default_note == f"none by {OPT_IN}"
    for other in (Caller(), Caller(exposure=ALL_BY_DEFAULT), Caller(exposure=Exposure(opt_in="ANOTHER"))):
        assert pipeline.gate(other).access is Access.READ
        assert pipeline.approver_for(other).mode is Approval.ASK


def test_an_opt_in_ends_as_soon_as_the_operator_chooses_even_for_a_call_in_progress(pipeline):
    approver = pipeline.approver_for(THEIRS)
    before = approver.mode
    govern(pipeline.sites, replace(UNDECIDED, gate_chosen=True, access=Access.OPERATE))
    assert (before, approver.mode) == (Approval.NONE, Approval.ASK)
    assert pipeline.gate(THEIRS).access is Access.OPERATE
