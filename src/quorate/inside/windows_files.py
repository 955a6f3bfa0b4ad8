"""PowerShell in Windows guests: fixed scripts that answer with data, and commands started through the guest agent.

Values are passed as data, never as part of a script's text. Simple commands go straight to the agent. All others run
under a fixed script, which reads them as JSON from its input and passes the outputs on byte by byte.
"""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
from collections.abc import Mapping
from typing import Any

from quorate.documents import read_json
from quorate.hints import Advice, tools
from quorate.inside.entries import Entry, Listing, WriteTarget
from quorate.inside.transport import Command, Output, Transport
from quorate.problems import BadArgument, Conflict, GuestRefused, NotFound, Problem, ServerFailed

KEPT = 4 * 1024 * 1024

# Values are JSON in base64, which cannot end a PowerShell string; the answer has the same form, because the console
# would convert other characters to the machine's code page.
_FRAME = """$ErrorActionPreference='Stop'
$ProgressPreference=$WarningPreference='SilentlyContinue'
$v=ConvertFrom-Json ([Text.Encoding]::UTF8.GetString([Convert]::FromBase64String('%VALUES%')))
function Seconds($t){[int64]($t.ToUniversalTime()-[datetime]'1970-01-01').TotalSeconds}
try{$answer=@{value=(& {
%BODY%
})}}catch{$e=$_.Exception
if($e -is [Management.Automation.MethodInvocationException] -and $e.InnerException){$e=$e.InnerException}
$answer=@{error="$($e.Message)";kind=$e.GetType().Name}}
$json=ConvertTo-Json -InputObject $answer -Depth 6 -Compress
[Console]::Out.Write([Convert]::ToBase64String([Text.Encoding]::UTF8.GetBytes($json)))
"""
_NOT_FOUND = ("ItemNotFoundException", "FileNotFoundException", "DirectoryNotFoundException", "ServiceNotFound")
_IN_THE_WAY = ("IOException", "InvalidOperationException", "ServiceCommandException")


def powershell_command(body: str, **values: Any) -> Command:
    """`body` run by PowerShell, with `values` as the members of $v."""
    data = base64.b64encode(json.dumps(values).encode()).decode()
    return Command(powershell_argv(_FRAME.replace("%BODY%", body).replace("%VALUES%", data)))


async def run_powershell(transport: Transport, doing: str, body: str, *, seconds: float = 45.0, **values: Any) -> Any:
    """The script's answer. `doing` introduces an error: "Reading C:\\\\x"."""
    output = await transport.run(powershell_command(body, **values), seconds=seconds, keep=KEPT)
    answer = _answer(output, doing)
    if "error" in answer:
        raise _failure(doing, str(answer["error"]), str(answer.get("kind", "")))
    return answer.get("value")


def _answer(output: Output, doing: str) -> dict[str, Any]:
    try:
        answer = read_json(base64.b64decode(output.stdout.strip(), validate=True))
        if isinstance(answer, dict):
            return answer
    except (binascii.Error, ValueError):
        pass
    if output.stdout_cut:
        raise GuestRefused(f"{doing}: the answer is too long", next_step="Ask for less")
    message = (output.stderr or output.stdout).decode("utf-8", "replace").strip()[:400]
    raise ServerFailed(f"{doing}: PowerShell gave no answer", why=f"It said: {message}" if message else None)


def _failure(doing: str, message: str, kind: str) -> Problem:
    why = f"It said: {message[:400]}"
    if kind in _NOT_FOUND:
        return NotFound(f"{doing}: it does not exist", why=why)
    return (Conflict if kind in _IN_THE_WAY else GuestRefused)(f"{doing}: not possible", why=why)


# -- commands ----------------------------------------------------------------------------------------------------------

MAX_INPUT = 65536
_FOR_EVER = -1

