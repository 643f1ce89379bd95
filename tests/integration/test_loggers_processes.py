"""Loggers in several processes: what is written once, by which process, and what a fault leaves behind."""

import json
import signal
import time

import jax
import numpy as np
import pytest
from processes import Processes, told
from runs import name_of, saver
from sinks import Mlflow, TensorBoard, Trackio, Wandb

import lox

# MLflow's own, of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")

TRAINING = """
def loss(w, x):
    return jnp.mean((x @ w - 1) ** 2)

def train(w, x):
    def step(w, i):
        value, gradient = jax.value_and_grad(loss)(w, x)
        lox.log({"loss": value, "residuals": x @ w - 1}, step=2 * i)
        return w - 0.1 * gradient, None
    return jax.lax.scan(step, w, jnp.arange(3))[0]

def train_on_shards(w, x):
    def local(w, x):
        def step(w, i):
            value, gradient = jax.value_and_grad(loss)(jax.lax.pcast(w, "data", to="varying"), x)
            lox.log({"loss": jax.lax.pmean(value, "data")}, step=2 * i)
            return w - 0.1 * jax.lax.pmean(gradient, "data"), None
        return jax.lax.scan(step, w, jnp.arange(3))[0]
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

w, x = spread(np.ones(3, np.float32)), spread(np.arange(24, dtype=np.float32).reshape(8, 3) / 24, "data")
"""
EVERY_WAY = (
    TRAINING
    + """
def write(logger):
    ways = {
        1: logger.tap(train, logger.init(1, rate=0.1)),
        2: jax.jit(logger.tap(train, logger.init(2, rate=0.1))),
        3: logger.spool(jax.jit(train), logger.init(3, rate=0.1)),
        4: jax.jit(logger.spool(train, logger.init(4, rate=0.1))),
        5: logger.tap(train_on_shards, logger.init(5, rate=0.1)),
        6: logger.spool(train_on_shards, logger.init(6, rate=0.1)),
    }
    for way in ways.values():
        jax.block_until_ready(way(w, x))
    logger.log(logger.init(7, rate=0.1), lox.spool(train, argnames="loss")(w, x)[1])
    logger.log(logger.init(8), lox.logdict({"epochs": np.arange(2)}))
"""
)
RUNS = [*(name_of(run, rate=0.1) for run in range(1, 8)), name_of(8)]


@pytest.fixture
def environment():
    return {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}


@pytest.fixture
def sinks(tmp_path, trackio_folder):
    """One of each kind. The variable that says where Trackio writes is passed on to processes."""
    trackio = Trackio(tmp_path, trackio_folder)
    return TensorBoard(tmp_path / "runs"), Wandb(tmp_path), Mlflow(tmp_path, tmp_path / "mlflow.db"), trackio


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


LOSSES = [0.929688, 0.703575, 0.554269]
"""Those of the training, on one device."""


def test_each_sink_has_each_event_once_of_two_processes(sinks, environment):
    code = EVERY_WAY
    for sink in sinks:
        positional, named = sink.arguments
        given = ", ".join([*map(repr, positional), *(f"{name}={value!r}" for name, value in named.items())])
        made = f"lox.loggers.{sink.of.__name__}({given}, name={sink.experiment!r}, processes='first')"
        code += f"with {made} as logger:\n    write(logger)\n"
    with Processes(code, 2, 2, environment) as processes:
        processes.told()
    for sink in sinks:
        has_each_event_once(sink)


def has_each_event_once(sink):
    found, ranges = sink.numbers(), sink.ranges()
    assert sorted(found) == RUNS
    for name in RUNS[:7]:
        steps, losses = zip(*found[name]["loss"], strict=True)
        assert steps == (0, 2, 4)
        np.testing.assert_allclose(losses, LOSSES, rtol=1e-4)
    for name in RUNS[:4]:
        assert [step for step, _ in ranges[name]["residuals"]] == [0, 2, 4]
    assert found[RUNS[7]] == {"epochs": [(0, 0), (1, 1)]}


