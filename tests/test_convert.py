"""Logs as tables of pandas, files of Parquet and datasets of xarray."""

import collections
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
import xarray
from jax import lax
from numpy.testing import assert_array_equal

import lox


def logs_of(values, **steps):
    """Logs with counters that all keys share, or that are given by key."""
    values = {key: jnp.asarray(value) for key, value in values.items()}
    by_key = {name: step if isinstance(step, dict) else dict.fromkeys(values, step) for name, step in steps.items()}
    return lox.logdict(values, {name: {key: jnp.asarray(s) for key, s in of.items()} for name, of in by_key.items()})


def train(x):
    """Logs a loss at each step, an accuracy at each second one, and a number at the end."""

    def step(x, i):
        lox.log({"loss": x, "grads": jnp.stack([x, -x])}, step=10 * i, epoch=i // 2)
        lax.cond(i % 2 == 0, lambda: lox.log({"accuracy": i}, step=10 * i)["accuracy"], lambda: i)
        return x + 1, None

    x = lax.scan(step, x, jnp.arange(3))[0]
    return lox.log({"end": x})["end"]


def spooled(f, *args):
    return lox.spool(f, unify=True)(*args)[1]


# -- the wide table ------------------------------------------------------------------------------------------------


def test_the_wide_table_has_a_row_for_each_step_and_a_column_for_each_key():
    table = spooled(train, 1.0).to_pandas(wide=True)
    assert list(table.columns) == ["epoch", "grads[0]", "grads[1]", "loss", "accuracy", "end"]
    assert (
        table.index.name == "step"
        and table.index[:3].tolist() == [0, 10, 20]
        and table.index[3:].isna().tolist() == [True]
    )
    assert table["loss"].tolist()[:3] == [1.0, 2.0, 3.0] and table["loss"].isna().tolist() == [False] * 3 + [True]
    assert table["grads[1]"].tolist()[:3] == [-1.0, -2.0, -3.0]
    assert table["accuracy"].dropna().tolist() == [0, 2] and table["accuracy"].isna().tolist() == [
        False,
        True,
        False,
        True,
    ]
    assert table["accuracy"].dtype == "Int32" and table["epoch"].tolist()[:3] == [0, 0, 1]
    assert table["end"].tolist()[3] == 4.0 and table["end"].isna().sum() == 3


def test_lanes_have_rows_of_their_own():
    table = spooled(jax.vmap(train), jnp.array([1.0, 5.0])).filter(["loss", "accuracy"]).to_pandas(wide=True)
    assert list(table.index.names) == ["step", "batch"]
    assert table["loss"].unstack("batch").to_numpy().tolist() == [[1, 5], [2, 6], [3, 7]]
    assert table.groupby("step")["loss"].mean().tolist() == [3, 4, 5]
    assert table.loc[(10, 1), "accuracy"] is pandas.NA


def test_lanes_in_which_an_event_did_not_happen_have_no_row():
    def f(x):
        return lax.cond(x > 1, lambda: lox.log({"x": x}, step=7)["x"], lambda: x)

    table = spooled(jax.vmap(f), jnp.arange(4.0)).to_pandas(wide=True)
    assert table.index.tolist() == [(7, 2), (7, 3)] and table["x"].tolist() == [2.0, 3.0]


def test_nested_batches_have_a_level_each():
    f = jax.vmap(jax.vmap(lambda x: lox.log({"x": x}, step=0)["x"]))
    table = spooled(f, jnp.arange(6.0).reshape(2, 3)).to_pandas(wide=True)
    assert list(table.index.names) == ["step", "batch_0", "batch_1"]
    assert table["x"].unstack("batch_1").to_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_key_outside_of_the_batch_has_rows_without_a_lane():
    def f(xs):
        lox.log({"mean": xs.mean()}, step=0)
        return jax.vmap(lambda x: lox.log({"x": x}, step=0)["x"])(xs)

    table = spooled(f, jnp.array([1.0, 3.0])).to_pandas(wide=True).reset_index()
    assert table["batch"].isna().tolist() == [True, False, False]
    assert table["mean"].tolist()[0] == 2.0 and table["x"].tolist()[1:] == [1.0, 3.0]
    assert spooled(f, jnp.array([1.0, 3.0])).to_xarray()["x"].dims == ("event_x", "batch")


def test_several_events_of_a_step_are_several_rows():
    logs = logs_of({"x": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0]}, step={"x": [0, 0, 1], "y": [1, 0, 1]})
    table = logs.to_pandas(wide=True)
    assert table.index.tolist() == [0, 0, 1, 1]
    assert_array_equal(table["x"], [1.0, 2.0, 3.0, np.nan])
    assert_array_equal(table["y"], [5.0, np.nan, 4.0, 6.0])


