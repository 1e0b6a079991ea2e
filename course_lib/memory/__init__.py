"""Floor 2: the subject itself. Each file can be read as a lesson."""

from . import ledger
from .accumulate import accumulate

__all__ = ["accumulate", "ledger"]
