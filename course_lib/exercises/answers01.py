"""Answers to the exercises of notebook 01: references, typical mistakes, right answers that look "
"different."""

import math

from course_lib.measure import Record
from course_lib.memory import ledger

# -- 01.1 -----------------------------------------------------------------------------------------------


def gpt_parameters(vocab, length, width, depth):
    block = 12 * width**2 + 13 * width
    return vocab * width + length * width + depth * block + 2 * width


def parameters_head_twice(vocab, length, width, depth):
    return gpt_parameters(vocab, length, width, depth) + vocab * width


def parameters_no_biases(vocab, length, width, depth):
    return vocab * width + length * width + depth * (12 * width**2 + 4 * width) + 2 * width


def parameters_no_norms(vocab, length, width, depth):
    return vocab * width + length * width + depth * (12 * width**2 + 9 * width)


def parameters_no_final(vocab, length, width, depth):
    return vocab * width + length * width + depth * (12 * width**2 + 13 * width)


def parameters_no_positions(vocab, length, width, depth):
    return vocab * width + depth * (12 * width**2 + 13 * width) + 2 * width


def parameters_small_mlp(vocab, length, width, depth):
    return vocab * width + length * width + depth * (6 * width**2 + 10 * width) + 2 * width


def parameters_layer_by_layer(vocab, length, width, depth):
    def linear(inputs, outputs):
        return inputs * outputs + outputs

    total = (vocab + length) * width + 2 * width
    for _ in range(depth):
        total += 4 * width + linear(width, 3 * width) + linear(width, width)
        total += linear(width, 4 * width) + linear(4 * width, width)
    return total


# -- 01.2 -----------------------------------------------------------------------------------------------


def state_bytes(shapes, recipe):
    numbers = sum(math.prod(shape) for shape in shapes)
    per_number = {"sgd": 4 + 4, "momentum": 4 + 4 + 4, "adam": 4 + 4 + 8, "mixed adam": 2 + 2 + 4 + 8}
    counters = 4 * len(shapes) if recipe.endswith("adam") else 0
    return numbers * per_number[recipe] + counters


def states_no_counters(shapes, recipe):
    return state_bytes(shapes, recipe) - (4 * len(shapes) if recipe.endswith("adam") else 0)


def states_no_gradients(shapes, recipe):
    numbers = sum(math.prod(shape) for shape in shapes)
    return state_bytes(shapes, recipe) - numbers * (2 if recipe == "mixed adam" else 4)


def states_numbers(shapes, recipe):
    return state_bytes(shapes, recipe) // 4


def states_always_adam(shapes, recipe):
    return state_bytes(shapes, "adam")


def states_no_master(shapes, recipe):
    numbers = sum(math.prod(shape) for shape in shapes)
    return state_bytes(shapes, recipe) - (4 * numbers if recipe == "mixed adam" else 0)


def states_fp32_gradients(shapes, recipe):
    numbers = sum(math.prod(shape) for shape in shapes)
    return state_bytes(shapes, recipe) + (2 * numbers if recipe == "mixed adam" else 0)


def states_no_momentum(shapes, recipe):
    return state_bytes(shapes, "sgd" if recipe == "momentum" else recipe)


def states_one_moment(shapes, recipe):
    numbers = sum(math.prod(shape) for shape in shapes)
    return state_bytes(shapes, recipe) - (4 * numbers if recipe == "adam" else 0)


def states_one_counter(shapes, recipe):
    return states_no_counters(shapes, recipe) + (4 if recipe.endswith("adam") else 0)


def states_per_tensor(shapes, recipe):
    each = {"sgd": 8, "momentum": 12, "adam": 16, "mixed adam": 16}[recipe]
    return sum(each * math.prod(shape) + (4 if "adam" in recipe else 0) for shape in shapes)


# -- 01.3 -----------------------------------------------------------------------------------------------


def linear_gelu_bytes(tokens, inputs, outputs, itemsize=4):
    return tokens * (inputs + outputs) * itemsize


def pair_weight(tokens, inputs, outputs, itemsize=4):
    return (tokens * (inputs + outputs) + inputs * outputs) * itemsize


def pair_output(tokens, inputs, outputs, itemsize=4):
    return tokens * (inputs + 2 * outputs) * itemsize


def pair_input(tokens, inputs, outputs, itemsize=4):
    return tokens * inputs * itemsize


def pair_output_only(tokens, inputs, outputs, itemsize=4):
    return tokens * outputs * itemsize


def pair_four(tokens, inputs, outputs, itemsize=4):
    return tokens * (inputs + outputs) * 4


def pair_numbers(tokens, inputs, outputs, itemsize=4):
    return tokens * (inputs + outputs)


