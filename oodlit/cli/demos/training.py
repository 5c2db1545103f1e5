"""Training of the small networks in the demos."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from oodlit._lightning import pl, silent_trainer
from oodlit.cli.console import progress
from oodlit.cli.running.quiet import RunProgress, quiet, seeded

NetworkT = TypeVar("NetworkT", bound=nn.Module)
Loss = Callable[[Any, Any], Tensor]
"""Returns the loss of a network on a batch."""


class Training(pl.LightningModule):
    """Training with AdamW and one cycle of the learning rate.

    Args:
        network: The network; trained in place.
        loss: Loss of the network on a batch.
        learning_rate: Largest learning rate.
    """

    def __init__(self, network: nn.Module, loss: Loss, *, learning_rate: float) -> None:
        super().__init__()
        self.network, self.loss, self.learning_rate = network, loss, learning_rate

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Compute the loss of one batch."""
        return self.loss(self.network, batch)

    def configure_optimizers(self) -> pl.utilities.types.OptimizerLRSchedulerConfig:
        """Change the learning rate after every batch."""
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=self.learning_rate, weight_decay=1e-3)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def trained(
    make: Callable[[int], NetworkT],
    loss: Loss,
    data: Any,
    *,
    learning_rate: float,
    seed: int,
    epochs: int,
    accelerator: str,
) -> NetworkT:
    """Make a network and train it.

    Args:
        make: Makes a network with this many classes.
        loss: Loss of the network on a batch.
        data: The training data, with `class_names` and `train_dataloader()`.
        learning_rate: Largest learning rate.
        seed: Seed of the weights and the training.
        epochs: Number of epochs.
        accelerator: Accelerator of the Trainer.
    """
    with quiet(), seeded(seed), progress() as bars:
        network = make(len(data.class_names))
        trainer = silent_trainer(RunProgress(bars), accelerator=accelerator, max_epochs=epochs)
        trainer.fit(Training(network, loss, learning_rate=learning_rate), data.train_dataloader())
    return network