def test_a_store_that_is_not_there_yet_is_made_by_the_process_that_writes(tmp_path):
    code = f"""
from jax.experimental import multihost_utils
multihost_utils.sync_global_devices("begin")
with lox.loggers.MlflowLogger("sqlite:///{tmp_path}/new.db", "new", processes="first") as logger:
    logger.log(logger.init(1), lox.logdict({{"x": np.ones(2)}}))
tell(there=os.path.exists("{tmp_path}/new.db"))
"""
    assert told(code, 2, 1)[0] == [{"there": True}]


@pytest.mark.parametrize("layout", [(2, 2), (4, 1)])
def test_files_memory_and_console_have_each_event_once(folder, layout):
    code = f"""{EVERY_WAY}
import io
import rich.console
shown = io.StringIO()
memory = lox.loggers.MemoryLogger(processes="first")
console = lox.loggers.ConsoleLogger(console=rich.console.Console(file=shown), processes="first")
saver = lox.loggers.SaveLogger({str(folder.parent)!r}, processes="first")
with lox.loggers.MultiLogger(memory, console, saver, name={folder.name!r}) as logger:
    write(logger)
tell(runs=sorted(memory.runs), losses=[memory[run]["loss"].tolist() for run in sorted(memory.runs)[:7]])
tell(shown=len(shown.getvalue()))
"""
    (of_memory, of_console), *others = told(code, *layout)
    assert of_memory["runs"] == RUNS and of_console["shown"]
    np.testing.assert_allclose(of_memory["losses"], [LOSSES] * 7, rtol=1e-4)
    assert others == [[{"runs": [], "losses": []}, {"shown": 0}]] * (layout[0] - 1)
    loaded = lox.load(folder)
    assert sorted(loaded) == RUNS
    for name in RUNS[:7]:
        np.testing.assert_allclose(loaded[name]["loss"], LOSSES, rtol=1e-4)
        assert loaded[name].steps["step"]["loss"].tolist() == [0, 2, 4]
    for name in RUNS[:4]:
        assert loaded[name]["residuals"].shape == (3, 8)
        np.testing.assert_allclose((loaded[name]["residuals"] ** 2).mean(1), LOSSES, rtol=1e-4)
    manifests = [json.loads((folder / name / "manifest.json").read_text()) for name in RUNS]
    assert [manifest["config"].get("rate") for manifest in manifests] == [0.1] * 7 + [None]


ON_SHARDS = """
KEYS = spread(np.arange(8).reshape(4, 2).astype(np.uint32), "data")

def train_one(x):
    def step(x, i):
        lox.log({"own": x, "mean": jax.lax.pmean(x, "data")}, step=i)
        return x + 1, None
    return jax.lax.scan(step, x, jnp.arange(2))[0]

def on_shards(f, *args):
    specs = jax.tree.map(lambda arg: P("data"), args)
    return jax.block_until_ready(jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P("data")))(*args))

def run_of_all(logger, **config):
    "One run, to which each shard has something of its own to say."
    on_shards(logger.tap(jax.vmap(train_one), logger.init(1, **config)), spread(np.arange(4.0), "data"))

def run_of_each(logger, **config):
    "A run for each shard."
    def one(key, x):
        return logger.tap(train_one, logger.init(key, **config))(x)
    on_shards(jax.vmap(one), KEYS, spread(np.arange(4.0), "data"))

def flushed(logger):
    try:
        logger.flush()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


@pytest.mark.parametrize("program", ["run_of_all", "run_of_each"])
def test_what_differs_between_shards_is_refused_where_the_first_process_writes(folder, program):
    code = f"""{ON_SHARDS}
with lox.loggers.SaveLogger({str(folder.parent)!r}, name={folder.name!r}) as logger:
    {program}(logger)
    tell(error=flushed(logger))
"""
    (first,), (second,) = told(code, 2, 2)
    assert first == {"error": None}
    assert "what process 1 of 2 logs to run" in second["error"] and 'processes="all"' in second["error"]
    assert "LogValueError" in second["error"]


def test_each_process_writes_what_differs_between_its_shards_to_a_run_of_its_own(folder):
    code = f"""{ON_SHARDS}
