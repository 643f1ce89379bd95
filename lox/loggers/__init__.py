"""Destinations of logs: loggers keep the logs of each run apart, and write them on threads of their own."""

from lox.loggers._console import ConsoleLogger as ConsoleLogger
from lox.loggers._logger import Logger as Logger
from lox.loggers._memory import MemoryLogger as MemoryLogger
from lox.loggers._mlflow import MlflowLogger as MlflowLogger
from lox.loggers._multi import MultiLogger as MultiLogger
from lox.loggers._run import Run as Run
from lox.loggers._save import SaveLogger as SaveLogger
from lox.loggers._state import State as State
from lox.loggers._tensorboard import TensorBoardLogger as TensorBoardLogger
from lox.loggers._trackio import TrackioLogger as TrackioLogger
from lox.loggers._wandb import WandbLogger as WandbLogger
