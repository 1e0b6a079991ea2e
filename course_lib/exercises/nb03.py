"""The exercises of notebook 03: the loops of the documents here, their models in parts03.py, the gallery in
shown03.py and shown03b.py."""

from __future__ import annotations

from . import answers02 as two
from . import answers03 as a
from . import gallery03 as g
from . import odd03 as b
from . import parts03, shown03, shown03b  # noqa: F401  (they register exercises)
from .case03 import EIGHT, Case, add

TEN = ((4,) * 10, 4)

add(
    "03.1",
    Case(
        reference=a.d2_loop,
        given=a.d2_loop_given,
        also=("cleared too early", "wrong window"),
        shows=(TEN,),
        asks="the weights of 8 micro-batches in the only update that they get, K = 4",
        nudge="Which gradients survive the clear at the top? And by what was the one that does divided?",
        against="Ask when the two lines behind the inner loop run, and what the line at its top leaves in "
        "`.grad`.",
        near={
            "no backward": "backward() stands in the loop and runs for each micro-batch.",
            "tail dropped": "With 10 micro-batches, is it only the last two that are left out?",
            "cleared on the wrong side": "Count how often the line at the top runs in one window: it is not "
            "once.",
            "not cleared": "It is cleared all the time.",
        },
    ),
    title="The second document's loop",
    story="Predict what the loop does with 10 micro-batches and with 8. Repair it for whole windows.",
    hints=(
        "Run it in your head, with 10 micro-batches: what is i when the inner loop is over?",
        "With 8, the update does happen. `.grad` was cleared before each backward: which micro-batches are "
        "in it?",
        "Two lines are in the wrong place: one must leave the inner loop's top, the other block must move "
        "into the loop.",
    ),
    proof=[1 / 4] * 8,
    misnamed="not divided",
    unmended="wrong window",
    wrong=(
        ("only the update moved", a.d2_half_indented, "cleared too early", "B01"),
        ("only the clear moved", a.d2_half_cleared, "wrong window", ""),
        ("never clears", b.never_clears, "not cleared", ""),
    ),
    unusual=(("clears at the start of a window", two.loop_none),),
)

add(
    "03.2",
    Case(
        reference=a.d2_pseudo,
        given=a.d2_pseudo_given,
        asks="(what `loss.grad` is, `step` after 10 micro-batches, how many of 10 tests `step % 4 == 0` "
        "would be true)",
        nudge="`loss` is computed, no leaf; nothing in the loop changes `step`; what is 0 % 4?",
        against="Look for the line that computes gradients.",
        near={
            "no update": "optimizer.step() stands in the loop and would be called. What would it find in "
            "`.grad`?"
        },
    ),
    title="The second document's pseudo-code",
    story="Four things are wrong in this sketch. Name the one without which no gradient exists. Repair it "
    "for whole windows.",
    hints=(
        "`loss.grad` is what backward() would store for the tensor `loss`. Who calls backward()? Is `loss` a "
        "leaf?",
        "The optimizer reads `.grad` of the parameters. A sum in a variable of your own never reaches it.",
        "Replace the sum by backward() on the divided loss; count step up before the test; clear with "
        "zero_grad().",
    ),
    proof=(0, 0, 10),
    misnamed="not cleared",
    unmended="raised",
    wrong=(
        ("counter stands still", a.pseudo_only_backward, "update every micro-batch", ""),
        ("counts after the test", a.pseudo_counts_late, "wrong window", "B08"),
        ("a sum that the optimizer never sees", a.pseudo_sum_unseen, "no gradient", ""),
        ("no division", g.loud_gradients_given, "not divided", "B04"),
    ),
    unusual=(("keeps a sum of its own and hands it over", a.pseudo_own_sum),),
)

add(
    "03.3",
    Case(
        reference=a.d0_loop,
        given=a.d0_loop_given,
        data=(TEN, ((4,) * 7, 3), ((4,) * 3, 4), EIGHT),
        asks="the length of the last update's gradient as a share of what it should be, 10 micro-batches, K "
        "= 4",
        nudge="How many micro-batches does the last window have, and by what is each of them divided?",
        against="Eight of the ten micro-batches are treated as they should be, and the last two do get an "
        "update. Look at its size.",
        near={
            "tail dropped": "The second half of the `if` makes an update for the last two micro-batches.",
            "divided twice": "That would be true of every window. Here the first two are right.",
        },
    ),
    title="The first document's loop",
    story="The loop updates at the end of the epoch, too. Predict the last update for 10 micro-batches and K "
    "= 4. Repair it.",
    hints=(
        "Write down the weights of the last window's micro-batches. What should they add up to?",
        "Each window's losses are to be divided by the number of micro-batches of that very window.",
        "len(batches) % accumulation_steps is the length of the tail, 0 if there is none.",
    ),
    proof=2,
    misnamed="tail leaks",
    wrong=(
        ("leaves the tail out", a.d0_drops, "tail dropped", "B10"),
        ("divides all by the tail's length", a.d0_all_small, "all scaled", ""),
        ("leaves the tail in .grad", g.jumpy_epochs_given, "tail leaks", "B12"),
    ),
    unusual=(("stretches the tail's gradient", a.d0_rescales), ("shares of rows", g.odd_sizes)),
)

add(
    "03.6",
    Case(
        reference=a.d3_row,
        given=a.d3_row_given,
        asks="(micro-batches whose activations are alive right before backward() with K = 8, the same once "
        "it is mended)",
        nudge="`window` adds up losses, and each loss holds its graph until backward() has run through it.",
        against="The weights are right: each micro-batch counts 1/K, and the updates come on time.",
        near={
            "graph kept": "Nothing is left over from one window to the next: the memory grows inside a "
            "window, and backward() then frees it. Why only then?"
        },
    ),
    title="A row of the third document's table",
    story='The table says "several forwards, one backward". This loop takes it at its word.',
    hints=(
        "When are a micro-batch's activations freed? Which call does it?",
        "Gradients are added up in `.grad` by themselves; losses need not be.",
        "Call backward() on each micro-batch's divided loss. Once per window remains: step and clear.",
    ),
    proof=(1, 8),
    misnamed="not divided",
    wrong=(
        ("keeps the graphs all the same", a.row_with_graph, "graph kept", "B27"),
        ("one step each, too", a.row_every_step, "update every micro-batch", "B09"),
        ("the large batch itself", a.row_big_batch, "one backward for the window", "B26"),
    ),
    unusual=(("a sum of its own, handed over", a.pseudo_own_sum),),
)
