"""The training loop, and what a method does in it."""

from cleanpairs.trainer.context import BatchOutput, EpochContext, Network
from cleanpairs.trainer.loop import MAX_NON_FINITE, Trainer
from cleanpairs.trainer.strategy import Averaged, SingleNetwork, TrainingStrategy
from cleanpairs.trainer.types import EpochRecord, Trained, TrainingData, TrainingSettings, TrainingStage, step_seed

__all__ = [
    "MAX_NON_FINITE", "Averaged", "BatchOutput", "EpochContext", "EpochRecord", "Network", "SingleNetwork",
    "Trained", "Trainer", "TrainingData", "TrainingSettings", "TrainingStage", "TrainingStrategy", "step_seed",
]  # fmt: skip
