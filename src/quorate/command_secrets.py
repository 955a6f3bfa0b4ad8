"""Hide secrets in command lines, in the usual places, before they are recorded or shown."""

from __future__ import annotations

import re

HIDDEN = "***"
LONGEST = 25_000
"""More than a person reads before approving, so a command that is cut is never approved."""

_VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s'"|;&)]+)"""
_NAME = r"(?:pass(?:word|wd|phrase|code)?|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?)"
_VARIABLE = r"(?:PASS|SECRET|TOKEN|API_?KEY|ACCESS_KEY|CREDENTIAL)"

# The first group stays, the rest of the match is hidden. Every repetition before a secret is bounded: commands come
# from callers, and none of them may keep us busy.
_PLACES = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        # --password X, --db-password=X, -password X
        (rf"(?<!\S)(--?(?:[\w-]{{0,60}}[-_])?{_NAME}(?:[-_]\w+)?(?:=|\s+)){_VALUE}", re.I),
        # PGPASSWORD=x cmd, MYSQL_PWD=x, export AWS_SECRET_ACCESS_KEY=x
        (rf"\b((?:[A-Z0-9_]{{0,60}}{_VARIABLE}[A-Z0-9_]{{0,60}}|MYSQL_PWD)=){_VALUE}", 0),
        # password=x, "secret": "x" as in a body or a connection string
        (rf"""((?<![\w-]){_NAME}["']?\s*[=:]\s*)(?!\s){_VALUE}""", re.I),
        # mysql -pX, mysqldump -pX
        (rf"(\b(?:mysql|mariadb)[\w-]*\b[^|;&\n]{{0,200}}?\s-p){_VALUE}", 0),
        (rf"(\bsshpass\s+-p\s*){_VALUE}", 0),
        (rf"(\bredis-cli\b[^|;&\n]{{0,200}}?\s-a\s+){_VALUE}", 0),
        (rf"(\b(?:docker|podman|helm|az|oc)\b[^|;&\n]{{0,200}}?\blogin\b[^|;&\n]{{0,200}}?\s-p\s*){_VALUE}", 0),
        # curl -u user:X
        (r"""(\bcurl\b[^|;&\n]{0,200}?\s(?:-u|-U|--user|--proxy-user)[=\s]*["']?[^\s:'"]+:)[^\s'"]+""", 0),
        # -H "Authorization: Bearer X", X-Api-Key: X
        (
            r"""((?:proxy-)?authorization:\s*(?:(?:bearer|basic|token|digest|apikey|pveapitoken)[\s=]+)?)[^'"\n]+""",
            re.I,
        ),
        (r"""((?:x-[\w-]{0,60}(?:key|token|secret)|private-token|set-cookie|cookie):\s*)[^'"\n]+""", re.I),
        # scheme://user:X@host
        (r"(\b[\w+.-]{1,30}://[^\s/:@'\"]*:)[^\s/@'\"]+(?=@)", 0),
        # echo root:X | chpasswd
        (r"""((?<![\w.-])[\w.-]{1,100}:)[^\s'"|]{1,256}(?=["']?\s*\|\s*(?:sudo\s+)?chpasswd)""", 0),
        (rf"(\bhtpasswd\s+-\w*b\w*\s+\S+\s+\S+\s+){_VALUE}", 0),
        (rf"(\bopenssl\s+passwd\s+(?:-\w+\s+)*)(?!-){_VALUE}", 0),
    )
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)


_RUNS = re.compile(r"[`$;|&<>(){}\n]")
"""Characters with which a shell runs or redirects something."""


def without_secrets(text: str) -> str:
    for place in _PLACES:
        text = place.sub(rf"\1{HIDDEN}", text)
    return _PRIVATE_KEY.sub(HIDDEN, text)


def shown_line(command: str) -> str:
    """A command for the person who approves it; of a very long one, the beginning.

    What only looks like a secret but could run something is shown: `--password "$(reboot)"`.
    """
    shown = command[:LONGEST]
    for place in _PLACES:
        shown = place.sub(_hide_harmless, shown)
    return shown if len(command) <= LONGEST else f"{shown} … ({len(command)} characters)"


def _hide_harmless(found: re.Match[str]) -> str:
    return found[0] if _RUNS.search(found[0], len(found[1])) else f"{found[1]}{HIDDEN}"
