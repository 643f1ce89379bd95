"""Programs that measure the auditor, written without sight of its checks: `python -m tests.unseen`.

Whoever writes checks does not read the programs: what they measure would be spent.
"""
