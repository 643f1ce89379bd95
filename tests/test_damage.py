"""Damaged runs: they are refused or read as they were logged, and what is intact of them can be read."""

import pytest
from damage import DAMAGES, Damaged, commanded, faults_of
from runs import saver

import lox


def test_damaged_runs_are_refused_or_read_as_they_were_logged(tmp_path):
    found, _ = faults_of(tmp_path, range(60), commands=False)
    assert not found


@pytest.mark.parametrize("damage", ["truncated", "malformed_owner"])
def test_commands_name_a_damaged_run_and_go_on_with_the_others(tmp_path, damage):
    damaged = Damaged(tmp_path)
    number = [each.__name__ for each in DAMAGES].index(damage)
    refused = damaged.load(damaged.case(number)) == "refused"
    assert refused == (damage == "truncated")
    assert commanded(damaged.path, refused, None) == []


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")  # Another process may write the run.
@pytest.mark.parametrize("text", ["[]", '{"pid": "x"}', "\x00\xff"])
def test_a_run_whose_owner_is_malformed_goes_on_or_is_refused(tmp_path, text):
    for event in (1.0, 2.0):
        logger = saver(tmp_path)
        state = logger.init(7)
        logger.log(state, {"x": event})
        try:
            logger.close()
        except lox.StorageError as error:
            assert "owner.json" in str(error) and event == 2
            continue
        (tmp_path / state.name / "owner.json").write_text(text)
    assert lox.load(tmp_path / state.name)["x"].tolist() in ([1.0], [1.0, 2.0])
