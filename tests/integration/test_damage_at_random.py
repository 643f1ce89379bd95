"""Many runs that are damaged at random.

`python tests/integration/test_damage_at_random.py 1000` damages 1,000 runs and prints how often which damage had which
outcome.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from damage import faults_of

CASES = 66


def test_runs_that_are_damaged_at_random_are_refused_or_read_as_they_were_logged(tmp_path):
    found, _ = faults_of(tmp_path, range(60, 60 + CASES), plots=20)
    assert not found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found, outcomes = faults_of(folder, range(int(sys.argv[1])), plots=50)
        print(*found, sep="\n")
        for (damage, way, outcome), count in sorted(outcomes.items()):
            print(f"{damage:22} {way:10} {outcome:16} {count}")
