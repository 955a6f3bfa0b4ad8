"""Windows guests, through their agent and PowerShell."""

import base64

import pytest

from tests.rigs.mcp_session import rig
from tests.rigs.simulated_guests import VM, files, machine
from tests.rigs.windows_guest import WIN, windows

pytestmark = pytest.mark.anyio


async def test_files_are_read_and_described(tmp_path):
    async with rig(tmp_path) as quorate:
        windows(quorate)
        read = await quorate.facts("guest_file_read", guest=WIN, path="c:/Windows/system.ini")
        assert read["path"] == "C:\\Windows\\system.ini"
        assert read["content"] == "for 16-bit app support\n"
        assert "left out" in read["note"]
        facts = await quorate.facts("guest_path_stat", guest=WIN, path="C:\\Windows\\system.ini")
        assert (facts["type"], facts["size"], facts["mode"]) == ("file", 24, "Archive")
        assert facts["owner"] == "BUILTIN\\Administrators"
        assert "is a folder" in await quorate.refusal("guest_file_read", guest=WIN, path="C:\\Windows")
        assert "it does not exist" in await quorate.refusal("guest_file_read", guest=WIN, path="C:\\nope.txt")


async def test_folders_are_listed(tmp_path):
    async with rig(tmp_path) as quorate:
        windows(quorate)
        files(quorate, WIN).write("/C:\\Data\\Zählung.txt", b"1")
        rows = await quorate.rows("guest_dir_list", guest=WIN, path="C:\\Data")
        assert [(row["name"], row["type"], row["size"]) for row in rows] == [
            ("Zählung.txt", "file", 1), ("old.txt", "file", 24),
        ]  # fmt: skip
        top = await quorate.rows("guest_dir_list", guest=WIN, path="C:\\")
        assert [(row["name"], row["type"]) for row in top] == [("Data", "folder"), ("Windows", "folder")]
        assert "not a folder" in await quorate.refusal("guest_dir_list", guest=WIN, path="C:\\Data\\old.txt")


async def test_files_are_written_at_once_and_in_pieces(tmp_path):
    async with rig(tmp_path) as quorate:
        windows(quorate)
        disk = files(quorate, WIN)
        data = bytes(number % 251 for number in range(150_000))
        done = await quorate.facts(
            "guest_file_write", guest=WIN, path="C:\\Data\\big.bin", content=base64.b64encode(data).decode(),
            encoding="base64",
        )  # fmt: skip
        assert done["file"] == "made"
        assert disk.read("/C:\\Data\\big.bin") == data
        done = await quorate.facts("guest_file_write", guest=WIN, path="C:\\Data\\old.txt", content="neu: ü\r\n")
        assert done["file"] == "replaced, 24 bytes before"
        assert disk.read("/C:\\Data\\old.txt") == "neu: ü\r\n".encode()
        await quorate.facts("guest_file_write", guest=WIN, path="C:\\Data\\old.txt", content="more", append=True)
        assert disk.read("/C:\\Data\\old.txt") == "neu: ü\r\nmore".encode()
        await quorate.facts("guest_file_write", guest=WIN, path="C:\\Data\\Zählung.txt", content="1")
        assert disk.read("/C:\\Data\\Zählung.txt") == b"1"
        missing = await quorate.refusal("guest_file_write", guest=WIN, path="C:\\a\\b\\c.txt", content="x")
        assert "it does not exist" in missing
        await quorate.facts("guest_file_write", guest=WIN, path="C:\\a\\b\\c.txt", content="x", parents=True)
        assert disk.read("/C:\\a\\b\\c.txt") == b"x"
        assert not [name for name in disk.get("/").children if ".quorate" in name]


async def test_if_replacing_fails_the_old_file_stays_and_nothing_is_left_behind(tmp_path):
    async with rig(tmp_path) as quorate:
        shell = windows(quorate)
        shell.breaks["finish"] = "Access to the path 'C:\\Data\\old.txt' is denied."
        refusal = await quorate.refusal("guest_file_write", guest=WIN, path="C:\\Data\\old.txt", content="new")
        assert "is denied" in refusal
        assert files(quorate, WIN).read("/C:\\Data\\old.txt") == b"for 16-bit app support\r\n"
        assert not [name for name in files(quorate, WIN).get("/").children if ".quorate" in name]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/etc/passwd", "not an absolute Windows path"),
        ("\\\\server\\share\\x", "not an absolute Windows path"),
        ("C:x", "not an absolute Windows path"),
        ("C:\\a\\..\\b", "contains .."),
        ("C:\\a*", "is not a valid file name"),
        ("C:\\a|b", "is not a valid file name"),
        ('C:\\a"b', "is not a valid file name"),
        ("C:\\file.txt:stream", "is not a valid file name"),
        ("C:\\new\nline", "is not a valid file name"),
        ("C:\\dot.", "is not a valid file name"),
        ("C:\\a\0b", "NUL"),
    ],
)
async def test_paths_that_windows_does_not_know_are_refused(tmp_path, path, words):
    async with rig(tmp_path) as quorate:
        shell = windows(quorate)
        for tool, more in (("guest_file_read", {}), ("guest_file_write", {"content": "x"}), ("guest_dir_list", {})):
            assert words in await quorate.refusal(tool, guest=WIN, path=path, **more)
        assert shell.scripts == []