with lox.loggers.SaveLogger({str(folder.parent)!r}, name={folder.name!r}, processes="all") as logger:
    run_of_all(logger, rate=0.5)
"""
    told(code, 2, 2)
    runs = lox.load(folder)
    name = name_of(1, rate=0.5)
    assert sorted(runs) == [name, f"{name}-process0", f"{name}-process1"]
    assert runs[name]["mean"].shape == (2, 1) and list(runs[name]) == ["mean"]
    for process in range(2):
        logs = runs[f"{name}-process{process}"]
        assert list(logs) == ["own"]
        shards = [2 * process, 2 * process + 1]
        events = [(event, shard) for event, shard, _ in np.argwhere(logs.mask["own"])]
        found = sorted((logs["own"][place].item(), logs.steps["step"]["own"][place].item()) for place in events)
        assert sorted({shard for _, shard in events}) == shards
        assert found == sorted((shard + step, step) for shard in shards for step in range(2))
    assert json.loads((folder / name / "manifest.json").read_text())["config"] == {"rate": 0.5}


def test_each_process_writes_the_runs_of_its_shards(folder):
    code = f"""{ON_SHARDS}
with lox.loggers.SaveLogger({str(folder.parent)!r}, name={folder.name!r}, processes="all") as logger:
    run_of_each(logger, rate=0.5)
"""
    told(code, 2, 2)
    runs = lox.load(folder)
    names = [name_of(key, rate=0.5) for key in np.arange(8, dtype=np.uint32).reshape(4, 2)]
    assert sorted(runs) == sorted(names)
    for place, name in enumerate(names):
        logs = runs[name]
        assert not logs.mask
        assert logs["own"].tolist() == [place, place + 1]
        assert logs["mean"].tolist() == [1.5, 2.5]
        assert json.loads((folder / name / "manifest.json").read_text())["config"] == {"rate": 0.5}


@pytest.mark.parametrize("made", ["in jit", "outside of jit", "on each shard"])
def test_what_differs_between_shards_is_written_where_the_state_is_known(made):
    """A state that a program of all devices computes is known in the first process alone."""
    code = f"""{ON_SHARDS}
logger = lox.loggers.MemoryLogger(processes="all")
made = {made!r}
state = logger.init(1, rate=0.5)

def of_shards(xs):
    def shard(xs):
        return jax.vmap(train_one)(xs)
    return jax.shard_map(shard, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(xs)

def of_each_shard(seeds, xs):
    def one(seed, x):
        return logger.tap(train_one, logger.init(seed, rate=0.5))(x)
    return jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=P("data"), out_specs=P("data"))(seeds, xs)

xs, seeds = spread(np.arange(4.0, dtype=np.float32), "data"), spread(np.arange(4), "data")
seed = spread(np.int32(1))
if made == "in jit":
    found = jax.jit(lambda seed, xs: logger.tap(of_shards, logger.init(seed, rate=0.5))(xs))(seed, xs)
elif made == "outside of jit":
    found = jax.jit(logger.tap(of_shards, state))(xs)
else:
    found = jax.jit(of_each_shard)(seeds, xs)
jax.block_until_ready(found)
flushed_well = flushed(logger)
try:
    logger.close()
    error = None
except lox.LogValueError as raised:
    error = str(raised)
tell(flushed=flushed_well, error=error, runs={{run: list(logger[run]) for run in logger.runs}})
"""
    (first,), (second,) = told(code, 2, 2)
    name = name_of(1, rate=0.5)
    if made == "on each shard":
        names = [name_of(seed, rate=0.5) for seed in range(4)]
        assert [sorted(first["runs"]), sorted(second["runs"])] == [names[:2], names[2:]]
    elif made == "outside of jit":
        assert first["runs"] == {name: ["mean"], f"{name}-process0": ["own"]}
        assert second["runs"] == {f"{name}-process1": ["own"]}
    else:
        assert first["runs"] == {name: ["mean"], f"{name}-process0": ["own"]}
        assert second["runs"] == {}
    assert first["error"] is None and first["flushed"] is second["flushed"] is None
    if made == "in jit":
        assert "does not write what arrived of ['own']" in second["error"]
        assert "Make the state outside of jit" in second["error"]
    else:
        assert second["error"] is None


SEEDS = """
import warnings

