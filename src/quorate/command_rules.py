"""The operator's patterns for commands inside guests and on hosts, and for files that may be written."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quorate.problems import Refused

WRITE = "write "
"""The prefix of patterns for files: `write /srv/www/*`."""
ONLY_THE_OPERATOR = "Only the operator can change that"

# The patterns are compiled at their first use: a call that runs no command does without them.
_STEERING = (
    r"(?is)PATH|CDPATH|PATHEXT|COMSPEC|PSMODULEPATH|HOME|SHELL|ENV|IFS|PS4|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|GLOBIGNORE"
    r"|(LD|DYLD|BASH|GEM|BUNDLE|NODE|NPM|GIT|PHP|JAVA|JDK|_JAVA|CARGO|RUST|DOTNET|COR|CORECLR|GCONV|GLIBC|MALLOC|XDG"
    r"|SYSTEMD|DOCKER|COMPOSE|ANSIBLE|TF|OPENSSL|SSH|SUDO|RSYNC|CVS|TAR|APT|DPKG|PIP|CURL|WGET)_.*"
    r"|(PYTHON|PERL|RUBY|LUA|LESS|MAKEF|TERMINFO|TCLLIB|KRB5_).*|KUBECONFIG|GOPATH|GOFLAGS|GOROOT|R_PROFILE.*|PHPRC"
    r"|(MAN)?PAGER|EDITOR|VISUAL|FCEDIT|BROWSER|LOCPATH|NLSPATH|TERMCAP|HOSTALIASES|CLASSPATH|MAVEN_OPTS|GRADLE_OPTS"
    r"|MFLAGS|GNUMAKEFLAGS|(HTTPS?|FTP|ALL)_PROXY|INPUTRC|ZDOTDIR|(VIM|EX)INIT|GNUPGHOME|LS_OPTIONS"
    r"|PGPASSFILE|PGSERVICEFILE|TZDIR|[A-Z]{2,}RC|.+(PATHS?|_PRELOAD|_LOADERS?|_MODULES?|_PLUGINS?|_INCLUDES?|_CONF"
    r"|_CONFIG|_CFG|_INIT|_PROFILE|_OPTS|_OPTIONS|_ARGS|_FLAGS|_PAGER|_EDITOR|_SHELL|_ASKPASS|_RSH|_(PASS)?COMMAND"
    r"|_(PASS)?CMD|_EXEC|_HOOKS?|_SCRIPTS?|_WRAPPER|_LAUNCHER|_HELPER|_PROGRAM|_BIN|(RC|CONFIG|CONF|CA|CERT)_FILE"
    r"|_BUNDLE)"
)
"""Variables that determine which program a name means, what it loads, or what else it starts.

