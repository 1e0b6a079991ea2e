"""Answers to the two counting exercises of notebook 05: bytes kept, and FLOPs of a step."""

from fractions import Fraction

import torch
from torch import nn

# -- 05.1 --------------------------------------------------------------------------------------------------


def kept_bytes(batch, width, hidden, activation):
    inputs = batch * width + batch * hidden  # what goes into the two Linears
    before = batch * hidden if activation in ("gelu", "silu") else 0
    return 4 * (inputs + before)


def kept_numbers(batch, width, hidden, activation):
    return kept_bytes(batch, width, hidden, activation) // 4


def kept_weights(batch, width, hidden, activation):
    return kept_bytes(batch, width, hidden, activation) + 4 * 2 * width * hidden


def kept_output(batch, width, hidden, activation):
    return kept_bytes(batch, width, hidden, activation) + 4 * batch * width


def kept_no_input(batch, width, hidden, activation):
    return kept_bytes(batch, width, hidden, activation) - 4 * batch * width


def kept_twice(batch, width, hidden, activation):
    return kept_bytes(batch, width, hidden, "gelu")


def kept_once(batch, width, hidden, activation):
    return kept_bytes(batch, width, hidden, "relu")


def kept_float(batch, width, hidden, activation):
    return kept_bytes(batch, width, hidden, activation) / 1


def kept_measured(batch, width, hidden, activation):
    module = nn.Sequential(nn.Linear(width, hidden), _layer(activation), nn.Linear(hidden, width))
    weights = {p.data_ptr() for p in module.parameters()}
    kept = {}

    def pack(tensor):
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(torch.randn(batch, width))
    assert output.requires_grad  # the graph is alive, so no address was used twice
    return sum(kept.values())


def _layer(activation):
    return {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}[activation]()


def kept_table(batch, width, hidden, activation):
    return batch * (width * 4 + hidden * {"relu": 4, "tanh": 4, "gelu": 8, "silu": 8}[activation])


# -- 05.3 --------------------------------------------------------------------------------------------------


def step_ratio(layers, segments, stops_early, last_is_free):
    products_each = layers // segments - (1 if stops_early else 0)
    recomputed = segments - (1 if last_is_free else 0)
    return 1 + recomputed * products_each / (3 * layers)


def ratio_half(layers, segments, stops_early, last_is_free):
    return 1 + (segments - last_is_free) * (layers // segments - stops_early) / (2 * layers)


def ratio_extra(layers, segments, stops_early, last_is_free):
    return step_ratio(layers, segments, stops_early, last_is_free) - 1


def ratio_four_thirds(layers, segments, stops_early, last_is_free):
    return 4 / 3


def ratio_late(layers, segments, stops_early, last_is_free):
    return step_ratio(layers, segments, False, last_is_free)


def ratio_stops_once(layers, segments, stops_early, last_is_free):
    return 1 + ((segments - last_is_free) * (layers // segments) - stops_early) / (3 * layers)


def ratio_all(layers, segments, stops_early, last_is_free):
    return step_ratio(layers, segments, stops_early, False)


def ratio_exact(layers, segments, stops_early, last_is_free):
    again = (segments - bool(last_is_free)) * Fraction(layers, segments)
    if stops_early:
        again -= segments - bool(last_is_free)
    return (3 * layers + again) / (3 * layers)


def ratio_counted(layers, segments, stops_early, last_is_free):
    size, work = layers // segments, 0
    for layer in range(layers):
        work += 3
        free = last_is_free and layer >= layers - size
        work += 0 if free or stops_early and layer % size == size - 1 else 1
    return work / layers / 3
