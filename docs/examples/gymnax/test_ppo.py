"""The example as a reader runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

HERE = Path(__file__).parent


def test_agents_learn_and_each_seed_has_a_run_in_both_loggers(tmp_path):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "WANDB_SILENT": "true"}
    command = [sys.executable, str(HERE / "ppo.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, last = map(int, re.search(r"went from (\d+) to (\d+)", done.stdout).groups())
    assert last > 2 * first
    (experiment,) = tmp_path.glob("tensorboard/*-ppo")
    names = sorted(path.name for path in experiment.iterdir() if path.is_dir())
    assert [re.search(r"seed=(\d)-", name)[1] for name in names] == ["0", "1", "2", "3"]
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 4
    assert [path.stem for path in tmp_path.glob("wandb/lox/ppo/*.json")] == [experiment.name]
    for name in names:
        events = EventAccumulator(str(experiment / name))
        events.Reload()
        assert [event.step for event in events.Scalars("value")] == list(range(100))
        assert len(events.Scalars("episode_return")) > 50