def test_without_steps_rows_are_numbered():
    table = logs_of({"x": [1.0, 2.0], "flag": [True]}).to_pandas(wide=True)
    assert table.index.name == "event" and table.index.tolist() == [0, 1]
    assert table["flag"].dtype == "boolean" and table["flag"].isna().tolist() == [False, True]


def test_large_integers_with_gaps_are_exact():
    steps = {"step": {"n": np.array([0]), "x": np.array([0, 1])}}
    table = lox.logdict({"n": np.array([2**63 - 1]), "x": np.zeros(2)}, steps).to_pandas(wide=True)
    assert table["n"][0] == 2**63 - 1


def test_a_counter_in_which_keys_differ_at_one_step_is_refused():
    logs = logs_of({"x": [1.0], "y": [2.0]}, step=[3], epoch={"x": [0], "y": [1]})
    with pytest.raises(lox.StructureError, match="The counter 'epoch' of 'y' differs .* at step 3"):
        logs.to_pandas(wide=True)
    assert logs.filter("y").to_pandas(wide=True)["epoch"].tolist() == [1]
    at, values = {"x": np.arange(2), "y": np.arange(2, 4)}, {"x": np.array([1, 2]), "y": np.array([0.5, 1.5])}
    counted = lox.logdict(at, {"step": at, "time": values})
    assert counted.to_pandas(wide=True)["time"].tolist() == [1, 2, 0.5, 1.5]


@pytest.mark.parametrize("step", [[0.5, 0.25], np.float16([0.5, 0.25]), np.array([0.5, 0.25], jnp.bfloat16)])
def test_steps_that_are_no_integers(step):
    table = lox.logdict({"x": np.arange(2)}, {"step": {"x": np.asarray(step)}}).to_pandas(wide=True)
    assert table.index.tolist() == [0.25, 0.5] and table["x"].tolist() == [1, 0]


# -- what values can be --------------------------------------------------------------------------------------------

ODD = {
    "bfloat16": jnp.array([0.5, 2], jnp.bfloat16),
    "float8": jnp.array([0.5, 2], jnp.float8_e4m3fn),
    "float8_e5m2": jnp.array([0.5, 2], jnp.float8_e5m2),
    "float16": jnp.array([0.5, 2], jnp.float16),
    "bool": jnp.array([True, False]),
    "int4": jnp.array([-3, 2], jnp.int4),
    "uint4": jnp.array([13, 2], jnp.uint4),
    "key": jax.random.split(jax.random.key(0), 2),
    "empty": jnp.zeros((2, 0)),
    "events": jnp.zeros((0, 3)),
    "nan": jnp.array([np.nan, np.inf]),
    "a/b é 日本 [0] %": jnp.arange(2.0),
}


def numbers(value):
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(value))
    return np.asarray(value).astype(float)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize(
    "to",
    [
        "long",
        "wide",
        "xarray",
        pytest.param("parquet", marks=pytest.mark.integration),
        pytest.param("wide parquet", marks=pytest.mark.integration),
    ],
)
def test_odd_values_are_converted(name, to, tmp_path):
    value = ODD[name]
    logs = lox.logdict({name: value})
    expected = numbers(value)
    if to == "xarray":
        assert_array_equal(logs.to_xarray()[name], expected)
        return
    wide = "wide" in to
    table = logs.to_pandas(wide=wide)
    if "parquet" in to:
        logs.to_parquet(tmp_path / "logs.parquet", wide=wide)
        read = pandas.read_parquet(tmp_path / "logs.parquet")
        pandas.testing.assert_frame_equal(read, table, check_column_type=False)
        table = read
    found = table.to_numpy() if wide else table["value"].to_numpy()
    assert_array_equal(np.asarray(found, float).reshape(-1), expected.reshape(-1))


