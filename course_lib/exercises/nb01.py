"""The exercises of notebook 01: where memory goes."""

import random

import torch
from torch import nn

from course_lib.experiments.models import GPT, Block
from course_lib.measure import Meter, saved_tensors
from course_lib.measure.saved import saved_bytes
from course_lib.memory import ledger

from . import answers01 as a
from .faults import Fault
from .registry import Exercise, Unusual, Wrong, register
from .want import want_int, want_sequence, want_true


def name_the_mistake(got, right, what, typical):
    """Raise the Fault of the typical mistake that gives exactly this number.

    typical: {diagnosis: (number, advice)}, the first that fits is named.
    """
    if got == right:
        return
    told = f"{what} gives {got:,}, and {right:,} is right."
    for diagnosis, (number, advice) in typical.items():
        want_true(got != number, diagnosis, f"{told} {advice}")
    raise Fault("wrong number", f"{told} List the parts and check each on its own.")


# -- 01.1 -----------------------------------------------------------------------------------------------


def check_parameters(answer):
    draw = random.Random()
    drawn = [draw.randrange(low, high) for low, high in ((9, 300), (5, 70), (3, 90), (0, 4))]
    for v, t, d, depth in ((256, 64, 128, 4), (17, 32, 64, 1), (50, 8, 32, 0), drawn):
        what = f"gpt_parameters({v}, {t}, {d}, {depth})"
        got = want_int(answer.call(v, t, d, depth), what)
        right = sum(p.numel() for p in GPT(v, t, d, depth, heads=1).parameters())
        name_the_mistake(got, right, what, {
            "head counted twice": (right + v * d, "The head shares its weight with the token embedding: it "
                "exists once."),
            "biases forgotten": (right - depth * 9 * d, "Each of the four Linears of a block has a bias: 3d "
                "+ d + 4d + d."),
            "norms forgotten": (right - depth * 4 * d - 2 * d, "A LayerNorm has a scale and a shift: two of "
                "them in each block, one at the end."),
            "final norm forgotten": (right - 2 * d, "One more LayerNorm stands before the head."),
            "positions forgotten": (right - t * d, "Every position has a learned vector, too."),
            "mlp too small": (right - depth * (6 * d * d + 3 * d), "The MLP inside a block is 4d wide: d to "
                "4d and back."),
        })  # fmt: skip


register(Exercise(
    id="01.1",
    title="Parameters of a GPT",
    prompt="Return how many parameters the course's GPT has (numbers, not bytes); its head is tied to the "
    "token embedding.",
    reference=a.gpt_parameters,
    hints=(
        "Go through print(GPT(...)) module by module. A Linear from a to b has a*b weights and b biases.",
        "A block: two LayerNorms (2d each), qkv (d to 3d), out (d to d), up (d to 4d), down (4d to d).",
        "A block has 12*d*d + 13*d. Then the embeddings, vocab*d and length*d, and the last norm, 2*d.",
    ),
    checker=check_parameters,
    wrong=(
        Wrong("untied head", a.parameters_head_twice, "head counted twice"),
        Wrong("no biases", a.parameters_no_biases, "biases forgotten"),
        Wrong("no norms", a.parameters_no_norms, "norms forgotten"),
        Wrong("no final norm", a.parameters_no_final, "final norm forgotten"),
        Wrong("no positions", a.parameters_no_positions, "positions forgotten"),
        Wrong("mlp of width d", a.parameters_small_mlp, "mlp too small"),
    ),
    unusual=(Unusual("adds layer by layer", a.parameters_layer_by_layer),),
))  # fmt: skip

# -- 01.2 -----------------------------------------------------------------------------------------------