async def test_mode_and_owner_mean_nothing_there(tmp_path):
    async with rig(tmp_path) as quorate:
        windows(quorate)
        refusal = await quorate.refusal("guest_file_write", guest=WIN, path="C:\\x", content="x", mode="0644")
        assert "are not supported on Windows" in refusal


async def test_services_are_shown_and_controlled(tmp_path):
    async with rig(tmp_path) as quorate:
        shell = windows(quorate)
        rows = {row["service"]: row for row in await quorate.rows("guest_service", guest=WIN)}
        assert (rows["Spooler"]["state"], rows["Spooler"]["enabled"]) == ("active (Running)", "enabled")
        assert (rows["wuauserv"]["state"], rows["wuauserv"]["enabled"]) == ("inactive (Stopped)", "disabled")
        facts = await quorate.facts("guest_service", guest=WIN, service="spooler")
        assert (facts["service"], facts["manager"], facts["pid"]) == ("Spooler", "windows", 1200)
        assert facts["log"] == ["2026-01-15 08:00:00Z The service terminated with error 1067."]
        stopped = await quorate.facts("guest_service_control", guest=WIN, service="MSSQL$PROD", action="stop")
        assert shell.services["MSSQL$PROD"]["state"] == "Stopped"
        assert stopped["now"] == "inactive (Stopped)"
        await quorate.facts("guest_service_control", guest=WIN, service="Spooler", action="restart")
        assert shell.services["Spooler"]["pid"] == 3333
        await quorate.facts("guest_service_control", guest=WIN, service="Spooler", action="disable")
        assert shell.services["Spooler"]["start"] == "Manual"
        await quorate.facts("guest_service_control", guest=WIN, service="Spooler", action="enable")
        assert shell.services["Spooler"]["start"] == "Auto"


async def test_what_a_service_refuses_is_reported(tmp_path):
    async with rig(tmp_path) as quorate:
        shell = windows(quorate)
        shell.breaks["Spooler"] = "Service 'Print Spooler (Spooler)' cannot be stopped due to dependent services."
        refusal = await quorate.refusal("guest_service_control", guest=WIN, service="Spooler", action="stop")
        assert "dependent services" in refusal
        assert "do not support reload" in await quorate.refusal(
            "guest_service_control", guest=WIN, service="Spooler", action="reload"
        )
        assert "There is no service" in await quorate.refusal("guest_service", guest=WIN, service="nope")


async def test_the_system_and_its_network_are_described(tmp_path):
    async with rig(tmp_path) as quorate:
        windows(quorate)
        info = await quorate.facts("guest_info", guest=WIN)
        assert info["os"].startswith("Microsoft Windows")
        assert (info["uptime"], info["load"]) == (90061, "7%")
        assert info["memory"] == {"used": 3 * 1024**3, "total": 4 * 1024**3}
        network = await quorate.facts("guest_network", guest=WIN)
        assert network["usable"] == ["192.168.10.32"]
        assert (network["gateways"], network["dns"]) == (["192.168.10.1 dev Ethernet"], ["192.168.10.2"])


async def test_scripts_are_the_same_whatever_the_caller_says(tmp_path):
    async with rig(tmp_path) as quorate:
        shell = windows(quorate)
        hostile = "C:\\Data\\$(calc) `whoami` '; Remove-Item x #{}.txt"
        names = ("C:\\Data\\plain.txt", hostile, "C:\\Data\\%TEMP%.txt", "C:\\Data\\日本.txt", "C:\\Data\\--x")
        sent = []
        for path in names:
            shell.scripts.clear()
            await quorate.facts("guest_file_write", guest=WIN, path=path, content="x")
            await quorate.facts("guest_path_stat", guest=WIN, path=path)
            sent.append([script for script in shell.scripts if "[IO.File]::Open(" not in script])
        assert all(scripts == sent[0] for scripts in sent)
        assert files(quorate, WIN).read(f"/{hostile}") == b"x"


async def test_a_garbled_answer_of_powershell_is_not_an_internal_error(tmp_path):
    async with rig(tmp_path) as quorate:
        windows(quorate)

        def silent(io, _args):
            io.complain("powershell.exe : The term is not recognized")
            return 1

        machine(quorate, WIN).own_commands["powershell.exe"] = silent
        refusal = await quorate.refusal("guest_dir_list", guest=WIN, path="C:\\")
        assert "PowerShell gave no answer" in refusal
        assert "The term is not recognized" in refusal


async def test_a_guest_of_the_other_kind_wants_paths_of_its_own(tmp_path):
    async with rig(tmp_path) as quorate:
        windows(quorate)
        assert "such as C:\\" in await quorate.refusal("guest_dir_list", guest=WIN, path="/etc")
        assert "write /folder/file" in await quorate.refusal("guest_dir_list", guest=VM, path="C:\\x")