def test_odd_values_are_of_dtypes_of_numpy_itself():
    found = {name: lox.logdict({name: value}).to_xarray()[name].dtype for name, value in ODD.items()}
    assert [name for name, dtype in found.items() if dtype.isbuiltin != 1] == []


@pytest.mark.integration
def test_complex_numbers_are_in_tables_but_not_in_files(tmp_path):
    logs = lox.logdict({"z": jnp.array([1j, 2])})
    assert logs.to_pandas()["value"].tolist() == logs.to_pandas(wide=True)["z"].tolist() == [1j, 2]
    assert logs.to_xarray()["z"].values.tolist() == [1j, 2]
    with pytest.raises(lox.LogDataError, match="'z' is complex"):
        logs.to_parquet(tmp_path / "logs.parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_values_of_several_kinds_are_in_one_long_column(tmp_path):
    logs = lox.logdict(
        {"x": jnp.array([0.5]), "flag": jnp.array([True]), "n": jnp.array([3]), "none": jnp.zeros((1, 0))}
    )
    logs.to_parquet(tmp_path / "logs.parquet")
    table = pandas.read_parquet(tmp_path / "logs.parquet")
    assert table["value"].tolist() == [0.5, 1, 3] and table["key"].tolist() == ["x", "flag", "n"]


@pytest.mark.integration
@pytest.mark.parametrize("wide", [False, True])
def test_no_logs(wide, tmp_path):
    logs = lox.logdict()
    assert len(logs.to_pandas(wide=wide)) == 0
    logs.to_parquet(tmp_path / "logs.parquet", wide=wide)
    assert len(pandas.read_parquet(tmp_path / "logs.parquet")) == 0
    assert not logs.to_xarray().variables


def test_saved_keys_are_converted_as_those_that_were_logged(tmp_path):
    logs = lox.logdict({"key": jax.random.split(jax.random.key(0), 2)})
    lox.save(logs, tmp_path / "run")
    loaded = lox.load(tmp_path / "run")
    pandas.testing.assert_frame_equal(loaded.to_pandas(), logs.to_pandas())
    for each in (logs, loaded):
        assert each.to_xarray()["key"].attrs == {"impl": "threefry2x32"}


@pytest.mark.parametrize("name", ["value", "key", "event", "axis_0"])
def test_counters_that_are_named_as_columns_are_refused(name):
    with pytest.raises(lox.LogValueError, match=f"two columns '{name}'"):
        logs_of({"x": [[1.0]]}, **{name: {"x": [1]}}).to_pandas()


def test_columns_of_one_name_are_refused():
    with pytest.raises(lox.LogValueError, match=r"two columns 'x\[0\]'"):
        logs_of({"x": [[1.0]], "x[0]": [1.0]}).to_pandas(wide=True)
    with pytest.raises(lox.LogValueError, match="two columns 'epoch'"):
        logs_of({"epoch": [1.0]}, epoch=[1]).to_pandas(wide=True)


def test_ten_thousand_keys():
    table = logs_of({f"key{place}": np.float32([place]) for place in range(10_000)}, step=np.int32([3]))
    assert table.to_pandas(wide=True).to_numpy().tolist() == [list(range(10_000))]


# -- datasets ------------------------------------------------------------------------------------------------------


def test_a_dataset_has_dimensions_of_events_lanes_and_values():
    f = jax.vmap(
        lambda x: lax.scan(lambda c, i: (c, lox.log({"x": c, "v": jnp.stack([c, i])}, step=2 * i)), x, jnp.arange(3))
    )
    dataset = spooled(f, jnp.array([1, 5])).to_xarray()
    assert dataset["x"].dims == ("event", "batch") and dataset["v"].dims == ("event", "batch", "v_axis_0")
    assert dataset["step"].dims == ("event",) and dataset["step"].values.tolist() == [0, 2, 4]
    assert dataset.swap_dims(event="step")["x"].sel(step=4).values.tolist() == [1, 5]
    assert dataset["v"].values[2].tolist() == [[1, 2], [5, 2]]


def test_counters_in_which_lanes_differ_keep_the_axis_of_lanes():
    f = jax.vmap(lambda i: lox.log({"x": i}, step=i)["x"])
    dataset = spooled(f, jnp.arange(3)).to_xarray()
    assert dataset["step"].dims == ("event", "batch") and dataset["step"].values.tolist() == [[0, 1, 2]]


def test_keys_with_other_events_have_axes_of_their_own():
    dataset = spooled(train, 1.0).to_xarray()
    assert dataset["loss"].dims == ("event_grads",) and dataset["grads"].dims == ("event_grads", "grads_axis_0")
    assert dataset["step_grads"].values.tolist() == [0, 10, 20] and dataset["epoch_grads"].values.tolist() == [0, 0, 1]
    assert dataset["end"].dims == ("event_end",)
    accuracy = dataset["accuracy"].dropna("event_accuracy")
    assert accuracy.values.tolist() == [0, 2]


def test_events_that_did_not_happen_are_nan():
    def f(x):
        values = {"x": x, "n": x.astype(int), "flag": x > 2, "half": x.astype(jnp.bfloat16), "z": x.astype(complex)}
        lax.cond(x > 1, lambda: lox.log(values, step=7)["x"], lambda: x)

    dataset = spooled(jax.vmap(f), jnp.arange(4.0)).to_xarray()
    for key in ("x", "n", "half", "z"):
        assert_array_equal(dataset[key], [[np.nan, np.nan, 2, 3]])
    assert_array_equal(dataset["flag"], [[np.nan, np.nan, 0, 1]])
    assert dataset["step"].values.tolist() == [7]
    assert (dataset["n"].dtype, dataset["half"].dtype) == (np.float64, np.float32)


def test_batches_of_several_lengths_have_several_lanes():
    def f(xs, ys):
        jax.vmap(lambda x: lox.log({"x": x}, step=0)["x"])(xs)
        jax.vmap(lambda y: lox.log({"y": y}, step=0)["y"])(ys)

    dataset = spooled(f, jnp.arange(2.0), jnp.arange(3.0)).to_xarray()
    assert (dataset["x"].dims, dataset["y"].dims) == (("event_x", "batch_x"), ("event_y", "batch_y"))


def test_variables_of_one_name_are_refused():
    with pytest.raises(lox.LogValueError, match="two variables 'step'"):
        logs_of({"step": [1.0]}, step=[1]).to_xarray()
    with pytest.raises(lox.LogValueError, match="two variables 'event'"):
        logs_of({"event": [1.0]}).to_xarray()
    with pytest.raises(lox.LogValueError, match="a counter and an axis 'batch'"):
        lox.logdict({"x": np.ones((1, 2))}, {"batch": {"x": np.ones((1, 2))}}).to_xarray()


def test_a_dataset_survives_a_file(tmp_path):
    dataset = spooled(jax.vmap(train), jnp.array([1.0, 5.0])).to_xarray()
    dataset.to_netcdf(tmp_path / "logs.nc", engine="scipy")
    with xarray.open_dataset(tmp_path / "logs.nc", engine="scipy") as again:
        xarray.testing.assert_identical(again.load(), dataset)


@pytest.mark.parametrize(
    ("call", "module", "message"),
    [
        (lambda logs: logs.to_pandas(), "pandas", "to_pandas needs pandas, .*jax-lox.pandas"),
        (lambda logs: logs.to_pandas(wide=True), "pandas", "to_pandas needs pandas, .*jax-lox.pandas"),
        (lambda logs: logs.to_xarray(), "xarray", "to_xarray needs xarray, .*jax-lox.xarray"),
        (lambda logs: logs.to_parquet("x"), "pyarrow", "to_parquet needs pyarrow, .*jax-lox.parquet"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch, call, module, message):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as raised:
        call(logs_of({"x": [1.0]}))
    assert re.search(message, raised.value.__notes__[0])


def test_events_of_one_step_are_one_wide_row_for_each_batch_element_whatever_the_mask():
    step = jnp.zeros((1, 2), int)
    values = {"a": jnp.float32([[1, 2]]), "b": jnp.float32([[3, 4]])}
    logs = lox.logdict(values, {"step": dict.fromkeys(values, step)}, {"a": jnp.array([[False, True]])})
    rows = logs.to_pandas(wide=True).reset_index()[["step", "batch", "a", "b"]].to_numpy()
    np.testing.assert_array_equal(rows, [[0, 0, np.nan, 3], [0, 1, 2, 4]])


def of_many_kinds():
    """Logs of batches with masks, repeated steps, several counters and axes, and some that have none of these."""
    rng = np.random.default_rng(0)
    mask = rng.random((5, 3)) < 0.6
    mask[1] = False
    lanes = np.where(mask, (np.arange(15) * 7 % 4).reshape(5, 3), 77)
    data = {
        "loss": np.float32([1, 2, np.nan, 4]),
        "lanes": rng.integers(0, 9, (5, 3)).astype(np.int16),
        "grid": rng.random((2, 3, 2, 2)),
        "flag": np.array([True, False, True]),
        "bare": np.int64([2**53 + 1, 7]),
        "one": rng.random((2, 3)),
        "z": np.complex64([1j, 2]),
    }
    steps = {
        "step": {"loss": np.int32([4, 0, 4, 2]), "lanes": lanes, "grid": np.array([4, 1]), "flag": np.array([0, 0, 9])},
        "epoch": {"loss": np.int32([1, 0, 1, 0]), "flag": np.array([0, 0, 5]), "bare": np.array([3, 4])},
        "time": {"z": np.float64([0.5, 0.25])},
    }
    masks = {"lanes": mask, "grid": np.ones((2, 3), bool), "one": np.array([[False, False, True], [True, False, True]])}
    return lox.logdict(data, steps, masks)


def events_of(logs):
    """Each event of each key that happened in a batch element: its number, the element, its counters, its value."""
    for key in logs:
        values = np.asarray(logs[key])
        lanes = logs.mask[key].shape[1:] if key in logs.mask else ()
        for event, *lane in np.ndindex(len(values), *lanes):
            if key not in logs.mask or logs.mask[key][event, *lane]:
                steps = {name: np.asarray(of[key]) for name, of in logs.steps.items() if key in of}
                at = {name: step[(event, *lane)[: step.ndim]].item() for name, step in steps.items()}
                yield key, event, tuple(lane), at, values[event, *lane]


def test_tables_have_the_rows_and_columns_of_a_loop_in_python():
    logs = of_many_kinds()
    wide, occurred = {}, collections.Counter()
    for key, event, lane, at, value in events_of(logs):
        counted = "step" in at
        step = at["step"] if counted else event
        occurred[key, step, lane] += 1
        label = (not counted, step, occurred[key, step, lane], *(lane or (-1,)))
        row = wide.setdefault(label, {})
        row.update({name: of for name, of in at.items() if name != "step"})
        row.update(
            {
                f"{key}[{', '.join(map(str, place))}]" if place else key: value[place]
                for place in np.ndindex(value.shape)
            }
        )
    table = logs.to_pandas(wide=True)
    assert [*table.index.names] == ["step", "batch"] and len(table) == len(wide)
    of_grid = [f"grid[{i}, {j}]" for i in range(2) for j in range(2)]
    assert [*table.columns] == ["epoch", "time", "bare", "flag", *of_grid, "lanes", "loss", "one", "z"] or [
        *table.columns
    ] == ["epoch", "time", "loss", "lanes", *of_grid, "flag", "bare", "one", "z"]
    for (label, row), (index, found) in zip(sorted(wide.items()), table.iterrows(), strict=True):
        uncounted, step, _, lane = label
        assert [None if pandas.isna(each) else each for each in index] == [
            None if uncounted else step,
            None if lane < 0 else lane,
        ]
        for name, value in found.items():
            assert (
                value == row[name] or (value != value and row[name] != row[name]) if name in row else pandas.isna(value)
            )
    dtypes = {name: str(table[name].dtype) for name in ("epoch", "time", "bare", "flag", "lanes", "loss", "one", "z")}
    assert dtypes == {
        "epoch": "Int64",
        "time": "float64",
        "bare": "Int64",
        "flag": "boolean",
        "lanes": "Int16",
        "loss": "float32",
        "one": "float64",
        "z": "complex64",
    }
    rows = []
    for key, event, lane, at, value in events_of(logs):
        for place in np.ndindex(value.shape):
            axes = {f"axis_{axis}": each for axis, each in enumerate((*lane, *place))}
            rows.append({"key": key, "event": event, **axes, **at, "value": value[place]})
    table = logs.to_pandas()
    names = dict.fromkeys(name for row in rows for name in row if name != "value")
    assert [*table.columns] == [*names, "value"] and len(table) == len(rows)
    for row, (_, found) in zip(rows, table.iterrows(), strict=True):
        for name, value in found.items():
            assert (
                value == row[name] or (value != value and row[name] != row[name]) if name in row else pandas.isna(value)
            )
    assert (str(table["event"].dtype), str(table["axis_1"].dtype), str(table["epoch"].dtype)) == (
        "int64",
        "Int64",
        "Int64",
    )


def test_a_dataset_has_the_axes_and_coordinates_of_each_group_of_keys():
    logs = of_many_kinds()
    mask = logs.mask["lanes"]
    more = lox.logdict(
        {"v": np.arange(8.0).reshape(4, 2), "loss2": np.int8([1, 2, 3, 4]), "deep": np.ones((1, 2, 3, 1))},
        {
            "step": {
                "v": logs.steps["step"]["loss"],
                "loss2": logs.steps["step"]["loss"],
                "deep": np.array([[[1] * 3, [2] * 3]]),
            },
            "epoch": {key: logs.steps["epoch"]["loss"] for key in ("v", "loss2")},
        },
    )
    dataset = (logs | more).to_xarray()
    dims = {name: dataset[name].dims for name in dataset.data_vars}
    assert dims == {
        "loss": ("event_loss",),
        "lanes": ("event_lanes", "batch_lanes"),
        "grid": ("event_grid", "batch_grid", "grid_axis_0", "grid_axis_1"),
        "flag": ("event_flag",),
        "bare": ("event_bare",),
        "one": ("event_one", "batch_one"),
        "z": ("event_z",),
        "v": ("event_loss", "v_axis_0"),
        "loss2": ("event_loss",),
        "deep": ("event_deep", "batch_0_deep", "batch_1_deep", "deep_axis_0"),
    }
    coordinates = {
        "step_loss": (("event_loss",), [4, 0, 4, 2]),
        "epoch_loss": (("event_loss",), [1, 0, 1, 0]),
        "step_lanes": (("event_lanes", "batch_lanes"), logs.steps["step"]["lanes"].tolist()),
        "step_grid": (("event_grid",), [4, 1]),
        "step_flag": (("event_flag",), [0, 0, 9]),
        "epoch_flag": (("event_flag",), [0, 0, 5]),
        "epoch_bare": (("event_bare",), [3, 4]),
        "time_z": (("event_z",), [0.5, 0.25]),
        "step_deep": (("event_deep", "batch_0_deep", "batch_1_deep"), [[[1] * 3, [2] * 3]]),
    }
    assert {name: (of.dims, of.values.tolist()) for name, of in dataset.coords.items()} == coordinates
    for key in logs | more:
        values = np.asarray((logs | more)[key])
        if key == "lanes":
            assert dataset[key].dtype == np.float64
            values = np.where(mask, values, np.nan)
        elif key == "one":
            values = np.where(logs.mask["one"], values, np.nan)
        else:
            assert dataset[key].dtype == values.dtype
        assert_array_equal(dataset[key].values, values)
    shared = lox.logdict(
        {"a": np.ones((2, 3)), "b": np.zeros((2, 3))}, {}, {key: np.ones((2, 3), bool) for key in "ab"}
    )
    assert {name: of.dims for name, of in shared.to_xarray().data_vars.items()} == dict.fromkeys(
        "ab", ("event", "batch")
    )
    two = lox.logdict({"a": np.ones((2, 3)), "b": np.ones(2)}, {}, {"a": np.ones((2, 3), bool)}).to_xarray()
    assert (two["a"].dims, two["b"].dims) == (("event_a", "batch"), ("event_b",))


@pytest.mark.parametrize(("code", "is_named"), [("import no_such_package", True), ("from json import nothing", False)])
def test_only_a_package_that_is_missing_is_said_to_be_missing(tmp_path, monkeypatch, code, is_named):
    (tmp_path / "pandas.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    with pytest.raises(ImportError) as error:
        lox.logdict({"x": jnp.ones(2)}).to_pandas()
    assert ("no_such_package" in "".join(getattr(error.value, "__notes__", []))) == is_named
    assert is_named or not getattr(error.value, "__notes__", [])
