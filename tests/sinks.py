"""What sinks have written, as their own readers and files have it: by run and key, pairs of a step and a value."""

import io
import json
import sqlite3
import time
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np

from lox.loggers import MlflowLogger, MultiLogger, TensorBoardLogger, TrackioLogger, WandbLogger


class Sink:
    """Where a logger of the type `of` writes.

    Attributes:
        arguments: Those of the logger: the positional ones, and the others by name.
    """

    experiment = "tried"

    def logger(self, **options):
        """A logger of the same experiment, which the second one continues."""
        positional, named = self.arguments
        which = {"resume" if getattr(self, "begun", False) else "name": self.experiment}
        self.begun = True
        return self.of(*positional, **(which | named | options))

    def several(self, *others):
        """The same, which logs to others as well."""
        positional, named = self.arguments
        return MultiLogger(self.of(*positional, **named), *others, name=self.experiment)


class TensorBoard(Sink):
    """A directory."""

    of = TensorBoardLogger

    def __init__(self, path):
        self.path = path
        self.arguments = [str(path)], {}

    def numbers(self):
        return {name: self._events(name, "scalars", lambda event: event.value) for name in self.runs()}

    def ranges(self):
        def ends(event):
            return (event.histogram_value.min, event.histogram_value.max)

        return {name: self._events(name, "histograms", ends) for name in self.runs()}

    def bins(self):
        """Those that TensorBoard draws, which leaves out the empty ones at both ends."""
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray

        found = defaultdict(lambda: defaultdict(list))
        for name in self.runs():
            for file in sorted((self.path / self.experiment / name).iterdir()):
                for event in EventFileLoader(str(file)).Load():
                    for value in event.summary.value:
                        if value.metadata.plugin_data.plugin_name == "histograms":
                            lefts, rights, counts = make_ndarray(value.tensor).T.tolist()
                            assert lefts[1:] == rights[:-1]
                            found[name][value.tag].append((event.step, (counts, [*lefts, rights[-1]])))
        return found

    def images(self):
        return {
            name: self._events(name, "images", lambda event: pixels(io.BytesIO(event.encoded_image_string)))
            for name in self.runs()
        }

    def runs(self):
        return [path.name for path in (self.path / self.experiment).iterdir() if path.is_dir()]

    def read(self, name):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        everything = dict.fromkeys(("scalars", "histograms", "tensors", "images"), 0)
        events = EventAccumulator(str(self.path / self.experiment / name), size_guidance=everything)
        with np.errstate(over="ignore"):  # Of what it makes of histograms, for its page of distributions.
            events.Reload()
        return events

    def _events(self, name, kind, value):
        events = self.read(name)
        read = {"scalars": events.Scalars, "histograms": events.Histograms, "images": events.Images}[kind]
        return {tag: [(event.step, value(event)) for event in read(tag)] for tag in events.Tags()[kind]}


class Wandb(Sink):
    """A directory of runs that were offline."""

    of = WandbLogger

    def __init__(self, path):
        self.path = path
        self.arguments = [], {"init": {"mode": "offline", "dir": str(path)}}

    def numbers(self):
        return self._rows(lambda folder, value: value if isinstance(value, (int, float)) else None)

    def ranges(self):
        return self._rows(lambda folder, value: ends(value))

    def bins(self):
        return self._rows(lambda folder, value: bins(value))

    def images(self):
        def image(folder, value):
            if isinstance(value, dict) and value.get("_type") == "image-file":
                return pixels(folder / "files" / value["path"])

        return self._rows(image)

    def files(self):
        """Those of the runs, in the order in which they were begun; a run that goes on has another one."""
        return sorted(self.path.glob("wandb/offline-run-*/*.wandb"))

    def read(self):
        """By run: what describes it, its group, the axes of its metrics, and its rows."""
        found = {}
        for file in self.files():
            config, axes, name, group = {}, {}, "", ""
            for record in self._written(file):
                kind = record.WhichOneof("record_type")
                if kind == "run":
                    name, group = record.run.display_name, record.run.run_group
                    config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
                elif kind == "config":
                    config |= {item.key: json.loads(item.value_json) for item in record.config.update}
                elif kind == "metric":
                    axes[record.metric.name] = record.metric.step_metric
            found[name] = (config, group, axes, self.rows(file))
        return found

    def options(self):
        """By file: what the run was begun with."""
        found = {}
        for file in self.files():
            run = next(record.run for record in self._written(file) if record.HasField("run"))
            config = {item.key: json.loads(item.value_json) for item in run.config.update if item.key != "_wandb"}
            named = {"id": run.run_id, "name": run.display_name, "group": run.run_group, "project": run.project}
            found[file] = named | {"notes": run.notes, "tags": [*run.tags], "config": config}
        return found

    def rows(self, file):
        rows = []
        for record in self._written(file):
            row = {}
            for item in record.history.item:
                path, inner = [*item.nested_key] or [item.key], row
                for part in path[:-1]:
                    inner = inner.setdefault(part, {})
                inner[path[-1]] = json.loads(item.value_json)
            rows.append({key: value for key, value in row.items() if key not in ("_step", "_timestamp", "_runtime")})
        return [row for row in rows if row]

    def _rows(self, read):
        found = defaultdict(lambda: defaultdict(list))
        for file in self.files():
            name = next(record.run.display_name for record in self._written(file) if record.HasField("run"))
            for row in self.rows(file):
                axis = "event" if "event" in row else "step"
                for key, value in row.items():
                    if key != axis and (number := read(file.parent, value)) is not None:
                        found[name][key].append((row[axis], number))
        return found

    def _written(self, file):
        """The records of a file. W&B goes on writing after a run has ended, up to the record that says so."""
        for _ in range(600):
            records = list(self._records(file))
            if any(record.WhichOneof("record_type") == "exit" for record in records):
                return records
            time.sleep(0.05)
        raise TimeoutError(f"{file} has no end")

    @staticmethod
    def _records(file):
        """The complete records of a file that may grow meanwhile, whose format is that of LevelDB's log."""
        from wandb.proto import wandb_internal_pb2

        data, place, parts = file.read_bytes(), 7, b""
        assert b":W&B".startswith(data[:4])
        while place < len(data):
            left = 32768 - place % 32768
            if left < 7:
                place += left
                continue
            head, place = data[place : place + 7], place + 7
            length, kind = int.from_bytes(head[4:6], "little"), head[6:]
            part, place = data[place : place + length], place + length
            if place > len(data) or zlib.crc32(kind + part) != int.from_bytes(head[:4], "little"):
                return  # The rest is still to be written.
            parts = part if kind in (b"\1", b"\2") else parts + part  # A whole record, or the first part of one.
            if kind in (b"\1", b"\4"):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(parts)
                yield record


