"""The training loop, and what a method does in it."""

from cleanpairs.trainer.loop import Trainer
from cleanpairs.trainer.procedure import Correspondence, Plain, Procedure
from cleanpairs.trainer.step import MAX_NON_FINITE
from cleanpairs.trainer.types import EpochRecord, Piece, Trained, TrainingData, TrainingSettings, step_seed
from cleanpairs.trainer.view import Forward, Network, View

__all__ = [
    "MAX_NON_FINITE",
    "Correspondence",
    "EpochRecord",
    "Forward",
    "Network",
    "Piece",
    "Plain",
    "Procedure",
    "Trained",
    "Trainer",
    "TrainingData",
    "TrainingSettings",
    "View",
    "step_seed",
]
