"""PowerShell in Windows guests: fixed scripts that answer with data, and commands started through the guest agent.

Values are passed as data, never as part of a script's text. Simple commands go straight to the agent. All others run
under a fixed script, which reads them as JSON from its input and passes the outputs on byte by byte.
"""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
from typing import Any

from quorate.documents import read_json
from quorate.hints import GUEST_FILE_WRITE, Advice
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
    said = (output.stderr or output.stdout).decode("utf-8", "replace").strip()[:400]
    raise ServerFailed(f"{doing}: PowerShell gave no answer", why=f"It said: {said}" if said else None)


def _failure(doing: str, said: str, kind: str) -> Problem:
    why = f"It said: {said[:400]}"
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
    given = {
        "program": command.argv[0],
        "arguments": subprocess.list2cmdline(command.argv[1:]),
        "cwd": command.cwd or "",
        "env": dict(command.env),
        "stdin": base64.b64encode(command.stdin).decode(),
        "limit": _FOR_EVER if limit is None else max(1, round(limit * 1000)),
    }
    return powershell_argv(_LAUNCH), _require_fit(json.dumps(given))


def write_command(path: str, data: str, *, append: bool) -> Command:
    """Writes or appends `data`, which is base64, to a file."""
    given = {"path": path, "data": data, "how": "Append" if append else "Create"}
    return Command(powershell_argv(_WRITE), stdin=_require_fit(json.dumps(given)).encode())


def taskkill_argv(pid: int) -> tuple[str, ...]:
    """Kills a process with all its children; Windows cannot terminate programs without a window gracefully."""
    return ("taskkill.exe", "/T", "/F", "/PID", str(pid))


def powershell_argv(script: str) -> tuple[str, ...]:
    encoded = base64.b64encode(script.encode("utf-16-le")).decode()
    return ("powershell.exe", "-NoProfile", "-NonInteractive", "-OutputFormat", "Text", "-EncodedCommand", encoded)


def _require_fit(given: str) -> str:
    if len(given) > MAX_INPUT:
        raise BadArgument(
            "The command and its input are too long for the guest agent",
            why=f"It takes {MAX_INPUT // 1024} KiB",
            next_step=Advice("Write the input to a file first", GUEST_FILE_WRITE),
        )
    return given