def train(key):
    def step(x, i):
        lox.log({"x": x}, step=i)
        return x / 2, None
    return jax.lax.scan(step, jax.random.uniform(key), jnp.arange(3))[0]

def run_seeds(logger, seeds):
    "Each on devices of this process alone."
    for seed in seeds:
        name = f"of-{seed}"
        logger.tap(jax.jit(train), logger.init(seed, name=name, seed=seed))(jax.random.key(seed))
        logger.tap(lambda: lox.log({"end": jnp.float32(seed)}), logger.init(seed, name=name, ended=True))()
    def one(seed):
        return logger.tap(train, logger.init(seed + 10))(jax.random.key(seed))
    jax.vmap(one)(jnp.array(seeds))
"""


def test_all_processes_write_the_experiment_that_the_first_one_names(folder, environment):
    code = f"""
os.chdir({str(folder.parent)!r})
if process:  # Alone, it would give another name.
    lox.loggers._experiment.default_name = lambda: "other"
wandb = lox.loggers.WandbLogger(init={{"mode": "offline"}}, processes="all")
saver = lox.loggers.SaveLogger({str(folder)!r}, processes="all")
with lox.loggers.MultiLogger(wandb, saver) as logger:
    state = jax.jit(lambda: logger.init(process))()
    logger.log(logger.init(process), lox.logdict({{"x": np.ones(1)}}))
    tell(name=logger.experiment)
try:
    lox.loggers.SaveLogger({str(folder)!r}, resume="none", processes="all").init(7)
except lox.LogValueError as error:
    tell(error=str(error))
"""
    with Processes(code, 2, 1, environment) as processes:
        first, second = processes.told()
    assert first == second[:1] + first[1:] and "cannot continue 'none'" in first[1]["error"]
    assert "The first process could not begin an experiment" in second[1]["error"]
    name = first[0]["name"]
    assert sorted(lox.load(folder)) == sorted(f"{name}/{name_of(process)}" for process in range(2))


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")
def test_seeds_that_are_spread_over_processes_have_a_run_each_that_goes_on_in_another_one(folder):
    code = f"""{SEEDS}
with lox.loggers.SaveLogger({str(folder.parent)!r}, WORD={folder.name!r}, processes="all") as logger:
    run_seeds(logger, [2 * ((process + ROUND) % 2), 2 * ((process + ROUND) % 2) + 1])
"""
    for of_round in range(2):  # A restart, after which each process has the other's seeds.
        word = "resume" if of_round else "name"
        told(code.replace("ROUND", str(of_round)).replace("WORD", word), 2, 1)
    runs = lox.load(folder)
    assert len(runs) == 8
    for seed in range(4):
        for name in (f"of-{seed}", name_of(seed + 10)):
            start = jax.random.uniform(jax.random.key(seed)).item()
            np.testing.assert_allclose(runs[name]["x"], 2 * [start, start / 2, start / 4], rtol=1e-6)
            assert runs[name].steps["step"]["x"].tolist() == 2 * [0, 1, 2]
        manifest = json.loads((folder / f"of-{seed}" / "manifest.json").read_text())
        assert manifest["config"] == {"seed": seed, "ended": True}


@pytest.mark.parametrize("processes", ["None", "'first'"])
def test_another_process_says_that_it_leaves_out_what_might_be_its_own(processes):
    code = f"""{SEEDS}
logger = lox.loggers.MemoryLogger(processes={processes})
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run_seeds(logger, [process])
    logger.log(logger.init(99), lox.logdict({{"x": np.ones(1)}}))
    logger.flush()
tell(runs=len(logger.runs), warnings=[f"{{each.category.__name__}}: {{each.message}}" for each in caught])
"""
    (first,), (second,) = told(code, 2, 1)
    assert first == {"runs": 3, "warnings": []}
    assert second["runs"] == 0
    assert len(second["warnings"]) == (processes == "None")  # Once, for three runs.
    assert all("TapWarning" in text and 'processes="all"' in text for text in second["warnings"])


def test_what_several_processes_have_is_written_by_the_first_of_them():
    code = """
