"""`lox.audit`: what a function does with data, and what in it will bite."""

from lox._audit._audit import audit as audit
