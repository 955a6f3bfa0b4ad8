"""Starts a command through a POSIX shell, so that it can be killed together with all its children.

The shell gets one short line. The script and everything that varies come as lines on its standard input, before the
command's own input: nothing needs quoting, neither a script nor a value appears in the process list or in the log of
sudo, and nothing runs before the last line has arrived. Only ASCII is sent, because not every transport preserves other
characters. The script reports its process id and then becomes the command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quorate.problems import BadArgument
from quorate.secret import Secret

NOT_STARTED = 125
"""The exit code of the script if it cannot start; the reason is in its error output."""
NO_SUDO = 124
"""The exit code if there is no sudo to become the user."""
LONGEST_NOISE = 64 * 1024
"""What may precede the mark: output of a login shell, or the reason why the mark never came."""

# Any login shell, even csh or fish, may read it in single quotes on its command line: it contains no single quotes,
# backslashes or line breaks.
SCRIPT_FROM_INPUT = 'IFS= read -r q_s && eval "$(printf %b "$q_s")"'
"""A script for `sh -c` that runs the script in the first line of its input, as `script_line` encodes it."""

# The same holds for this one: `kill_argv` has it on a command line.
# A process may choose a name with spaces, parentheses and line breaks: numbers follow only after the last ")".
KILL_TREE = """
q_kill() { IFS=" "; q_sig=$1; q_root=$2; q_set=" $2 "; q_old=; q_all=;
for q_f in /proc/[0-9]*/stat; do
q_s=; while IFS= read -r q_r || [ -n "$q_r" ]; do q_s="$q_s$q_r "; done < "$q_f";
q_p=${q_f#/proc/}; set -- ${q_s##*") "};
[ $# -lt 4 ] || q_all="$q_all ${q_p%/stat}:$2:$3:$4";
done;
[ -n "$q_all" ] || q_all=$(ps -A -o pid= -o ppid= -o pgid= | while IFS=" " read -r q_p q_e q_r; do
printf "%s:%s:%s:0 " "$q_p" "$q_e" "$q_r"; done);
while [ "$q_old" != "$q_set" ]; do q_old=$q_set;
for q_e in $q_all; do q_p=${q_e%%:*}; q_e=${q_e#*:};
case $q_set in *" $q_p "*) continue;; esac;
case $q_set in *" ${q_e%%:*} "*) q_set="$q_set$q_p ";;
*) case ":${q_e#*:}:" in *":$q_root:"*) q_set="$q_set$q_p ";; esac;; esac;
done;
done;
for q_p in $q_set; do [ "$q_p" = "$q_me" ] || kill "-$q_sig" "$q_p"; done;
kill "-$q_sig" "-$q_root"; };
"""
# $$ is the command's own process id, also inside parentheses.
# If sudo is needed to become the user, sudo runs the same script again, which reads the remaining lines as that user:
# nothing else differs, and the time limit can kill what runs as root. The line after the user is the script for that;
# if sudo is not needed, it is skipped. $1 says whether sudo runs it, with a password (p) or without (n).
_PAST = 'echo "@quorate@ in" >&2; while IFS= read -r q_l && [ "$q_l" != @quorate@ ]; do :; done'
_LAUNCH = f"""
q_in=$1; set --; q_u=; q_c=; q_t=; q_i=; q_p=; q_fail() {{ echo "$1" >&2; exit "${{2:-125}}"; }};
q_setsid=$(command -v setsid); q_su=$(command -v su); q_sudo=$(command -v sudo);
q_past() {{ {_PAST}; }};
while IFS= read -r q_l && [ -n "$q_l" ]; do
q_v=$(printf %b. "${{q_l#?}}"); q_v=${{q_v%.}};
case $q_l in
a*) set -- "$@" "$q_v";;
e*) export "$q_v";;
t*) q_t=$q_v;;
i*) q_i=$q_v;;
p*) q_p=1;;
c*) cd -- "$q_v" || exit 125; q_c=1;;
u*) q_u=$(id -u "$q_v" 2>/dev/null) || q_fail "there is no user $q_v";
if [ "$q_u" = "$(id -u)" ]; then q_u=; elif [ "$(id -u)" = 0 ]; then q_u=$q_v;
elif [ -z "$q_sudo" ]; then q_fail "there is no sudo to become $q_v" 124;
elif [ -n "$q_p" ]; then
exec "$q_sudo" -k -S -p "@quorate@ ask " -H -u "$q_v" -- /bin/sh -c '{_PAST}; {SCRIPT_FROM_INPUT}' quorate p;
else exec "$q_sudo" -n -H -u "$q_v" -- /bin/sh -c '{SCRIPT_FROM_INPUT}' quorate n; fi;
[ -z "$q_p" ] || q_past; IFS= read -r q_l;;
esac;
done;
[ $# -gt 0 ] || q_fail "no command came";
[ -n "$q_c" ] || [ -z "$q_u$q_in" ] || cd /;
[ -z "$q_u" ] || set -- "$q_su" -s /bin/sh -c 'exec "$0" "$@"' -- "$q_u" "$@";
if [ -n "$q_t" ]; then (
trap "" TERM HUP; read -r q_me q_r < /proc/self/stat;
read -r q_r < "/proc/$$/stat"; set -- ${{q_r##*") "}}; q_born=${{20}}; q_n=0;
q_lives() {{ kill -0 $$ || return 1; read -r q_r < "/proc/$$/stat"; set -- ${{q_r##*") "}};
[ "${{20}}" = "$q_born" ]; }};
while [ "$q_n" -lt "$q_t" ]; do sleep 1; q_n=$((q_n+1)); q_lives || exit 0; done;
q_kill TERM $$; sleep 3; q_lives && q_kill KILL $$
) </dev/null >/dev/null 2>&1 & fi;
kill -0 "-$$" 2>/dev/null || [ -z "$q_setsid" ] || set -- "$q_setsid" "$@";
[ -z "$q_i" ] || {{ exec < "$q_i"; rm -f "$q_i"; }};
echo "@quorate@ $$"; echo "@quorate@ $$" >&2; exec "$@"
"""

SUDO_PROMPT = b"@quorate@ ask "
"""The prompt of sudo."""
SUDO_ACCEPTED = b"@quorate@ in\n"
"""sudo is satisfied: the input after the mark is not for sudo."""
_MARK_AFTER = b"@quorate@\n"

# Its process id is above 1; anything may be printed before it.
_MARKED = re.compile(rb"@quorate@ ([2-9]|[1-9][0-9]{1,9})\n")
_END = 'exec 2>/dev/null; q_me=; q_kill "$1" "$2"; exit 0'
_UNPRINTABLE = re.compile(rb"[^ -~]|\\")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*\$?", re.ASCII)


def _one_line(script: str) -> str:
    return " ".join(script.split("\n")).strip()


_LAUNCH_ARGV = ("sh", "-c", SCRIPT_FROM_INPUT, "quorate")
_END_ARGV = ("sh", "-c", _one_line(KILL_TREE + _END), "quorate")


@dataclass(frozen=True, slots=True)
class Launch:
    """A command for a POSIX machine: fixed arguments for its shell, everything else as standard input."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None
    limit: float | None = None
    """Seconds until it is killed from inside, even if the connection is gone."""
    stdin_file: str | None = None
    """A file on the machine with its input, which is deleted once the command has opened it."""
    password: Secret | None = None
    """The password for sudo, if that is needed to become the user."""

    @property
    def shell(self) -> tuple[str, ...]:
        return _LAUNCH_ARGV

    def lines(self) -> bytes:
        """What precedes the command's own input and follows `sudo_input`."""
        if not self.argv or not self.argv[0] or self.argv[0].startswith("-"):
            raise BadArgument("The command has no program", next_step="Start it with the name of a program")
        fields = [("t", str(max(1, round(self.limit))))] if self.limit is not None else []
        fields += [("i", self.stdin_file)] if self.stdin_file else []
        fields += [("c", self.cwd)] if self.cwd else []
        fields += [("e", f"{_variable(name)}={value}") for name, value in self.env.items()]
        fields += [("a", part) for part in self.argv]
        if self.user:
            before = _MARK_AFTER if self.password else _SCRIPT_LINE + _encode_fields([("u", _account(self.user))])
        else:
            before = b""
        return before + _SCRIPT_LINE + _encode_fields(fields) + b"\n"

    def sudo_input(self) -> bytes:
        """What precedes those lines if there is a password: they follow only after SUDO_ACCEPTED.

        Whether sudo reads the password or needs none, the rest of it is discarded up to the mark.
        """
        if not self.user or not self.password:
            return b""
        if "\n" in self.password.reveal():
            raise BadArgument("A password for sudo is one line")
        fields = _encode_fields([("p", ""), ("u", _account(self.user))])
        return _SCRIPT_LINE + fields + self.password.reveal().encode() + b"\n"

    def to_kill(self, pid: int, signal: str) -> Launch:
        """The command that kills it, as the same user: the login may not kill another user's processes."""
        return Launch(kill_argv(pid, signal), user=self.user, password=self.password)


def script_line(script: str) -> bytes:
    """The script as one line for SCRIPT_FROM_INPUT."""
    return f"{escape(script)}\n".encode("ascii")


def _encode_fields(fields: Sequence[tuple[str, str]]) -> bytes:
    return "".join(f"{letter}{escape(text)}\n" for letter, text in fields).encode("ascii")


def kill_argv(pid: int, signal: str) -> tuple[str, ...]:
    """The command that signals a process, its group, its session and all its descendants."""
    assert pid > 1
    return (*_END_ARGV, signal, str(pid))


def command_line(argv: Sequence[str]) -> str:
    """For a login shell: every argument is quoted exactly once."""
    return shlex.join(argv)


class Stream:
    """One output of a launched command: text before the mark is kept apart, then the first bytes of the rest."""

    def __init__(self, keep: int) -> None:
        self.noise = bytearray()
        self.kept = bytearray()
        self.pid: int | None = None
        self._keep = keep
        self._length = 0

    @property
    def cut(self) -> bool:
        return self._length > len(self.kept)

    def feed(self, data: bytes) -> None:
        if self.pid is not None:
            self._length += len(data)
            self.kept += data[: max(0, self._keep - len(self.kept))]
            return
        self.noise += data
        if match := _MARKED.search(self.noise):
            rest = bytes(self.noise[match.end() :])
            self.pid = int(match[1])
            del self.noise[match.start() :]
            self.feed(rest)
        elif len(self.noise) > 2 * LONGEST_NOISE:
            del self.noise[:-LONGEST_NOISE]


def escape(text: str) -> str:
    """The inverse of `printf %b`, in printable ASCII."""
    data = text.encode()
    if b"\0" in data:
        raise BadArgument("A command cannot contain NUL characters", next_step="Pass such data as stdin")
    return _UNPRINTABLE.sub(lambda match: b"\\0%03o" % ord(match[0]), data).decode("ascii")


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise BadArgument(
            f"{name!r} is not a valid name for an environment variable", next_step="Use letters, digits and _"
        )
    if name == "IFS" or name.startswith("q_"):
        raise BadArgument(
            f"The environment variable {name} cannot be set here",
            why="The script that starts the command uses IFS and names that start with q_",
            next_step=f"Set it in the command: sh -c '{name}=...; export {name}; ...'",
        )
    return name


def _account(name: str) -> str:
    if not _ACCOUNT.fullmatch(name):
        raise BadArgument(f"{name!r} is not a user name", next_step="Use letters, digits and . _ @ + -")
    return name


_SCRIPT_LINE = script_line(_one_line(KILL_TREE + _LAUNCH))
