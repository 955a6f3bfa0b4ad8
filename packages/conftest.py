"""What the packages add to the summary; here, because tests are distributed before their own conftest is read."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show how faithful the simulator is, as its replays have noted it."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "fidelity":
                terminalreporter.write_line(str(text))
