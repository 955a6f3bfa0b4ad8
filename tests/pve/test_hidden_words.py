"""Words that would reveal hidden guests: found among thousands, quickly, whatever the guests are called."""

from __future__ import annotations

import re
import time

from hypothesis import given
from hypothesis import strategies as st

from quorate.pve.filtered_cluster import BLANK, HiddenWords
from quorate.pve.targets import GUEST, Subject

NAMES = st.from_regex(r"[aAb1](?:[ab1.-]{0,40}[ab1])?", fullmatch=True)


def hiding(*names: str) -> HiddenWords:
    return HiddenWords([Subject(GUEST, str(1000 + number), name) for number, name in enumerate(names)])


@given(st.sets(NAMES, min_size=1, max_size=12), st.lists(NAMES | st.sampled_from([" ", ".", "-", ", ", "z"])))
def test_names_are_found_as_if_each_were_looked_for_alone(names: set[str], parts: list[str]) -> None:
    text = "see " + "".join([*parts, *(f" {name}," for name in names)])
    each = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    expected = re.sub(rf"(?<![\w-])(?:{each})(?![\w-])", BLANK, text, flags=re.I)
    assert hiding(*names).text(text) == expected


def test_the_longest_name_counts_and_an_id_before_it_goes_along() -> None:
    words = hiding("web", "web.lan", "web-1")
    assert (
        words.text("web.lan web-1 web webs my-web 1001 web.lan vm 1000")
        == f"{BLANK} {BLANK} {BLANK} webs my-web {BLANK} {BLANK}"
    )


def test_names_that_continue_each_other_without_end_are_no_burden() -> None:
    names = ["a" * length for length in range(1, 250)]
    assert hiding(*names).text(f"{names[-1]} {'a' * 250}") == f"{BLANK} {'a' * 250}"


def test_thousands_of_hidden_guests_keep_nobody_waiting() -> None:
    line = (
        "Jan 15 08:00:01 pve1 pvedaemon[1234]: UPID:pve1:00000512:14997000:69689E80:qmstart:102: customer-x, customer-y"
    )
    log = "\n".join([line] * 4000)
    begun = time.process_time()
    words = hiding(*(f"customer-{number:04d}-web" for number in range(3000)))
    assert words.text(log) == log
    assert words.text("customer-2999-web") == BLANK
    assert time.process_time() - begun < 2  # name by name it took twice that