logger = lox.loggers.MemoryLogger(processes="all")
logger.log(logger.init(1), lox.logdict({"x": spread(np.arange(2))}))
logger.log(logger.init(2), lox.logdict({"x": spread(np.arange(8).reshape(2, 4), None, "data")}))
logger.log(logger.init(process + 3), lox.logdict({"x": np.full(1, process)}))
logger.flush()
tell(**{run: logger[run]["x"].tolist() for run in logger.runs})
"""
    first, second = told(code, 2, 2)
    assert first == [
        {
            name_of(1): [0, 1],
            name_of(2): [[0, 1, 2, 3], [4, 5, 6, 7]],
            name_of(3): [0],
        }
    ]
    assert second == [{name_of(4): [1]}]


def test_what_is_spread_keeps_the_rest_as_it_is():
    code = """
logger = lox.loggers.MemoryLogger(processes="first")
logs = lox.logdict(
    {"own": np.int64([2**40]), "spread": spread(np.arange(4.0)[None], None, "data")},
    {"step": {"own": np.int64([5_000_000_000])}},
)
keys = jax.jit(jax.random.split, static_argnums=1, out_shardings=NamedSharding(mesh, P("data")))(jax.random.key(0), 4)
logger.log(logger.init(1, weights=spread(np.arange(4), "data")), logs)
logger.log(logger.init(2), lox.logdict({"keys": keys, "local": jax.device_put(np.ones(1), jax.local_devices()[0])}))
logger.flush()
for run in logger.runs:
    found = logger[run]
    config = {name: value.tolist() for name, value in logger.runs[run].config.items()}
    steps = {key: step.tolist() for key, step in found.steps.get("step", {}).items()}
    tell(values={key: found[key].tolist() for key in found}, steps=steps, config=config)
"""
    (first, second), others = told(code, 2, 2)
    assert first == {
        "values": {"own": [2**40], "spread": [[0, 1, 2, 3]]},
        "steps": {"own": [5_000_000_000]},
        "config": {"weights": [0, 1, 2, 3]},
    }
    expected = jax.random.key_data(jax.random.split(jax.random.key(0), 4)).tolist()
    assert second["values"] == {"keys": expected, "local": [1]}
    assert others == []


@pytest.mark.parametrize("processes", ["first", "all"])
def test_nothing_is_lost_on_a_mesh_that_begins_in_another_process(processes):
    code = f"""{TRAINING}
mesh = Mesh(np.array(jax.devices()[::-1]), ("data",))
w, x = spread(np.ones(3, np.float32)), spread(np.arange(24, dtype=np.float32).reshape(8, 3) / 24, "data")
second = Mesh(np.array(jax.devices()[2:]), ("data",))
logger = lox.loggers.MemoryLogger(processes="{processes}")

def error(write):
    write()
    try:
        logger.flush()
    except lox.LogValueError as error:
        return str(error)

tapped = jax.jit(logger.tap(train, logger.init(1)))
on_shards = logger.tap(jax.jit(train_on_shards), logger.init(2))
logs = jax.jit(lox.spool(train))(w, x)[1]
there = jax.make_array_from_callback((2,), NamedSharding(second, P("data")), lambda i: np.arange(2.0)[i], dtype=float)
tell(tap=error(lambda: jax.block_until_ready(tapped(w, x))))
tell(shards=error(lambda: jax.block_until_ready(on_shards(w, x))))
tell(log=error(lambda: logger.log(logger.init(3), logs)))
tell(elsewhere=error(lambda: logger.log(logger.init(4), lox.logdict({{"x": there}}))))
tell(runs=sorted(logger.runs))
"""
    first, second = told(code, 2, 2)
    if processes == "all":
        assert all(of is None for each in (*first[:-1], *second[:-1]) for of in each.values())
        assert first[-1]["runs"] == [name_of(3)]
        assert second[-1]["runs"] == [name_of(1), name_of(2), name_of(4)]
        return
    assert first[-1]["runs"] == [name_of(3)] and second[-1]["runs"] == []
    assert "begin with one of its devices" in second[0]["tap"] and "begin with one" in second[1]["shards"]
    assert first[2] == second[2] == {"log": None}


# -- faults --------------------------------------------------------------------------------------------------------


def test_two_processes_do_not_write_one_run(folder):
    code = f"""
