"""A file out of a backup, by the form on a guest's page."""

from __future__ import annotations

import re
from html import unescape

import pytest

from quorate.config import Approval
from tests.rigs.console import PASSPHRASE, browser, console, form_with, forms_of
from tests.rigs.simulated_guests import files
from tests.tools.test_backup_files import CONFIG, CONTAINER, back_up

pytestmark = pytest.mark.anyio
PAGE = f"/guests/{CONTAINER}/restore-file"
PATH = "/etc/app/main.conf"


def _address(page):
    """The page of an answer, as the person sees it in the address bar."""
    return str(page.url).partition("/console")[2]


def _confirmation(page):
    return next(form for form in forms_of(page) if form.method == "post" and "csrf" in form.fields and not form.action)


async def test_a_file_is_restored_from_the_page_of_its_guest_with_the_plan_first(tmp_path):
    async with console(tmp_path, approval=Approval.NONE, ssh=True) as quorate, browser(quorate) as person:
        backup = await back_up(quorate.rig, CONTAINER, PATH, CONFIG)
        assert f'href="/console{PAGE}">Restore a file…' in (await person.get(f"/guests/{CONTAINER}")).text
        form = (await person.get(PAGE)).text
        assert f'<option value="{backup}"' in form
        plan = await person.get(f"{PAGE}?backup={backup}&path={PATH}&to=")
        new = f"{PATH}.restored-2026-01-15"
        assert f"Restore {PATH} of {backup}" in plan.text
        assert new in plan.text
        assert files(quorate.rig, CONTAINER).find(new) is None, "a plan changes nothing"
        done = await person.submit(_confirmation(plan), _address(plan))
        assert done.status_code == 200
        assert files(quorate.rig, CONTAINER).read(new) == CONFIG.encode()
        assert files(quorate.rig, CONTAINER).read(PATH) == b"broken\n"
        rows = [row for row in quorate.rig.audit() if row["tool"] == "backup_file_restore"]
        assert [row["dry_run"] for row in rows] == [True, False]


async def test_a_path_that_is_not_in_the_backup_is_said_on_the_form_which_stays_filled_in(tmp_path):
    async with console(tmp_path, ssh=True) as quorate, browser(quorate) as person:
        backup = await back_up(quorate.rig, CONTAINER, PATH, CONFIG)
        answer = await person.get(f"{PAGE}?backup={backup}&path=/etc/app/main.cnf&to=/root/x")
        assert answer.status_code == 404
        assert "There is main.conf" in answer.text
        assert 'value="/etc/app/main.cnf"' in answer.text
        assert 'value="/root/x"' in answer.text
        assert f'<option value="{backup}" selected>' in answer.text
        plan = await person.get(f"{PAGE}?backup={backup}&path={PATH}&to=/root/x")
        back = re.search(r'href="/console([^"]+)">Back<', plan.text)
        assert back is not None
        assert f'value="{PATH}"' in (await person.get(unescape(back[1]))).text


async def test_restoring_waits_for_approval_where_changes_need_it(tmp_path):
    async with console(tmp_path, approve_changes=True, ssh=True) as quorate, browser(quorate) as person:
        quorate_files = files(quorate.rig, CONTAINER)
        quorate_files.make_directories("/etc/app")
        backup = "pbs:backup/ct/203/2026-01-14T01:00:05Z"
        plan = await person.get(f"{PAGE}?backup={backup}&path=/etc/hostname")
        refused = await person.submit(_confirmation(plan), _address(plan))
        assert refused.status_code == 409
        request = re.search(r'href="/console(/approvals/[^"]+)">Answer', refused.text)
        assert request is not None
        card = await person.get(request[1])
        assert "/etc/hostname" in card.text
        form = form_with(card, decision="approve")
        word = re.search(r"Type <b>([^<]+)</b> to approve", card.text)
        assert word is not None
        await person.submit(form, word=word[1], passphrase=PASSPHRASE)
        done = await person.submit(_confirmation(refused), _address(plan))
        assert done.status_code == 200
        assert quorate_files.find("/etc/hostname.restored-2026-01-14") is not None


async def test_the_form_is_offered_only_where_it_can_lead_somewhere(tmp_path):
    async with console(tmp_path, ssh=True) as quorate:
        await quorate.token("alice", "admin")
        reader = await quorate.token("bob", "read")
        async with browser(quorate, reader) as person:
            assert "restore-file" not in (await person.get(f"/guests/{CONTAINER}")).text
            plan = await person.get(f"{PAGE}?backup=pbs:backup/ct/203/2026-01-14T01:00:05Z&path=/etc/hostname")
            assert plan.status_code in (403, 404)
    async with console(tmp_path / "other", ssh=True) as quorate, browser(quorate) as person:
        assert "restore-file" not in (await person.get("/guests/109")).text, "its backups are archives of vzdump"
        assert "has no backup on a Proxmox Backup Server" in (await person.get("/guests/109/restore-file")).text