_LAUNCH = """$ErrorActionPreference='Stop'
$ProgressPreference='SilentlyContinue'
$v=ConvertFrom-Json ([Console]::In.ReadToEnd())
$i=New-Object Diagnostics.ProcessStartInfo
$i.FileName=$v.program;$i.Arguments=$v.arguments;$i.UseShellExecute=$false
$i.RedirectStandardInput=$true;$i.RedirectStandardOutput=$true;$i.RedirectStandardError=$true
if($v.cwd){$i.WorkingDirectory=$v.cwd}
foreach($p in $v.env.PSObject.Properties){$i.EnvironmentVariables[$p.Name]=[string]$p.Value}
try{$c=[Diagnostics.Process]::Start($i)}catch{[Console]::Error.WriteLine($_.Exception.Message);exit 125}
$o=$c.StandardOutput.BaseStream.CopyToAsync([Console]::OpenStandardOutput())
$e=$c.StandardError.BaseStream.CopyToAsync([Console]::OpenStandardError())
$b=[Convert]::FromBase64String($v.stdin)
try{$c.StandardInput.BaseStream.Write($b,0,$b.Length)}catch{}
try{$c.StandardInput.Close()}catch{}
if(-not $c.WaitForExit($v.limit)){taskkill.exe /T /F /PID $c.Id|Out-Null}
$c.WaitForExit();$o.Wait();$e.Wait()
exit $c.ExitCode
"""
_WRITE = """$ErrorActionPreference='Stop'
$v=ConvertFrom-Json ([Console]::In.ReadToEnd())
try{$f=[IO.File]::Open($v.path,$v.how,'Write')
$b=[Convert]::FromBase64String($v.data);$f.Write($b,0,$b.Length);$f.Close()
}catch{[Console]::Error.WriteLine($_.Exception.Message);exit 1}
"""
# The exit code of the last program, else whether the last PowerShell command succeeded.
_CODE = "\n$quorateWorked=$?;if($LASTEXITCODE){exit $LASTEXITCODE}elseif(-not $quorateWorked){exit 1}"
_PLAIN = "$ProgressPreference='SilentlyContinue';[Console]::OutputEncoding=[Text.Encoding]::UTF8\n"


def shell_command(text: str) -> tuple[str, ...]:
    """A text for PowerShell to run."""
    return powershell_argv(_PLAIN + text + _CODE)


def launch_command(command: Command, limit: float | None) -> tuple[tuple[str, ...], str]:
    """The program for the agent to start, and its input."""
    if command.user:
        raise BadArgument(
            "Commands in Windows guests run as the agent's user",
            why="That is SYSTEM, which can become another user only with that user's password",
            next_step="Omit user",
        )
    if any("\0" in part for part in (*command.argv, *command.env, *command.env.values())):
        raise BadArgument("A command cannot contain NUL characters", next_step="Pass such data as stdin")
    if not command.argv or not command.argv[0]:
        raise BadArgument("The command has no program", next_step="Start it with the name of a program")
    plain = not (command.env or command.cwd or limit is not None) and all(part.isascii() for part in command.argv)
    if plain and command.stdin.isascii() and b"\0" not in command.stdin and len(command.stdin) <= MAX_INPUT:
        return command.argv, command.stdin.decode("ascii")
    values = {
        "program": command.argv[0],
        "arguments": subprocess.list2cmdline(command.argv[1:]),
        "cwd": command.cwd or "",
        "env": dict(command.env),
        "stdin": base64.b64encode(command.stdin).decode(),
        "limit": _FOR_EVER if limit is None else max(1, round(limit * 1000)),
    }
    return powershell_argv(_LAUNCH), _require_fit(json.dumps(values))


def write_command(path: str, data: str, *, append: bool) -> Command:
    """Writes or appends `data`, which is base64, to a file."""
    values = {"path": path, "data": data, "how": "Append" if append else "Create"}
    return Command(powershell_argv(_WRITE), stdin=_require_fit(json.dumps(values)).encode())


def taskkill_argv(pid: int) -> tuple[str, ...]:
    """Kills a process with all its children; Windows cannot terminate programs without a window gracefully."""
    return ("taskkill.exe", "/T", "/F", "/PID", str(pid))


def powershell_argv(script: str) -> tuple[str, ...]:
    encoded = base64.b64encode(script.encode("utf-16-le")).decode()
    return ("powershell.exe", "-NoProfile", "-NonInteractive", "-OutputFormat", "Text", "-EncodedCommand", encoded)


def _require_fit(text: str) -> str:
    if len(text) > MAX_INPUT:
        raise BadArgument(
            "The command and its input are too long for the guest agent",
            why=f"It takes {MAX_INPUT // 1024} KiB",
            next_step=Advice("Write the input to a file first", tools.guest_file_write),
        )
    return text


MAX_LISTED = 5000

