"""Programs that measure the auditor, written without sight of its checks.

`python -m unseen` audits each wrong program, its mended twin and its near misses, with labels and without, and
then functions of public libraries. A mistake counts as found where a finding of severity error or warning is in the
outermost function around the mistake, with a code that the mended twin does not get. Any such finding in a twin, a
near miss or a public function counts as an alarm. `--list` prints each finding, `--check` checks the programs without
auditing them, `--only TEXT` takes some cases, `--no-public` and `--no-cases` leave out a part.

Whoever writes checks does not read the programs of a set that has not been audited: what they measure would be spent. A
set is audited once, and then opened. All are open now.
"""