No list of them is complete, so their usual endings count as well: BORG_RSH, RESTIC_PASSWORD_COMMAND.
"""

_CODE = (
    r"(?s)/(s?bin|lib(32|64|x32)?|boot|dev|proc|sys|run|snap)/.*"
    r"|/usr/(local/)?(s?bin|lib(32|64|x32|exec)?|share/perl5|etc)/.*|/opt/[^/]*/(s?bin|lib)/.*"
    r"|/etc/(ld\.so\.(preload|cache|conf.*)|environment|profile.*|bash.*|zsh.*|sudoers.*|cron.*|anacrontab|at\..*"
    r"|systemd/.*|init.*|rc.*|inittab|pam.*|security/.*|ssh/.*|alternatives/.*|apt/.*|udev/.*|modprobe.*|modules.*"
    r"|passwd|shadow|group|gshadow|nsswitch.*|dbus-1/.*|polkit-1/.*|network/.*|NetworkManager/.*|logrotate.*"
    r"|default/.*|local\.d/.*|conf\.d/.*|pve/.*|docker/.*|containers/.*)"
    r"|/var/spool/(cron|at).*|/var/lib/(systemd|dpkg|docker|containers)/.*|/(root|home/[^/]*)/(\..*|bin/.*)"
)
"""Files of POSIX systems that are programs, or that programs run or load implicitly."""
_WHOLE_FOLDERS = tuple(f"{folder}/*" for folder in ("", "/usr", "/usr/local", "/etc", "/var", "/opt", "/home", "/root"))
"""Folders that contain such files."""
_WINDOWS_CODE = (
    r"(?is)[a-z]:\\(windows|program files|program files \(x86\)|programdata\\microsoft)\\.*"
    r"|.*\\(startup|windowspowershell|powershell)\\.*|.*\.(lnk|url)"
)


@dataclass(frozen=True, slots=True)
class CommandRules:
    """Patterns for whole command lines: `*` matches anything, `?` one character, `[ab]` one of these.

    A command line is the arguments joined by blanks. Shell text counts as `sh -c TEXT` (`powershell TEXT` in Windows),
    so `systemctl status *` allows the program systemctl, but not a text that starts like this and continues with
    something else. A command with a working directory counts as `cd DIRECTORY && COMMAND`, a written file as
    `write PATH`.
    """

    allow: tuple[str, ...] = ()
    """If there are any, a command must match one of them."""
    deny: tuple[str, ...] = ()
    """A command that matches one of these is refused, even if allowed; for shell text, the text is matched as well."""

    def __bool__(self) -> bool:
        return bool(self.allow or self.deny)

    def objection(
        self, argv: Sequence[str], text: str | None = None, *, env: Iterable[str] = (), cwd: str | None = None
    ) -> Refused | None:
        """`text` is the caller's shell text, if any; `env` are only the names."""
        line = " ".join(argv)
        placed = f"cd {cwd} && {line}" if cwd else line
        if pattern := next((pattern for pattern in self.deny if _match((line, placed, text or line), pattern)), None):
            return self._refusal("This command is refused", pattern)
        if self.allow and not self._allowed(placed):
            hint = " A command with cwd counts as cd DIRECTORY && COMMAND;" if cwd else ""
            return Refused(
                "This command is refused",
                why=f"It is {placed[:200]} and matches none of the patterns under allow in [inside] of the "
                f"configuration: {', '.join(self.allow[:8])}",
                next_step=f"{ONLY_THE_OPERATOR}.{hint} A list of arguments is matched as such; "
                "a text for the shell counts as sh -c TEXT",
            )
        return self.environment_objection(env)

    def environment_objection(self, names: Iterable[str]) -> Refused | None:
        """A pattern for a command is useless if the caller controls which program its name means."""
        steering = [name for name in names if re.fullmatch(_STEERING, name.strip())] if self else []
        if not steering:
            return None
        return Refused(
            f"The variable {steering[0][:64]} is refused",
            why="It can make a command run something else, and commands are limited by patterns in "
            "[inside] of the configuration",
            next_step=f"Leave it out of env. {ONLY_THE_OPERATOR}",
        )

    def allows(self, argv: Sequence[str], text: str | None = None, *, cwd: str | None = None) -> bool:
        """Whether a pattern explicitly allows this command."""
        return bool(self.allow) and self.objection(argv, text, cwd=cwd) is None

    def write_objection(self, path: str) -> Refused | None:
        line = WRITE + path
        if pattern := next((pattern for pattern in self.deny if _match((line,), pattern)), None):
            return self._refusal(f"Writing {path} is refused", pattern)
        if not self.allow:
            return None
        if not self._allowed(line):
            return Refused(
                f"Writing {path} is refused",
                why="Commands are limited by patterns under allow in [inside] of the configuration, and a file can "
                "make a program do something else",
                next_step=f'{ONLY_THE_OPERATOR}: a pattern such as "write /srv/www/*" under allow lets it be written',
            )
        if line not in self.allow and self._runs(path):
            return Refused(
                f"Writing {path} is refused",
                why="It is a program, or something that programs run, and commands are limited by patterns under allow "
                "in [inside] of the configuration",
                next_step=f"{ONLY_THE_OPERATOR}: a pattern has to name such a file exactly",
            )
        return None

    def allows_write(self, path: str) -> bool:
        return bool(self.allow) and self.write_objection(path) is None

    def _runs(self, path: str) -> bool:
        """Whether a pattern runs this file, or it belongs to the system's programs."""
        if re.fullmatch(_CODE, path) or re.fullmatch(_WINDOWS_CODE, path) or path in _WHOLE_FOLDERS:
            return True
        name = re.split(r"[/\\]", path)[-1]
        for pattern in self.allow:
            program, *words = pattern.split() if not pattern.startswith(WRITE) else [""]
            own_name = re.split(r"[/\\]", program)[-1]
            if program and any(fnmatch.fnmatch(name, program_name) for program_name in (own_name, f"{own_name}.exe")):
                return True
            if any(path.lower() == word.strip("\"';").lower() for word in words):
                return True
        return False

    def _allowed(self, line: str) -> bool:
        return any(_match((line,), pattern) for pattern in self.allow)

    def _refusal(self, what: str, pattern: str) -> Refused:
        return Refused(
            what,
            why=f"It matches the pattern {pattern!r} under deny in [inside] of the configuration",
            next_step=ONLY_THE_OPERATOR,
        )


def _match(lines: Iterable[str], pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(line, pattern) for line in lines)
