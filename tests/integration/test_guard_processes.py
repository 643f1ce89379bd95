"""`lox.guard` in several processes that `jax.distributed` connects: a bundle for each, replayed in one process."""

import shutil

import pytest
from processes import Processes, told

import lox

PROGRAM = """
import warnings, functools

def local(x):
    def step(x, rate):
        return x - rate * jnp.log(x), None
    return jax.lax.scan(step, x, jnp.array([1.0, 8.0, 1.0, 1.0]))[0]

train = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("data"), out_specs=P("data")))
step = jax.jit(lambda x, scale: scale * x - jnp.log(x))
"""
GUARDED = (
    PROGRAM
    + """
x = spread(np.array([1, 1, 1, 1, 1, 1, 2, 1], np.float32), "data")
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    guarded = lox.guard({function}, bundle={folder!r} + "/failed")
    for _ in range(3):
        x = guarded({arguments})
    lox.flush()
tell(warned=[str(each.message) for each in warned if each.category is lox.NonfiniteWarning])
"""
)
REPLAYED = (
    PROGRAM
    + """
report = lox.replay({folder!r} + "/failed{process}", {function})
tell(primitive=report.primitive, iterations=report.iterations, shard=dict(report.shard), text=str(report),
     operand=np.asarray(report.operands[0]).tolist())
"""
)


def test_each_process_writes_its_shards_and_one_process_replays_them(tmp_path):
    folder = str(tmp_path)
    (one,), (other,) = told(GUARDED.format(folder=folder, function="train", arguments="x"), 2, 2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["failed-process0", "failed-process1"]
    for number, process in enumerate((one, other)):
        (message,) = process["warned"]
        assert f"failed-process{number}, with the part of this process" in message
    for process in ("", "-process0", "-process1"):
        ((report,),) = told(REPLAYED.format(folder=folder, function="train", process=process), 1, 4)
        assert (report["primitive"], report["iterations"], report["shard"]) == ("log", [2], {"data": 3})
        assert report["operand"][0] < 0 and len(report["operand"]) == 2


def test_a_step_of_a_python_loop_is_kept_with_its_shards(tmp_path):
    folder = str(tmp_path)
    arguments = "x, spread(np.float32(-1.0))"
    found = told(GUARDED.format(folder=folder, function="step", arguments=arguments), 2, 2)
    assert [len(process["warned"]) for (process,) in found] == [1, 1]
    ((report,),) = told(REPLAYED.format(folder=folder, function="step", process=""), 1, 4)
    assert report["primitive"] == "log" and len(report["operand"]) == 8 and min(report["operand"]) < 0


def test_all_processes_run_the_same_program_also_after_one_has_noticed_a_failure(tmp_path):
    """The function itself, which does not exchange verdicts, is never compiled."""
    code = f"""
guarded = lox.guard(train, bundle={str(tmp_path)!r} + "/failed")
x = spread(np.array([1, 1, 1, 1, 1, 1, 2, 1], np.float32), "data")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for _ in range(3):
        x = guarded(x)
        lox.flush()
tell(compiled=train._cache_size())
"""
    assert told(PROGRAM + code, 2, 2) == [[{"compiled": 0}]] * 2
    assert len(list(tmp_path.iterdir())) == 2


def test_missing_shards_are_an_error(tmp_path):
    told(GUARDED.format(folder=str(tmp_path), function="train", arguments="x"), 2, 2)
    shutil.rmtree(tmp_path / "failed-process1")
    with pytest.raises(lox.StorageError, match=r"has only a part of args\[0\].*other processes must be beside it"):
        lox.replay(tmp_path / "failed-process0", lambda x: x)


def test_inside_of_jit_a_guard_of_several_processes_is_an_error(tmp_path):
    function = "jax.jit(lox.guard(step, bundle='x'))"
    with Processes(GUARDED.format(folder=str(tmp_path), function=function, arguments="x, 1.0"), 2, 1) as processes:
        for process in processes.running:
            _, error = process.communicate(timeout=300)
            assert "is inside of jax.jit, in one of several processes" in error