class Mlflow(Sink):
    """An experiment in a store that all share, for it takes seconds to make one."""

    of = MlflowLogger

    def __init__(self, path, store):
        from mlflow.tracking import MlflowClient

        self.path, self.uri, self.name = path, f"sqlite:///{store}", str(path)
        self.client = MlflowClient(self.uri)
        self.id = self.client.create_experiment(self.name, artifact_location=str(path / "artifacts"))
        self.arguments = [self.uri, self.name], {}

    def runs(self):
        found = self.client.search_runs([self.id], max_results=1000)
        return {run.info.run_name: run for run in found if "mlflow.parentRunId" in run.data.tags}

    def numbers(self):
        return {
            name: {key: self._history(run.info.run_id, key) for key in run.data.metrics}
            for name, run in self.runs().items()
        }

    def ranges(self):
        return {
            name: {
                key.removesuffix(".min"): [
                    (step, (low, high))
                    for (step, low), (_, high) in zip(events, numbers[f"{key[:-4]}.max"], strict=True)
                ]
                for key, events in numbers.items()
                if key.endswith(".min")
            }
            for name, numbers in self.numbers().items()
        }

    def _history(self, run_id, key):
        events = self.client.get_metric_history(run_id, key)
        return [(event.step, event.value) for event in sorted(events, key=lambda event: (event.timestamp, event.step))]

    def images(self):
        found = defaultdict(lambda: defaultdict(list))
        for name, run in self.runs().items():
            for file in sorted(Path(run.info.artifact_uri).glob("images/*.png")):
                key, _, step, *_ = file.name.replace("~", "/").split("+")
                found[name][key].append((int(step), pixels(file)))
        return found


class Trackio(Sink):
    """A project in the directory that TRACKIO_DIR says."""

    of = TrackioLogger

    def __init__(self, path, folder):
        self.folder, self.project = folder, "".join(part for part in str(path) if part.isalnum())
        self.arguments = [self.project], {}

    def numbers(self):
        from trackio.utils import deserialize_values

        def read(value):
            value = deserialize_values({"value": value})["value"]
            return value if isinstance(value, (int, float)) else None

        return self._rows(read)

    def ranges(self):
        return self._rows(ends)

    def bins(self):
        return self._rows(bins)

    def images(self):
        def read(value):
            if isinstance(value, dict) and value.get("_type") == "trackio.image":
                return pixels(self.folder / "media" / value["file_path"])

        return self._rows(read)

    def rows(self, name):
        """Those of a run of a logger, or of another one."""
        command = "SELECT step, metrics FROM metrics WHERE run_name in (?, ?) ORDER BY id"
        rows = self._select(command, name, f"{self.experiment}/{name}")
        return [(step, json.loads(metrics)) for step, metrics in rows]

    def configs(self):
        found = self._select("SELECT run_name, config FROM configs")
        return {name.removeprefix(f"{self.experiment}/"): json.loads(config) for name, config in found}

    def _rows(self, read):
        found = defaultdict(lambda: defaultdict(list))
        for (name,) in self._select("SELECT DISTINCT run_name FROM metrics"):
            name = name.removeprefix(f"{self.experiment}/")
            for step, row in self.rows(name):
                for key, value in row.items():
                    if (number := read(value)) is not None:
                        found[name][key].append((step, number))
        return found

    def _select(self, command, *values):
        with sqlite3.connect(self.folder / f"{self.project}.db") as connection:
            rows = connection.execute(command, values).fetchall()
        connection.close()
        return rows


def ends(value):
    """Those of a histogram, as W&B and Trackio have it, in which all numbers are."""
    if isinstance(value, dict) and "bins" in value:
        return (value["bins"][0], value["bins"][-1])


def bins(value):
    """The counts of a histogram and the edges of its bins."""
    if isinstance(value, dict) and "bins" in value:
        return value["values"], value["bins"]


def pixels(file):
    """An image as RGBA."""
    from PIL import Image

    with Image.open(file) as image:
        return np.asarray(image.convert("RGBA"))
