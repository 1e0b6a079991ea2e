"""Floor 1: what is true on this device. Live memory, step time, FLOPs, and which device it is."""

# Imported eagerly and in this order: the function `device` must win over the module of the same name.
from .device import DeviceCard, describe, device
from .meter import Meter, MeterWarning
from .predict import PredictError, predict
from .saved import saved_tensors
from .timing import Timing, compare, flop_ratio, flops
from .trace import CATEGORIES, PHASES, Record, Trace, mib

__all__ = [
    "CATEGORIES",
    "DeviceCard",
    "Meter",
    "MeterWarning",
    "PHASES",
    "PredictError",
    "Record",
    "Timing",
    "Trace",
    "compare",
    "describe",
    "device",
    "flop_ratio",
    "flops",
    "mib",
    "predict",
    "saved_tensors",
]
