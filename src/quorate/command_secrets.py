"""Secrets in command lines, in the well-known places where people write them: for what is recorded or shown."""

from __future__ import annotations

import re

HIDDEN = "***"

_VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s'"|;&)]+)"""
_NAME = r"(?:pass(?:word|wd|phrase|code)?|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?)"

# The first group stays, the rest of the match is hidden.
_PLACES = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        # --password X, --db-password=X, -password X
        (rf"(?<!\S)(--?(?:[\w-]*[-_])?{_NAME}(?:[-_]\w+)?(?:=|\s+)){_VALUE}", re.I),
        # PGPASSWORD=x cmd, MYSQL_PWD=x, export AWS_SECRET_ACCESS_KEY=x
        (rf"\b((?:[A-Z0-9_]*(?:PASS|SECRET|TOKEN|API_?KEY|ACCESS_KEY|CREDENTIAL)[A-Z0-9_]*|MYSQL_PWD)=){_VALUE}", 0),
        # password=x, "secret": "x" as in a body or a connection string
        (rf"""((?<![\w-]){_NAME}["']?\s*[=:]\s*)(?!\s){_VALUE}""", re.I),
        # mysql -pX, mysqldump -pX
        (rf"(\b(?:mysql|mariadb)[\w-]*\b[^|;&\n]*?\s-p){_VALUE}", 0),
        (rf"(\bsshpass\s+-p\s*){_VALUE}", 0),
        (rf"(\bredis-cli\b[^|;&\n]*?\s-a\s+){_VALUE}", 0),
        (rf"(\b(?:docker|podman|helm|az|oc)\b[^|;&\n]*?\blogin\b[^|;&\n]*?\s-p\s*){_VALUE}", 0),
        # curl -u user:X
        (r"""(\bcurl\b[^|;&\n]*?\s(?:-u|-U|--user|--proxy-user)[=\s]*["']?[^\s:'"]+:)[^\s'"]+""", 0),
        # -H "Authorization: Bearer X", X-Api-Key: X
        (
            r"""((?:proxy-)?authorization:\s*(?:(?:bearer|basic|token|digest|apikey|pveapitoken)[\s=]+)?)[^'"\n]+""",
            re.I,
        ),
        (r"""((?:x-[\w-]*(?:key|token|secret)|private-token|set-cookie|cookie):\s*)[^'"\n]+""", re.I),
        # scheme://user:X@host
        (r"(\b[\w+.-]+://[^\s/:@'\"]*:)[^\s/@'\"]+(?=@)", 0),
        # echo root:X | chpasswd
        (r"""([\w.-]+:)[^\s'"|]+(?=["']?\s*\|\s*(?:sudo\s+)?chpasswd)""", 0),
        (rf"(\bhtpasswd\s+-\w*b\w*\s+\S+\s+\S+\s+){_VALUE}", 0),
        (rf"(\bopenssl\s+passwd\s+(?:-\w+\s+)*)(?!-){_VALUE}", 0),
    )
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)


def without_secrets(line: str) -> str:
    for place in _PLACES:
        line = place.sub(rf"\1{HIDDEN}", line)
    return _PRIVATE_KEY.sub(HIDDEN, line)
