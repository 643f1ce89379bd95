"""`pytest --lox-audit`: audits each function that the tests compile, at its first compilation.

pytest imports this module in every session in which lox is installed. It is no part of the package `lox`, since that
would import JAX, which reads its configuration from the environment, before a conftest.py could set it.
"""

from __future__ import annotations

import contextlib
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
        from lox._audit._settings import expand, read_settings

        self._settings = read_settings(config.rootpath)
        self._codes = expand(self._settings.select), expand(self._settings.ignore)
        self._texts: dict[str, str] = {}
        self._count = 0
        self._failed = False
        self._closing = contextlib.ExitStack()
        self._recorder = self._closing.enter_context(Recorder())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        result = yield
        self._audit()
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._audit()  # What was compiled by fixtures of the session.
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_AT_CONTROLLER] = (self._texts, self._count, self._failed)
        elif self._failed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        texts, count, failed = getattr(node, "workeroutput", {}).get(_AT_CONTROLLER, ({}, 0, False))
        self._texts.update(texts)
        self._count += count
        self._failed |= failed

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("lox audit")
        for line in sorted(self._texts.values()):
            terminalreporter.line(line)
        count = f"{len(self._texts)} finding{'' if len(self._texts) == 1 else 's'}"
        terminalreporter.line(f"{count} in {self._count} function{'' if self._count == 1 else 's'}.")

    def pytest_unconfigure(self) -> None:
        self._closing.close()

    def _audit(self) -> None:
        from lox._audit._formats._concise import in_order, line_of

        reports = [report.only(*self._codes) for report in self._recorder.reports()]
        self._count += len(reports)
        for finding in in_order(reports):
            key = finding.code if finding.once else line_of(finding)
            self._texts.setdefault(key, line_of(finding))
        self._failed |= any(report.at_least(self._settings.fail_on) for report in reports)  # type: ignore[arg-type]
