"""`pytest --lox-audit`: audits each function that the tests compile, at its first compilation.

pytest imports this module in every session in which lox is installed. It is no part of the package `lox`, since that
would import JAX, which reads its configuration from the environment, before a conftest.py could set it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

_AT_CONTROLLER = "lox_audit"
"""The name under which a worker of pytest-xdist gives its findings to the controller."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("lox").addoption(
        "--lox-audit", action="store_true", help="audit each function that the tests compile, with lox.audit"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("lox_audit"):
        config.pluginmanager.register(_Audits(config), "lox-audits")


class _Audits:
    """The audits of a session."""

    def __init__(self, config: pytest.Config) -> None:
        from lox._audit._recorder import Recorder
        from lox._audit._settings import read_settings
        from lox._exceptions import LogValueError

        try:
            self._settings = read_settings(config.rootpath)
        except LogValueError as error:
            raise pytest.UsageError(str(error)) from error
        self._findings: list[Any] = []
        self._used: set[tuple[str, int, str]] = set()
        self._count = 0
        self._left_out: list[str] = []
        self._closing = contextlib.ExitStack()
        self._recorder = self._closing.enter_context(Recorder())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        result = yield
        self._audit()
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        from lox._audit._content import at_least

        self._audit()  # What fixtures of the session compiled.
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            findings = list(map(dataclasses.asdict, self._findings))
            output[_AT_CONTROLLER] = findings, list(self._used), self._count, self._recorder.left_out
        elif at_least(self._settings.fail_on, self._distinct()) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        from lox._audit._findings import Finding

        findings, used, count, left_out = getattr(node, "workeroutput", {}).get(_AT_CONTROLLER, ((), (), 0, ()))
        self._findings += [Finding(**each) for each in findings]
        self._used.update(used)
        self._count += count
        self._left_out += left_out

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        from lox._audit._formats._concise import line_of
        from lox._audit._recorder import not_audited

        found = self._distinct()
        terminalreporter.section("lox audit")
        for finding in found:
            terminalreporter.line(line_of(finding))
        for line in not_audited([*self._recorder.left_out, *self._left_out]):
            terminalreporter.line(line)
        count = f"{len(found)} finding{'' if len(found) == 1 else 's'}"
        terminalreporter.line(f"{count} in {self._count} function{'' if self._count == 1 else 's'}.")

    def pytest_unconfigure(self) -> None:
        self._closing.close()

    def _audit(self) -> None:
        for report in self._settings.of(self._recorder.reports()):
            self._count += 1
            self._findings += report.found
            self._used |= report.used

    def _distinct(self) -> list[Any]:
        from lox._audit._content import distinct

        return distinct(self._findings, frozenset(self._used))