_TELL = """function Tell($i){@{name=$i.Name;folder=[bool]$i.PSIsContainer;size=$(if($i.PSIsContainer){0}else{$i.Length})
modified=Seconds $i.LastWriteTimeUtc;attributes="$($i.Attributes)";target="$($i.Target)"
link=[bool]($i.LinkType -and ($i.Attributes -band [IO.FileAttributes]::ReparsePoint))}}
"""
_STAT = (
    _TELL
    + """$i=Get-Item -LiteralPath $v.path -Force
$t=Tell $i
$t.owner=$(try{(Get-Acl -LiteralPath $v.path).Owner}catch{''})
$t"""
)
_LIST = (
    _TELL
    + """$i=Get-Item -LiteralPath $v.path -Force
if(-not $i.PSIsContainer){@{folder=$false}}else{
$all=@(Get-ChildItem -LiteralPath $v.path -Force|Select-Object -First ($v.most+1)|ForEach-Object{Tell $_})
@{folder=$true;cut=($all.Count -gt $v.most);entries=@($all|Select-Object -First $v.most)}}"""
)
_PREPARE = """$f=[IO.Path]::GetDirectoryName($v.path)
if($v.parents){[void][IO.Directory]::CreateDirectory($f)}
if([IO.Directory]::Exists($v.path)){@{folder=$true}}
elseif(-not [IO.Directory]::Exists($f)){throw (New-Object IO.DirectoryNotFoundException("no folder $f"))}else{
$old=$null
if([IO.File]::Exists($v.path)){$old=([IO.FileInfo]$v.path).Length}
$temporary=''
if($old -eq $null -or -not $v.append){
$temporary=[IO.Path]::Combine($f,'.quorate-'+[Guid]::NewGuid().ToString('N'))
[IO.File]::Create($temporary).Dispose()
if($old -ne $null){Set-Acl -LiteralPath $temporary -AclObject (Get-Acl -LiteralPath $v.path)}}
@{folder=$false;old=$old;temporary=$temporary}}"""
_FINISH = """if(([IO.FileInfo]$v.temporary).Length -ne $v.size){
throw (New-Object IO.IOException('the file did not arrive as a whole'))}
if([IO.File]::Exists($v.path)){[IO.File]::Replace($v.temporary,$v.path,[NullString]::Value)}
else{[IO.File]::Move($v.temporary,$v.path)}"""
_DISCARD = "Remove-Item -LiteralPath $v.path -Force -ErrorAction SilentlyContinue"


async def stat_path(transport: Transport, path: str) -> Entry:
    return _entry(await run_powershell(transport, f"Reading the status of {path}", _STAT, path=path))


async def list_folder(transport: Transport, path: str) -> Listing:
    answer = await run_powershell(transport, f"Listing {path}", _LIST, path=path, most=MAX_LISTED)
    if not answer["folder"]:
        raise Conflict(
            f"{path} is a file, not a folder", next_step=Advice("Read it", tools.guest_path_stat, tools.guest_file_read)
        )
    return Listing([_entry(item) for item in answer["entries"]], bool(answer["cut"]))


def _entry(item: Mapping[str, Any]) -> Entry:
    return Entry(
        name=str(item["name"]).encode("utf-8", "replace"),
        type="link" if item["link"] else "folder" if item["folder"] else "file",
        size=int(item["size"]),
        modified=float(item["modified"]),
        mode=str(item["attributes"]),
        owner=str(item.get("owner") or ""),
        target=str(item["target"] or "") if item["link"] else "",
    )


async def prepare(transport: Transport, path: str, *, parents: bool, append: bool) -> WriteTarget:
    """Create missing folders if requested, and a temporary file with the permissions of the existing one."""
    answer = await run_powershell(transport, f"Writing {path}", _PREPARE, path=path, parents=parents, append=append)
    if answer["folder"]:
        raise Conflict(f"{path} is a folder, not a file", next_step="Give the path of a file in it")
    old = None if answer["old"] is None else Entry(b"", "file", int(answer["old"]), 0.0)
    return WriteTarget(path, str(answer["temporary"] or ""), old)


async def finish(transport: Transport, target: WriteTarget, *, size: int) -> None:
    """Move the temporary file over the target, which keeps its permissions."""
    await run_powershell(
        transport, f"Writing {target.path}", _FINISH, path=target.path, temporary=target.temporary, size=size
    )


async def discard(transport: Transport, path: str) -> None:
    await run_powershell(transport, f"Removing {path}", _DISCARD, path=path)


def refuse_ownership(owner: str | None, mode: str | None) -> None:
    if owner or mode:
        raise BadArgument(
            "mode and owner are not supported on Windows",
            next_step=Advice("Omit them, and run icacls", tools.guest_exec),
        )
