"""The formats that reports are written in: each a module with a function of reports that returns text."""
