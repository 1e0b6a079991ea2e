"""Floor 2: the subject itself. Each file can be read as a lesson."""

from . import ledger, schedule
from .accumulate import accumulate
from .checkpoint import CheckpointError, checkpoint, checkpoint_sequential

__all__ = ["CheckpointError", "accumulate", "checkpoint", "checkpoint_sequential", "ledger", "schedule"]