def pair_two_terms(tokens, inputs, outputs, itemsize=4):
    kept_by_linear = tokens * inputs * itemsize
    kept_by_gelu = tokens * outputs * itemsize
    return kept_by_linear + kept_by_gelu


# -- 01.4 -----------------------------------------------------------------------------------------------


def block_bytes(batch, length, width, heads):
    rows = batch * length
    large = 16 * rows * width * 4
    norm_statistics = 2 * 2 * rows * 4
    log_sum_exp = rows * heads * 4
    return large + norm_statistics + log_sum_exp


def block_no_statistics(batch, length, width, heads):
    return 16 * batch * length * width * 4


def block_korthikanti(batch, length, width, heads):
    return length * batch * width * 34 + 5 * heads * length**2 * batch


def block_scores(batch, length, width, heads):
    return block_bytes(batch, length, width, heads) + batch * heads * length**2 * 4


def block_no_input(batch, length, width, heads):
    return block_bytes(batch, length, width, heads) - batch * length * width * 4


def block_no_lse(batch, length, width, heads):
    return block_bytes(batch, length, width, heads) - batch * length * heads * 4


def block_no_norms(batch, length, width, heads):
    return block_bytes(batch, length, width, heads) - 2 * 2 * batch * length * 4


def block_from_parts(batch, length, width, heads):
    return sum(ledger.block_activations(batch, length, width, heads).values())


# -- 01.5 -----------------------------------------------------------------------------------------------


def peak_moment(records):
    index = max(range(len(records)), key=lambda i: records[i].live_bytes)
    return index, records[index].phase


def moment_last(records):
    index = max(range(len(records)), key=lambda i: (records[i].live_bytes, i))
    return index, records[index].phase


def moment_running(records):
    index = max(range(len(records)), key=lambda i: (records[i].peak_bytes, i))
    return index, records[index].phase


def moment_lowest(records):
    index = min(range(len(records)), key=lambda i: records[i].live_bytes)
    return index, records[index].phase


def moment_end_phase(records):
    return peak_moment(records)[0], records[-1].phase


def moment_from_one(records):
    index, phase = peak_moment(records)
    return index + 1, phase


def moment_bytes(records):
    highest = max(record.live_bytes for record in records)
    return highest, peak_moment(records)[1]


def moment_loop(records):
    best = [0, records[0].phase]
    for i, record in enumerate(records):
        if record.live_bytes > records[best[0]].live_bytes:
            best = [i, record.phase]
    return best


def moment_no_optimizer(records):
    return peak_moment([record for record in records if record.phase != "optimizer"])


def moment_empties(records):
    result = peak_moment(records)
    records.clear()
    return result


def made_up_records(draw, peaks, late=False):
    """A small trace that reaches its highest value `peaks` times, in the end's phase only if `late`."""
    lives = [draw.randrange(10, 90) for _ in range(20)]
    places = range(16, 18) if late else range(2, 14, 2)  # never side by side, so that each mistake shows
    for place in draw.sample(places, peaks):
        lives[place] = 100
    lives[0], lives[-1] = 5, 50
    records, peak = [], 0
    for i, live in enumerate(lives):
        peak = max(peak, live)
        phase = "forward" if i < 7 else "backward" if i < 15 else "optimizer"
        records.append(Record(i * 0.001, phase, "aten.mm", live, peak, {"temporary": live}))
    return records


# -- 01.6 -----------------------------------------------------------------------------------------------


def first_oom_step(parameters, gradients, optimizer_state, activations, limit):
    backward = parameters + gradients + activations
    update = parameters + gradients + optimizer_state
    if max(backward, update) > limit:
        return 1
    if backward + optimizer_state > limit:
        return 2
    return None


def oom_all_in_one(parameters, gradients, optimizer_state, activations, limit):
    return 1 if parameters + gradients + optimizer_state + activations > limit else None


def oom_no_state(parameters, gradients, optimizer_state, activations, limit):
    return 1 if parameters + gradients + activations > limit else None


def oom_no_update(parameters, gradients, optimizer_state, activations, limit):
    if parameters + gradients + activations > limit:
        return 1
    return 2 if parameters + gradients + optimizer_state + activations > limit else None


def oom_no_gradients(parameters, gradients, optimizer_state, activations, limit):
    if max(parameters + activations, parameters + gradients + optimizer_state) > limit:
        return 1
    return 2 if parameters + gradients + optimizer_state + activations > limit else None


def oom_strict(parameters, gradients, optimizer_state, activations, limit):
    return first_oom_step(parameters, gradients, optimizer_state, activations, limit - 1)


def oom_loop(parameters, gradients, optimizer_state, activations, limit):
    state = 0
    for step in (1, 2):
        if parameters + gradients + max(activations + state, optimizer_state) > limit:
            return step
        state = optimizer_state
    return None
