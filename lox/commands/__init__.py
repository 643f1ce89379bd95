"""The commands of ``lox``, a module each; `lox.__main__` parses their arguments."""