logger = lox.loggers.SaveLogger({str(folder.parent)!r}, name={folder.name!r}, processes="all")
logger.log(logger.init(process), lox.logdict({{"own": np.ones(1)}}))
logger.flush()
if process:
    multihost_utils.sync_global_devices("written")
logger.log(logger.init(0), lox.logdict({{"x": np.ones(1)}}))
try:
    logger.flush()
    error = None
except OSError as raised:
    error = str(raised)
if not process:
    multihost_utils.sync_global_devices("written")
multihost_utils.sync_global_devices("all written")
tell(error=error)
"""
    (first,), (second,) = told("from jax.experimental import multihost_utils\n" + code, 2, 1)
    assert first == {"error": None} and "is written by process" in second["error"]
    assert {name: list(logs) for name, logs in lox.load(folder).items()} == {
        name_of(0): ["own", "x"],
        name_of(1): ["own"],
    }


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_leaves_what_was_written(folder, victim):
    code = f"""{SEEDS}
import time
from jax.experimental import multihost_utils
logger = lox.loggers.SaveLogger({str(folder.parent)!r}, name={folder.name!r}, processes="all")
run_seeds(logger, [process])
logger.flush()
tell(pid=os.getpid())
step = jax.jit(lambda x: x + jnp.sum(x))
x = spread(np.ones(2), "data")
while True:  # Until the other is missed.
    x = step(x)
    jax.block_until_ready(x)
    time.sleep(0.05)
"""
    with Processes(code, 2, 1, heartbeat=5) as processes:
        for process in processes.running:
            assert any("TOLD" in line for line in process.stdout)
        processes.running[victim].send_signal(signal.SIGKILL)
        began = time.monotonic()
        other = processes.running[1 - victim]
        other.communicate(timeout=120)
        assert other.returncode != 0
        assert time.monotonic() - began < 100
    runs = lox.load(folder)
    assert sorted(runs) == sorted(["of-0", "of-1", name_of(10), name_of(11)])
    assert all(len(logs["x"]) == 3 for logs in runs.values())
    with saver(folder) as logger:  # And goes on, where no other process writes any longer.
        for seed in (0, 1):
            more = lox.logdict({"x": np.ones(1, np.float32)}, {"step": {"x": np.int32([3])}})
            logger.log(logger.init(seed, name=f"of-{seed}"), more)
    assert [len(lox.load(folder)[f"of-{seed}"]["x"]) for seed in (0, 1)] == [4, 4]


def test_a_writer_that_blocks_in_one_process_makes_all_wait_and_none_fail():
    code = f"""{TRAINING}
import threading
go_on = threading.Event()

class Slow(lox.loggers.MemoryLogger):
    def write(self, run, logs):
        go_on.wait()
        super().write(run, logs)

logger = Slow(room=1, processes="first")
run = logger.init(1)
tapped = jax.jit(logger.tap(train, run))
threading.Timer(2, go_on.set).start()
jax.block_until_ready([tapped(w, x) for _ in range(3)])
logger.flush()
tell(losses=logger[run]["loss"].tolist() if logger.runs else [])
"""
    (first,), (second,) = told(code, 2, 2)
    np.testing.assert_allclose(first["losses"], 3 * LOSSES, rtol=1e-4)
    assert second == {"losses": []}


def test_a_callback_that_raises_in_one_process_ends_none():
    code = f"""{TRAINING}
def callback(logs):
    raise OSError("disk full")

jax.block_until_ready(jax.jit(lox.tap(train, callback))(w, x))
try:
    lox.flush()
    error = None
except OSError as raised:
    error = str(raised)
tell(error=error)
"""
    assert told(code, 2, 2) == [[{"error": "disk full"}], [{"error": None}]]
