"""A logger for MLflow."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lox._extras import extra
from lox._logdict import logdict
from lox._misspelt import says_what_was_meant
from lox.loggers._cards import Card, Damaged, Known
from lox.loggers._images import keys_of_images
from lox.loggers._logger import Logger
from lox.loggers._names import escaped
from lox.loggers._rows import Row, described, rows
from lox.loggers._run import Run

TAG = "lox.run"
"""The tag of an MLflow run that holds the identity of the run."""

TAG_OF_EXPERIMENT = "lox.experiment"
"""The tag of the MLflow run of an experiment that holds its card."""

TAG_OF_PARENT = "mlflow.parentRunId"
"""The tag by which MLflow knows the parent of a run."""

TAG_OF_NOTES = "mlflow.note.content"
"""The tag that MLflow shows as the description of a run."""

TAG_OF_CONFIG = "lox.config"
"""The tag of an MLflow run that names the newest artifact with what describes the run, where there is one."""

# Of how many characters names and values may be.
NAME = 250
VALUE = 6000

STATISTICS: dict[str, Callable[[Any], Any]] = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}
REFUSED = (
    r"[^/\w.\- ]"  # Characters,
    r"|(?<![^/])/|/\Z|(?<![^/])\.(?=\.?(?:/|\Z))|\A\.(?=\.)"  # what is no name of a file,
    rf"|\.(?=(?:{'|'.join(STATISTICS)})\Z)"  # and what the statistics of another key end with.
)
REFUSED_OF_IMAGES = r"[^/A-Za-z0-9_.\- ]"
NAME_OF_IMAGE = 120

_starting = threading.Lock()
"""Two threads do not begin runs at once."""


@dataclasses.dataclass(frozen=True)
class _Store:
    """An experiment of MLflow. Each of its parent runs holds the card of an experiment of lox.

    To open a store may create or migrate it, so only a process that writes does.
    """

    tracking_uri: str
    experiment_name: str
    open: Callable[[], Any] = dataclasses.field(compare=False)
    refusal: type[Exception] = dataclasses.field(compare=False)
    _parents: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)

    @functools.cached_property
    def client(self) -> Any:
        return self.open()

    @functools.cached_property
    def id(self) -> str:
        found = self.client.get_experiment_by_name(self.experiment_name)
        if found is None:
            try:
                return self.client.create_experiment(self.experiment_name)
            except self.refusal:  # Another process may have made it since.
                found = self.client.get_experiment_by_name(self.experiment_name)
                if found is None:
                    raise
        return found.experiment_id

    def forked(self) -> None:
        """Connects anew in a forked process: a database that two processes use by one connection is damaged."""
        client = self.__dict__.pop("client", None)
        store = getattr(getattr(client, "_tracking_client", None), "store", None)
        if engine := getattr(store, "engine", None):
            engine.dispose(close=False)

    def search(self, condition: str) -> list[Any]:
        """The runs that match a condition, in the order in which they were made."""
        found: list[Any] = []
        token = None
        while token is None or token:
            page = self.client.search_runs([self.id], condition, page_token=token)
            found += page
            token = page.token or ""
        return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))

    def create(self, tags: Mapping[str, str], name: str) -> Any:
        """A new run."""
        return self.client.create_run(self.id, tags=dict(tags), run_name=name)

    def parent(self, name: str) -> str:
        """The id of the run of an experiment; of several of one name, the first."""
        if name not in self._parents:
            self._parents[name] = self._named(name)[0]
        return self._parents[name]

    def _named(self, name: str) -> list[str]:
        """The ids of the runs of experiments of a name."""
        return [id for id, card in self._cards() if card.name == name]

    def _cards(self) -> list[tuple[str, Card | Damaged]]:
        """The ids and cards of the runs of experiments."""
        runs = self.search(f"tags.`{TAG_OF_EXPERIMENT}` LIKE '%'")
        return [(run.info.run_id, _card(run)) for run in runs]

    def read(self) -> Known:
        """See `Cards`."""
        return {card.name: card for _, card in self._cards()[::-1]}

    def make(self, card: Card) -> bool:
        """See `Cards`. Who sees no other after making its own has the name; who sees one tries again."""
        while card.name not in self.read():
            mine = self.create({TAG_OF_EXPERIMENT: card.to_json()}, card.name).info.run_id
            if self._named(card.name) == [mine]:
                self._parents[card.name] = mine
                return True
            self.client.delete_run(mine)
            time.sleep(random.uniform(0, 0.2))
        return False

    def replace(self, card: Card) -> None:
        """See `Cards`."""
        parent = self.parent(card.name)
        self.client.set_tag(parent, TAG_OF_EXPERIMENT, card.to_json())
        self.client.update_run(parent, status="RUNNING")

    def remove(self, name: str) -> None:
        """See `Cards`."""
        self.client.delete_run(self._parents.pop(name))

    def end(self, name: str) -> None:
        """See `Cards`."""
        self.client.set_terminated(self.parent(name))

    def __str__(self) -> str:
        return f"MLflow's experiment {self.experiment_name!r}"


def _absolute(uri: str) -> str:
    """A URI whose path stays the same when the program changes its directory."""
    from mlflow.utils.uri import resolve_uri_if_local

    scheme, separator, path = uri.partition(":///")
    if not scheme.startswith("sqlite"):
        return resolve_uri_if_local(uri)
    return uri if path.startswith((":memory:", "file:")) or not path else f"{scheme}{separator}{Path(path).absolute()}"


def _card(run: Any) -> Card | Damaged:
    """The card of the experiment whose MLflow run this is."""
    try:
        return Card.from_json(run.data.tags[TAG_OF_EXPERIMENT])
    except ValueError as error:
        where = f"The tag {TAG_OF_EXPERIMENT} of the MLflow run {run.info.run_id}"
        return Damaged(run.info.run_name, run.info.start_time * 1_000_000, where, str(error))


class MlflowLogger(Logger):
    """Write each run to an MLflow run of its own. Needs the extra `mlflow`.

    The experiment is an MLflow run as well, and the parent of those of its runs, which have the names of the runs.
    MLflow takes nothing back: with `from_step`, runs go on as further MLflow runs, whose names end in "-from4" for the
    step 4. The tag `lox.experiment` of the parent is what is known of the experiment, the tag `lox.run` of the others
    the identity of the run, and `key` its key. What describes the run becomes its params. Where they cannot hold it,
    for being longer than 6000 characters or for having changed since, an artifact does, which the tag `lox.config`
    names.

    Numbers become metrics. An array becomes four metrics of what is finite in it, unless nothing is: `KEY.mean`,
    `KEY.std`, `KEY.min` and `KEY.max`. Values with batch axes become their mean, or what `batch_as` says. Quantiles are
    a metric each, `KEY/q0.5`; MLflow has no histograms, so what `lox.reductions.histogram` made becomes estimates of
    the quantiles 0.1, 0.5 and 0.9. The step is the counter `step`, or the number of the event where none was logged or
    it is of floats; other counters are metrics as well. A character that names of metrics cannot have is written as its
    code point, `*` as `_x2a-`, and a name of more than 250 characters ends with a hash instead. A key that is the name
    of one of its counters gets `_x-` at its end. MLflow keeps NaN, and infinities as the largest float.

    The active run and the tracking URI of the module `mlflow` are neither used nor changed. MLflow itself sends usage
    statistics, unless the environment has `MLFLOW_DISABLE_TELEMETRY=true`.

    Args:
        tracking_uri: The URI of a server, or of a store as in `"sqlite:///mlflow.db"`. Without it, MLflow's own at the
            moment. A relative path is one from the current directory, wherever the program goes later.
        experiment_name: The name of MLflow's experiment, which is made when there is none.
        tags: More tags of the runs.
        images: Keys whose values are images: shape `(H, W)` or `(H, W, C)` with 1, 3 or 4 channels, of `uint8`, or of
            floats from 0 to 1.
        **options: As for `Logger`.

    Raises:
        ImportError: mlflow-skinny, or mlflow, is not installed.
        LogDataError: `images` is not a name or an iterable of names. A `TypeError`.
        mlflow.exceptions.MlflowException: By `flush`: there is no such server or store.
    """

    gathers = True

    @says_what_was_meant()
    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment_name: str = "Default",
        *,
        tags: Mapping[str, str] | None = None,
        images: str | Iterable[str] = (),
        **options: Any,
    ):
        with extra("mlflow", "MlflowLogger"):
            from mlflow import entities
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient, get_tracking_uri
        self._images = keys_of_images(images)
        self._entities, self._tags = entities, dict(tags or {})
        uri = _absolute(get_tracking_uri() if tracking_uri is None else tracking_uri)
        self._store = _Store(uri, experiment_name, functools.partial(MlflowClient, uri), MlflowException)
        self._ids: dict[str, str] = {}
        self._params: dict[str, dict[str, str]] = {}
        self._config: dict[str, dict[str, str]] = {}
        self._exceeding: set[str] = set()
        self._time = 0
        super().__init__(**options)
        self._kept_by(self._store)

    @property
    def _client(self) -> Any:
        return self._store.client

    def start(self, run: Run) -> None:
        """See `Logger`."""
        card = self._card
        parent = self._store.parent(card.name)
        identity = f"{run.identity}{card.suffix}"
        with _starting:
            mine = self._store.search(f"tags.`{TAG}` = '{identity}' and tags.`{TAG_OF_PARENT}` = '{parent}'")[:1]
            if mine:
                self._client.update_run(mine[0].info.run_id, status="RUNNING")
            else:
                notes = {} if run.notes is None else {TAG_OF_NOTES: run.notes}
                tags = self._tags | notes | {TAG: identity, TAG_OF_PARENT: parent, "key": json.dumps(run.key)}
                mine = [self._store.create(tags, f"{run.name}{card.suffix}")]
        self._ids[run.name] = mine[0].info.run_id
        self._params[run.name] = dict(mine[0].data.params)
        if TAG_OF_CONFIG in mine[0].data.tags:
            self._exceeding.add(run.name)
        self.describe(run)

    def describe(self, run: Run) -> None:
        """See `Logger`."""
        config = {name: str(value) for name, value in described(run).items()}
        if config == self._config.get(run.name, {}):
            return
        texts = {escaped(name, REFUSED, NAME): text for name, text in config.items()}
        params = {name: text if len(text) <= VALUE else f"{text[: VALUE - 1]}…" for name, text in texts.items()}
        new = {name: text for name, text in params.items() if name not in self._params[run.name]}
        if new:
            self._client.log_batch(self._ids[run.name], params=[self._entities.Param(*param) for param in new.items()])
        self._params[run.name] |= new
        if run.name in self._exceeding or any(self._params[run.name][name] != text for name, text in texts.items()):
            file = f"config/{time.time_ns()}.json"
            self._client.log_text(self._ids[run.name], json.dumps(described(run), default=str), file)
            self._client.set_tag(self._ids[run.name], TAG_OF_CONFIG, file)
            self._exceeding.add(run.name)
        self._config[run.name] = config

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        numbers: list[tuple[str, float, int]] = []
        try:
            for row in rows(run, logs, self._images, True, self.batch_as, with_histograms=False):
                self._write_row(run, row, numbers)
        finally:
            if numbers:
                self._send(run, numbers)

    def _forked(self, is_whole: bool) -> None:
        """See `Logger`. The connections are those of the parent."""
        super()._forked(is_whole)
        self._store.forked()

    def finish(self, run: Run) -> None:
        """See `Logger`."""
        if run.name in self._ids:
            self._client.set_terminated(self._ids.pop(run.name))

    def _write_row(self, run: Run, row: Row, written: list[tuple[str, float, int]]) -> None:
        step = int(row.step)
        counters = {escaped(name, REFUSED, NAME): number for name, number in row.counters.items()}
        numbers = {escaped(key, REFUSED, NAME, counters): number for key, number in row.numbers.items()}
        written += [(name, float(number), step) for name, number in (counters | numbers).items()]
        for key, array in row.arrays.items():
            name = escaped(key, REFUSED, NAME - len(".mean"))
            with np.errstate(over="ignore", invalid="ignore"):
                found = {statistic: float(of(array)) for statistic, of in STATISTICS.items()}
            written += [(f"{name}.{statistic}", number, step) for statistic, number in found.items()]
        for key, image in row.images.items():
            name = escaped(key, REFUSED_OF_IMAGES, NAME_OF_IMAGE)
            self._client.log_image(self._ids[run.name], image, key=name, step=step)

    def _send(self, run: Run, numbers: list[tuple[str, float, int]]) -> None:
        # MLflow keeps one of several equal metrics of one millisecond: of those of one step, the next and all that come
        # after it are of later ones, so that they stay in order.
        now = self._time = max(time.time_ns() // 1_000_000, self._time + 1)
        late: Counter[str] = Counter()
        latest: dict[str, int] = {}
        metrics = []
        for metric, value, step in numbers:
            late[metric] += latest.get(metric) == step
            latest[metric] = step
            metrics.append(self._entities.Metric(metric, value, now + late[metric], step))
        self._time += max(late.values(), default=0)
        self._client.log_batch(self._ids[run.name], metrics=metrics)  # Which takes any number, in several calls.
