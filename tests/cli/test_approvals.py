"""The operator's side of an approval, at a real terminal."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping

import pytest

from quorate.pve.connection import SystemClock
from quorate.state.approvals import Approvals, Remark, RemarkKind, Request
from quorate.state.store import open_store
from tests.rigs.processes import completed
from tests.rigs.terminal import Terminal, terminal

PASSPHRASE = "correct horse battery"


def pending(
    environ: Mapping[str, str],
    summary: str = "Delete vm 100 web01",
    remarks: tuple[str, ...] = (),
    digest: str = "d" * 64,
) -> str:
    async def ask() -> str:
        async with open_store(environ["QUORATE_STATE"], clock=SystemClock()) as store:
            request = Request(
                "stdio:client",
                "home",
                "guest_delete",
                "destroy",
                digest,
                "vm 100 web01",
                summary,
                (),
                tuple(Remark(RemarkKind.OTHER, text) for text in remarks),
                targets=("home: guest 100",),
            )
            return (await Approvals(store).ask(request)).id

    return asyncio.run(ask())


def deny(environ: Mapping[str, str], id: str, reason: str) -> None:
    async def answer() -> None:
        async with open_store(environ["QUORATE_STATE"], clock=SystemClock()) as store:
            await Approvals(store).answer(id, False, "boss", reason)

    asyncio.run(answer())


def state_of(environ: Mapping[str, str], id: str) -> str:
    async def look() -> str:
        async with open_store(environ["QUORATE_STATE"], clock=SystemClock()) as store:
            approval = await Approvals(store).get(id)
            assert approval is not None
            return approval.state.value

    return asyncio.run(look())


def set_passphrase(environ: Mapping[str, str]) -> None:
    with terminal("approvals", "passphrase", environ=environ) as screen:
        screen.expect("New passphrase (at least 12 characters):")
        screen.type(PASSPHRASE)
        screen.expect("Repeat it:")
        screen.type(PASSPHRASE)
        assert screen.end() == 0


def answer(screen: Terminal, *tries: str) -> int:
    for line in tries:
        screen.expect("Operator's passphrase:")
        screen.type(line)
    return screen.end()


def plainly(environ: Mapping[str, str], *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Without any terminal, as an agent's shell would run it."""
    return completed(*arguments, environ=environ, typed=typed)


def test_the_operator_approves_with_the_passphrase(environ: Mapping[str, str]) -> None:
    set_passphrase(environ)
    asked = pending(environ)
    with terminal("approvals", "approve", asked, environ=environ) as screen:
        assert answer(screen, PASSPHRASE) == 0
        assert "Delete vm 100 web01" in screen.text
        assert PASSPHRASE not in screen.text
    assert state_of(environ, asked) == "approved"


def test_the_whole_plan_is_shown_with_what_is_to_be_known(environ: Mapping[str, str]) -> None:
    remarks = ("vm 100 web01 is running on pve1", "disks: scsi0: local-lvm:vm-100-disk-0\n\x1b[2Japproved: yes")
    shown = plainly(environ, "approvals", "show", pending(environ, remarks=remarks)).stdout
    assert "           - vm 100 web01 is running on pve1" in shown.splitlines()
    assert "\x1b" not in shown
    assert not any(line.startswith("approved") for line in shown.splitlines())


def test_the_list_describes_the_state_of_each_request_and_what_is_missing(environ: Mapping[str, str]) -> None:
    pending(environ)
    listed = plainly(environ, "approvals")
    assert "waits for an answer" in listed.stdout
    assert "quorate approvals passphrase" in listed.stderr
    set_passphrase(environ)
    assert plainly(environ, "approvals").stderr == ""


def test_a_wrong_passphrase_answers_nothing(environ: Mapping[str, str]) -> None:
    set_passphrase(environ)
    asked = pending(environ)
    with terminal("approvals", "approve", asked, environ=environ) as screen:
        assert answer(screen, "wrong one", "wrong two", "wrong three") == 1
    assert state_of(environ, asked) == "pending"


