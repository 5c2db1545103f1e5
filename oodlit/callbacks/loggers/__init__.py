"""What a run hands to the loggers of its Trainer.

The export list names the loggers that take more than values and settings: each is one file, which registers what it
does with a part in `oodlit/callbacks/loggers/parts.py`.
"""

from oodlit.callbacks.loggers import csv as csv
from oodlit.callbacks.loggers import mlflow as mlflow
from oodlit.callbacks.loggers import tensorboard as tensorboard
from oodlit.callbacks.loggers import wandb as wandb
from oodlit.callbacks.loggers.figures import check_figures as check_figures
from oodlit.callbacks.loggers.figures import figures_of as figures_of
from oodlit.callbacks.loggers.hand_over import log_to_all as log_to_all
from oodlit.callbacks.loggers.run_log import RunLog as RunLog
from oodlit.callbacks.loggers.run_log import settings_of as settings_of
