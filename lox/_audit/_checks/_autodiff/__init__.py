"""Derivatives: of what and by what, where they are lost, infinite or wrong."""

from __future__ import annotations

from lox._audit._checks._autodiff import _advantages, _compared, _paths, _rules, _singular, _stopped

KINDS = (*_paths.KINDS, *_singular.KINDS, *_rules.KINDS, *_stopped.KINDS, *_advantages.KINDS, *_compared.KINDS)
CHECKS = (*_paths.CHECKS, *_singular.CHECKS, *_rules.CHECKS, *_stopped.CHECKS, *_advantages.CHECKS, *_compared.CHECKS)
OF_DERIVATIVES = (_paths.arguments, *_stopped.CHECKS, *_advantages.CHECKS)