def test_the_operator_denies_with_a_reason(environ: Mapping[str, str]) -> None:
    set_passphrase(environ)
    asked = pending(environ)
    with terminal("approvals", "deny", asked, "--reason", "still in use", environ=environ) as screen:
        assert answer(screen, PASSPHRASE) == 0
    assert state_of(environ, asked) == "denied"


def test_without_a_passphrase_nothing_can_be_approved(environ: Mapping[str, str]) -> None:
    asked = pending(environ)
    with terminal("approvals", "approve", asked, environ=environ) as screen:
        assert screen.end() == 1
        assert "quorate approvals passphrase" in screen.text
    assert state_of(environ, asked) == "pending"


@pytest.mark.parametrize("way", ["pipe", "environment"])
def test_neither_a_pipe_nor_a_variable_replaces_the_operator(environ: Mapping[str, str], way: str) -> None:
    set_passphrase(environ)
    asked = pending(environ)
    variables = {**environ, "QUORATE_PASSPHRASE": PASSPHRASE} if way == "environment" else environ
    done = plainly(variables, "approvals", "approve", asked, typed=f"{PASSPHRASE}\n" * 5)
    assert done.returncode != 0
    assert "typed at a terminal" in done.stderr
    assert state_of(environ, asked) == "pending"


def test_changing_the_passphrase_needs_the_present_one(environ: Mapping[str, str]) -> None:
    set_passphrase(environ)
    with terminal("approvals", "passphrase", environ=environ) as screen:
        for prompt, typed in (("Current", "not this one"), ("New", "another long one"), ("Repeat", "another long one")):
            screen.expect(prompt)
            screen.type(typed)
        assert screen.end() == 1
    asked = pending(environ)
    with terminal("approvals", "approve", asked, environ=environ) as screen:
        assert answer(screen, PASSPHRASE) == 0


def test_the_list_cannot_be_drawn_upon_by_a_guests_name(environ: Mapping[str, str]) -> None:
    pending(environ, "Delete vm 100 \x1b[2Jweb\u202e01\nApproved: yes")
    shown = plainly(environ, "approvals").stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert len(shown.splitlines()) == 1


def test_an_unknown_id_is_reported(environ: Mapping[str, str]) -> None:
    set_passphrase(environ)
    done = plainly(environ, "approvals", "show", "nope")
    assert done.returncode == 1
    assert "There is no approval nope" in done.stderr


def test_ctrl_c_at_the_passphrase_answers_nothing_and_ends_at_once(environ: Mapping[str, str]) -> None:
    set_passphrase(environ)
    asked = pending(environ)
    with terminal("approvals", "approve", asked, environ=environ) as screen:
        screen.expect("Operator's passphrase:")
        assert screen.interrupt() == 130
        assert "Traceback" not in screen.text
    assert state_of(environ, asked) == "pending"


def test_an_earlier_denial_is_the_first_line_of_the_request_and_follows_it_in_the_list(
    environ: Mapping[str, str],
) -> None:
    deny(environ, pending(environ), "still in use\n\x1b[2J")
    again = pending(environ, digest="e" * 64)
    said = "You denied this just now: still in use"
    shown, listed = (plainly(environ, "approvals", *more).stdout for more in (("show", again), ()))
    assert shown.splitlines()[0].startswith(said)
    assert listed.splitlines()[1].strip().startswith(said)
    assert "\x1b" not in shown + listed


def test_an_answered_request_is_shown_with_its_history_and_its_journal_entry(environ: Mapping[str, str]) -> None:
    async def use() -> str:
        async with open_store(environ["QUORATE_STATE"], clock=SystemClock()) as store:
            approvals = Approvals(store)
            row = (await approvals.list())[0]
            await approvals.answer(row.id, True, "boss")
            assert await approvals.use(row.id, row.caller, row.digest, row.identity, "c0ffee")
            await approvals.record_outcome("c0ffee", "partly done")
            return row.id

    pending(environ)
    used = asyncio.run(use())
    shown = plainly(environ, "approvals", "show", used).stdout
    assert "approved, partly done" in shown
    assert "history    Approved by boss 20" in shown
    assert "Partly done 20" in shown
    assert f"`quorate audit --approval {used}`" in shown
    assert "approved, partly done" in plainly(environ, "approvals", "--all").stdout
