"""Log a run to the loggers of the Trainer.

The export list names the loggers that take more than values and settings: each is one file, which registers what it
does with a part in `oodlit/runs/loggers/parts.py`.
"""

from oodlit.runs.loggers import csv as csv
from oodlit.runs.loggers import mlflow as mlflow
from oodlit.runs.loggers import tensorboard as tensorboard
from oodlit.runs.loggers import wandb as wandb
from oodlit.runs.loggers.figures import check_figures as check_figures
from oodlit.runs.loggers.figures import figures_of as figures_of
from oodlit.runs.loggers.hand_over import log_to_all as log_to_all
from oodlit.runs.loggers.run_log import RunLog as RunLog
from oodlit.runs.loggers.run_log import settings_of as settings_of
