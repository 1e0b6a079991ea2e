"""Bad input, turned into one sentence that names the cure."""

from __future__ import annotations

import math
import numbers

import torch


def require_steps(steps) -> int:
    """The number of accumulation steps, if it is a whole number of at least one."""
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral):  # NumPy's integers are welcome
        raise TypeError(f"accumulation_steps must be a whole number such as 4, not {steps!r}.")
    if steps < 1:
        raise ValueError(f"accumulation_steps must be at least 1, not {steps}; 1 means an update after every micro-batch.")
    return steps


def require_trainable(model) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "The model has no parameter with requires_grad=True, so there is nothing to train. "
            "Unfreeze a parameter, or use the model without an optimizer."
        )


def require_some(counted: int) -> int:
    """The number of targets that count in a window."""
    if counted == 0:
        raise ValueError("A window has no target that counts (all are padding), so its mean loss is undefined. Skip such data.")
    return counted


def require_windows(losses: list) -> list:
    if not losses:
        raise ValueError("There were no batches. Check the data set's length, the batch size and drop_last.")
    return losses


def require_finite(loss: torch.Tensor, optimizer) -> float:
    """The window's loss as a float. Otherwise the gradients are cleared, and the caller never reaches its update."""
    value = float(loss)
    if not math.isfinite(value):
        optimizer.zero_grad()
        raise FloatingPointError(
            f"The loss of a window is {value}. The update was not made, the weights are as before. "
            "Look for a too large learning rate, a division by zero in the loss, or bad values in the data."
        )
    return value


def run_model(model, inputs):
    """model(inputs); if whole numbers were given to a model that needs real ones, say so."""
    try:
        return model(inputs)
    except RuntimeError as error:
        if isinstance(inputs, torch.Tensor) and not inputs.is_floating_point() and "dtype" in str(error):
            raise TypeError(
                f"The model cannot work with inputs of {inputs.dtype}. Convert them first: inputs.float()."
            ) from error
        raise
