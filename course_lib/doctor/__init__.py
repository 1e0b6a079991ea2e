"""The loop doctor: what a training loop does to each micro-batch, and the name of what is wrong with it."""

from .examine import examine
from .problems import Owned, Problem
from . import problems
from .report import Diagnosis, Report, Window

__all__ = ["Diagnosis", "Owned", "Problem", "Report", "Window", "examine", "problems"]