def measured_states(shapes, recipe):
    """Bytes that the Meter finds after a real first update."""
    kind = torch.bfloat16 if recipe == "mixed adam" else torch.float32
    model = nn.ParameterList(nn.Parameter(torch.ones(shape, dtype=kind)) for shape in shapes)
    mine = list(model)
    if recipe == "mixed adam":
        mine = [p.detach().float().requires_grad_() for p in model]
    make = torch.optim.Adam if recipe.endswith("adam") else torch.optim.SGD
    optimizer = make(mine, lr=0.1, **({"momentum": 0.9} if recipe == "momentum" else {}))
    for p, own in zip(model, mine):
        p.grad = torch.ones_like(p)
        own.grad = p.grad.float()
    optimizer.step()
    if recipe == "mixed adam":
        optimizer.zero_grad()  # the fp32 gradients were needed for the update only
    with Meter(model, optimizer) as meter:
        pass  # nothing runs: it counts what is there
    return meter.trace.baseline_bytes


def check_states(answer):
    draw = random.Random()
    drawn = [(draw.randrange(2, 40), draw.randrange(2, 40)), (draw.randrange(2, 40),), ()]
    for shapes in ([(10, 10)], [(128, 64), (128,)], [(17, 3), (5,), (2, 2, 2)], drawn):
        n = sum(torch.Size(shape).numel() for shape in shapes)
        for recipe in ("sgd", "momentum", "adam", "mixed adam"):
            what = f'state_bytes({shapes}, "{recipe}")'
            got = want_int(answer.call(list(shapes), recipe), what)
            right, steps = measured_states(shapes, recipe), 4 * len(shapes)
            name_the_mistake(got, right, what, {
                "counters forgotten": (right - steps, "torch's Adam keeps a step counter of 4 bytes for "
                    "each tensor."),
                # A forgotten gradient shows with "sgd", which comes first; later, 4 bytes less are state.
                **({"momentum": {"momentum forgotten": (right - 4 * n, "Momentum keeps one number for each "
                        "parameter.")},
                    "adam": {"one moment": (right - 4 * n, "Adam keeps two numbers for each parameter: a "
                        "mean and a mean square.")},
                    "mixed adam": {"no master copy": (right - 4 * n, "With bf16 parameters the optimizer "
                        "owns an fp32 copy of them.")}}.get(recipe, {})),
                "gradients forgotten": (right - (2 if recipe == "mixed adam" else 4) * n, "The gradients "
                    "are as large as the parameters, and they are there when the optimizer steps."),
                "numbers, not bytes": (right // 4, "An fp32 number takes 4 bytes."),
                "fp32 gradients": (right + 2 * n, "In this recipe the gradients are bf16, 2 bytes each. "
                    "Where a framework keeps fp32 gradients beside them, it is more; say which you mean."),
                "one counter": (right - steps + 4, "Each parameter tensor has a step counter of its own."),
                "adam for everyone": (got if got in (16 * n, 16 * n + steps) else 0, "Plain SGD keeps "
                    "nothing, momentum one number per parameter."),
            })  # fmt: skip


register(Exercise(
    id="01.2",
    title="Bytes of the model states",
    prompt='Return the bytes of parameters, gradients and optimizer state for "sgd", "momentum", "adam" (all '
    'fp32) and "mixed adam" (bf16 parameters and gradients, fp32 master copy and moments). Both Adams also '
    "have a 4-byte counter per tensor.",
    reference=a.state_bytes,
    hints=(
        "Count the numbers first: the product of each shape, summed. Then ask how many bytes each number "
        "costs.",
        "fp32: 4 for the parameter, 4 for the gradient; momentum adds 4, Adam adds 8. Mixed: 2 + 2 + 4 + 4 "
        "+ 4.",
        "math.prod(shape) gives the numbers of one tensor; both Adams add 4 * len(shapes) for the counters.",
    ),
    checker=check_states,
    wrong=(
        Wrong("no counters", a.states_no_counters, "counters forgotten"),
        Wrong("no gradients", a.states_no_gradients, "gradients forgotten"),
        Wrong("numbers", a.states_numbers, "numbers, not bytes"),
        Wrong("adam for everyone", a.states_always_adam, "adam for everyone"),
        Wrong("AMP halves it", a.states_no_master, "no master copy"),
        Wrong("eighteen bytes", a.states_fp32_gradients, "fp32 gradients"),
        Wrong("one counter for all", a.states_one_counter, "one counter"),
        Wrong("no momentum", a.states_no_momentum, "momentum forgotten"),
        Wrong("one moment", a.states_one_moment, "one moment"),
    ),
    unusual=(Unusual("sums over tensors", a.states_per_tensor),),
))  # fmt: skip

# -- 01.3 -----------------------------------------------------------------------------------------------


def check_pair(answer):
    draw = random.Random()
    drawn = [draw.randrange(2, 100) for _ in range(3)]
    for n, i, o in ((32, 16, 64), (8, 64, 64), (1, 5, 3), drawn):
        for itemsize, kind in ((4, torch.float32), (2, torch.bfloat16)):
            what = f"linear_gelu_bytes({n}, {i}, {o}, {itemsize})"
            got = want_int(answer.call(n, i, o, itemsize), what)
            pair = nn.Sequential(nn.Linear(i, o), nn.GELU()).to(kind)
            right = saved_bytes(saved_tensors(pair(torch.ones(n, i, dtype=kind, requires_grad=True)), pair))
            name_the_mistake(got, right, what, {
                "weight counted": (right + i * o * itemsize, "The weight is a parameter. It is alive "
                    "anyway."),
                "output counted": (right + n * o * itemsize, "GELU keeps its input; what it returns belongs "
                    "to the next layer."),
                "only the input": (n * i * itemsize, "GELU's slope needs GELU's input, the Linear's output."),
                "only the output": (n * o * itemsize, "The gradient of the weight needs the Linear's input."),
                "numbers, not bytes": (right // itemsize, "Multiply by the bytes of one number."),
                "item size ignored": (right // itemsize * 4, "bf16 numbers take 2 bytes: use `itemsize`."),
            })  # fmt: skip


register(Exercise(
    id="01.3",
    title="What Linear + GELU keeps",
    prompt="Return the bytes that one Linear(inputs, outputs) followed by GELU keeps for its backward pass, "
    "for `tokens` rows.",
    reference=a.linear_gelu_bytes,
    hints=(
        "Write down both derivatives. Which tensors appear in them?",
        "dL/dW = (dL/dy)^T x needs x. GELU'(y) needs y.",
        "x has tokens * inputs numbers, y has tokens * outputs.",
    ),
    checker=check_pair,
    wrong=(
        Wrong("with the weight", a.pair_weight, "weight counted"),
        Wrong("with GELU's output", a.pair_output, "output counted"),
        Wrong("only the input", a.pair_input, "only the input"),
        Wrong("only the output", a.pair_output_only, "only the output"),
        Wrong("always four bytes", a.pair_four, "item size ignored"),
        Wrong("numbers", a.pair_numbers, "numbers, not bytes"),
    ),
    unusual=(Unusual("two terms", a.pair_two_terms),),
))  # fmt: skip

# -- 01.4 -----------------------------------------------------------------------------------------------


def check_block(answer):
    draw = random.Random()
    heads = draw.randrange(1, 5)
    drawn = draw.randrange(1, 5), draw.randrange(2, 50), heads * 8 * draw.randrange(1, 5), heads
    for b, t, d, h in ((4, 64, 128, 8), (1, 8, 32, 2), (2, 100, 64, 4), drawn):
        what = f"block_bytes({b}, {t}, {d}, {h})"
        got = want_int(answer.call(b, t, d, h), what)
        block = Block(d, heads=h)
        right = saved_bytes(saved_tensors(block(torch.ones(b, t, d, requires_grad=True)), block))
        name_the_mistake(got, right, what, {
            "statistics forgotten": (64 * b * t * d, "Each LayerNorm also keeps two fp32 numbers per row, "
                "and attention one log-sum-exp per row and head."),
            "16-bit formula": (ledger.korthikanti_block(b, t, d, h), "34 + 5 a s / h is for 16-bit numbers, "
                "dropout and unfused attention. This block is fp32, has no dropout and a fused kernel."),
            "scores counted": (right + 4 * b * h * t * t, "The fused kernel never keeps the length x length "
                "scores."),
            "one tensor forgotten": (right - 4 * b * t * d, "One tensor of batch x length x "
                "width is missing. Count again: the block's input, both norms' results, attention's result, the sum after it."),
            "norm statistics forgotten": (right - 16 * b * t, "Each of the two LayerNorms keeps a mean and "
                "a 1/deviation per row, in fp32."),
            "log-sum-exp forgotten": (right - 4 * b * t * h, "Fused attention keeps one fp32 number per row "
                "and head."),
        })  # fmt: skip


register(Exercise(
    id="01.4",
    title="What a transformer block keeps",
    prompt="Return the bytes that one fp32 pre-norm block keeps for backward: fused attention, no dropout, "
    "MLP of 4 x width, its own input included.",
    reference=a.block_bytes,
    hints=(
        "Walk through Block.forward. For each operation ask: input or output, and does someone keep it "
        "already?",
        "In units of batch x length x width: input 1, norm 1, qkv 3, attention's result 1, sum 1, norm 1, "
        "MLP 4 + 4.",
        "That is 16 units of 4 bytes. Add 2 fp32 numbers per row for each of two norms, and one per row and "
        "head.",
    ),
    checker=check_block,
    wrong=(
        Wrong("only the large tensors", a.block_no_statistics, "statistics forgotten"),
        Wrong("the paper's formula", a.block_korthikanti, "16-bit formula"),
        Wrong("with the scores", a.block_scores, "scores counted"),
        Wrong("without its input", a.block_no_input, "one tensor forgotten"),
        Wrong("no log-sum-exp", a.block_no_lse, "log-sum-exp forgotten"),
        Wrong("no norm statistics", a.block_no_norms, "norm statistics forgotten"),
    ),
    unusual=(Unusual("from the ledger's parts", a.block_from_parts),),
))  # fmt: skip

# -- 01.5 -----------------------------------------------------------------------------------------------


def check_moment(answer):
    draw = random.Random()
    for case in range(6):
        # the last case peaks in the optimizer phase; a list of its own, in case the answer empties it
        records = a.made_up_records(draw, peaks=1 if case in (0, 1, 5) else 3, late=case == 5)
        lives = [record.live_bytes for record in records]
        first = lives.index(max(lives))
        last = len(lives) - 1 - lives[::-1].index(max(lives))
        got = want_sequence(answer.call(list(records)), "peak_moment(records)", 2)
        index, phase = want_int(got[0], "the index"), got[1]
        want_true(index != max(lives), "bytes, not an index", f"{index} is how many bytes are alive at the "
            "peak. Return where in the list that is.")  # fmt: skip
        want_true(index == first or index != last, "last moment", f"The peak of {max(lives)} bytes is "
            f"reached first at record {first}; you name record {last}, the last one as high.")  # fmt: skip
        want_true(index == first or index != lives.index(min(lives)), "lowest point", f"Record {index} is "
            f"the lowest point of the trace; the highest is record {first}.")  # fmt: skip
        want_true(index == first or index != len(lives) - 1, "running peak", "`peak_bytes` is the highest "
            "so far: it stays high to the end. Look at `live_bytes`.")  # fmt: skip
        want_true(index != first + 1, "counted from one", f"Record {first} is the highest. The first record "
            "has the index 0: see `enumerate`.")  # fmt: skip
        want_true(index == first, "wrong moment", f"The peak is at record {first}, not {index}.")
        want_true(type(phase) is str and phase == records[first].phase, "wrong phase", f"Record {first} is "
            f"in the phase {records[first].phase!r}. Return the phase of that very record.")  # fmt: skip


register(Exercise(
    id="01.5",
    title="The moment of the peak",
    prompt="Given trace.records, return (index, phase) of the first record at which the most bytes are "
    "alive.",
    reference=a.peak_moment,
    hints=(
        "A record has live_bytes (now) and peak_bytes (highest so far). Which one answers the question?",
        "max(range(len(records)), key=...) returns the first index with the highest key.",
        "The key is records[i].live_bytes; then return i and records[i].phase.",
    ),
    checker=check_moment,
    wrong=(
        Wrong("last of the highest", a.moment_last, "last moment"),
        Wrong("running peak", a.moment_running, "running peak"),
        Wrong("lowest", a.moment_lowest, "lowest point"),
        Wrong("phase of the end", a.moment_end_phase, "wrong phase"),
        Wrong("counts from one", a.moment_from_one, "counted from one"),
        Wrong("looks at forward and backward only", a.moment_no_optimizer, "wrong moment"),
        Wrong("bytes", a.moment_bytes, "bytes, not an index"),
    ),
    unusual=(Unusual("a loop, a list", a.moment_loop), Unusual("empties the list", a.moment_empties)),
))  # fmt: skip

# -- 01.6 -----------------------------------------------------------------------------------------------


def check_oom(answer):
    draw = random.Random()
    drawn = []
    for _ in range(20):
        p, s, act = draw.randrange(1, 50), draw.randrange(0, 99), draw.randrange(1, 99)
        drawn.append((p, p, s, act, draw.randrange(2 * p, 2 * p + s + act + 9)))
    for p, g, s, act, limit in [
        (10, 10, 20, 50, 100), (10, 10, 20, 50, 80), (10, 10, 20, 50, 69), (10, 10, 20, 50, 70),
        (10, 10, 20, 50, 90), (40, 40, 80, 10, 150), (40, 40, 80, 10, 165), (40, 40, 80, 10, 170),
        (5, 5, 0, 90, 100), (5, 5, 0, 91, 100), *drawn,
    ]:  # fmt: skip
        what = f"first_oom_step({p}, {g}, {s}, {act}, {limit})"
        got = answer.call(p, g, s, act, limit)
        got = None if got is None else want_int(got, what)
        first, later = max(p + g + act, p + g + s), p + g + s + act
        right = 1 if first > limit else 2 if later > limit else None
        if got == right:
            continue
        want_true(got in (1, 2, None), "not a step", f"{what} should be 1, 2 or None, not {got}.")
        now = f"{what} gives {got}; step 1 needs {first}, step 2 needs {later}."
        want_true(not (first == limit or later == limit), "exactly full", f"{now} Exactly the limit still "
            "fits.")
        want_true(not (got == 1 and right == 2), "state from the start", f"{now} In step 1 the activations "
            "are gone before the optimizer makes its state: the two never meet.")  # fmt: skip
        want_true(not (got is None and right == 2), "state forgotten", f"{now} In step 2 the state is there "
            "while the activations pile up.")  # fmt: skip
        want_true(not (got in (2, None) and right == 1 and p + g + s > limit), "update forgotten", f"{now} "
            "The update of step 1 itself must fit: parameters, gradients and the new state.")  # fmt: skip
        want_true(not (right == 1 and p + act <= limit < p + g + act), "gradients forgotten", f"{now} "
            "Backward of step 1 holds the gradients, too.")  # fmt: skip
        raise Fault("wrong step", f"{now} Compare each with the limit of {limit}, the first step first.")


register(Exercise(
    id="01.6",
    title="Out of memory on step 2",
    prompt="Return 1, 2 or None: the first step that needs more than `limit` bytes. Backward of step 1 "
    "holds parameters, activations and gradients; its update holds parameters, gradients and the new "
    "optimizer state. From step 2 on all four are held at once.",
    reference=a.first_oom_step,
    hints=(
        "Step 1 has two candidates for its peak: the backward pass and the update. What is alive in each?",
        "Backward of step 1: parameters, gradients, activations. Its update: parameters, gradients, state.",
        "Step 2 holds all four at once. Exactly `limit` still fits.",
    ),
    checker=check_oom,
    wrong=(
        Wrong("state from the start", a.oom_all_in_one, "state from the start"),
        Wrong("never looks at the state", a.oom_no_state, "state forgotten"),
        Wrong("update of step 1 left out", a.oom_no_update, "update forgotten"),
        Wrong("full counts as too much", a.oom_strict, "exactly full"),
        Wrong("backward without gradients", a.oom_no_gradients, "gradients forgotten"),
    ),
    unusual=(Unusual("a loop over steps", a.oom_loop),),
))  # fmt: skip
