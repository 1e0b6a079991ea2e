"""The gallery of notebook 03, first half: the faults, what proves them, what speaks against other names."""

from __future__ import annotations

from . import answers02 as two
from . import answers03 as a
from . import gallery03 as g
from . import odd03 as b
from .case03 import EIGHT, Case, add

TEN = ((4,) * 10, 4)

# -- when the update comes, and what is cleared -------------------------------------------------------------

add(
    "03.7",
    Case(
        reference=g.inside_wrapper,
        given=g.inside_wrapper_given,
        asks="the weights of the 4 micro-batches in an update, K = 4",
        nudge="At which micro-batch does the clear run, and which backward calls lie before it?",
        against="Every micro-batch goes through backward(), divided by K, and there is one update per "
        "window.",
        near={
            "cleared too early": "Near: but this loop clears only once a window. The name that says so is in "
            "the list, too.",
            "cleared before the step": "There is one backward() between the clear and the step: `.grad` is "
            "not empty.",
            "not cleared": "There is a clear in each window. What does it find in `.grad`?",
        },
    ),
    title="Inside the wrapper",
    story="A wrapper lets zero_grad() through only at a full window. The script calls it where it always "
    "did.",
    hints=(
        "Mark for one window: B for each backward, C for the clear, S for the step. Which B survive?",
        "The order is B B B C B S. What should stand between the last B and the first B of the next window?",
        "The clear is the right call on the wrong side of the step: move it behind optimizer.step().",
    ),
    proof=[0, 0, 0, 1],
    misnamed="data skipped",
    wrong=(
        ("clears before the step", b.clears_before_step, "cleared before the step", ""),
        ("takes the clear out", b.never_clears, "not cleared", ""),
    ),
    unusual=(("grad = None at the start of a window", two.loop_none),),
)

add(
    "03.8",
    Case(
        reference=g.book_example,
        given=g.book_example_given,
        asks="the micro-batches in each update of the first epoch (8 micro-batches, K = 4)",
        nudge="Write down i for the 8 micro-batches. For which of them is i % 4 equal to 0?",
        against="Each micro-batch is divided by K and enters exactly one sum, and there are about as many "
        "updates as there should be. Count the micro-batches in each.",
        near={
            "update every micro-batch": "That is true of the first update only.",
            "tail leaks": "True of what is left at the end, but 8 micro-batches should leave nothing. Why do "
            "they?",
        },
    ),
    title="An example out of a book",
    story="The first update of every run is much noisier than the others.",
    hints=(
        "Which micro-batch comes right before the first update?",
        "enumerate counts from 0, and 0 % 4 is 0. The test is true for i = 0, 4, 8, ...",
        "Count from one, or test (i + 1) % accumulation_steps == 0; not both.",
    ),
    proof=[4, 4],
    misnamed="tail dropped",
    wrong=(
        ("counts from one and adds one", b.one_too_late, "wrong window", "B08"),
        ("updates every time", a.row_every_step, "update every micro-batch", "B09"),
    ),
    unusual=(("i % K == K - 1", two.loop_none), ("a list that fills up", two.loop_autograd)),
)

add(
    "03.9",
    Case(
        reference=g.fast_epoch,
        given=g.fast_epoch_given,
        asks="the rows of an epoch (8 micro-batches of 4 rows, K = 4) that reach backward()",
        nudge="For which micro-batches does the loop do anything at all?",
        against="The updates come when they should and nothing is cleared in between. Ask what is in them.",
        near={
            "cleared too early": "The clear comes after each step, as it should. Nothing is wiped: it was "
            "never there.",
            "cleared on the wrong side": "The weights would look the same. But nothing is wiped here: it was "
            "never there.",
            "stops early": "The loop runs to the end of the data, and makes all its updates.",
        },
    ),
    title="A very fast epoch",
    story="With K = 4 an epoch takes a quarter of the time. The team is delighted.",
    hints=(
        "What happens to the micro-batches with i = 1, 2 and 3?",
        "Which of the four lines under the `if` belong to every micro-batch?",
        "Forward and backward move out of the `if`; step and clear stay in it.",
    ),
    proof=32,
    misnamed="tail dropped",
    wrong=(
        ("clears in every micro-batch", a.d2_half_indented, "cleared too early", "B01"),
        ("forward for all, one backward", a.d3_row_given, "one backward for the window", "B26"),
    ),
    unusual=(("divides .grad", two.loop_divides_grad),),
)

add(
    "03.10",
    Case(
        reference=g.jumpy_epochs,
        given=g.jumpy_epochs_given,
        data=(TEN, ((4,) * 7, 3), ((4,) * 3, 4), EIGHT),
        asks="the micro-batches in the first update of the second epoch (10 micro-batches an epoch, K = 4)",
        nudge="What is still in `.grad` when the second epoch starts? The counter starts again at 1.",
        against="All windows of the first epoch are right. Look at the border between two epochs.",
        near={
            "tail dropped": "The last two micro-batches of the first epoch do reach an update. Whose?",
            "not cleared": "After each update it is cleared. What is there before the first update of an "
            "epoch?",
            "tail too small": "The short window makes no update of its own here.",
        },
    ),
    title="A jump at every epoch",
    story="The loop is called once per epoch. With 10 micro-batches and K = 4 the loss jumps whenever an "
    "epoch begins. Give the short window an update of its own.",
    hints=(
        "Follow `.grad` from micro-batch 9 of the first epoch to micro-batch 4 of the second.",
        "A clear at the start of the epoch would only throw the two away. They need an update, and another "
        "divisor.",
        "Update at i == len(batches), too, and divide the losses of the last window by its own length.",
    ),
    proof=4,
    misnamed="wrong window",
    wrong=(
        ("clears when an epoch starts", a.d0_drops, "tail dropped", "B10"),
        ("updates, divided by K", b.steps_on_tail, "tail too small", "B13"),
    ),
    unusual=(("windows by slicing", g.odd_sizes), ("stretches the tail's gradient", a.d0_rescales)),
)

add(
    "03.11",
    Case(
        reference=g.sliced_batches,
        given=g.sliced_batches_given,
        data=(((8, 8), 4), ((8, 8, 8), 2), ((9, 9), 3)),
        asks="the updates of an epoch with 2 loader batches, each cut into K = 4 slices",
        nudge="For which slices is `last` true?",
        against="The first loader batch is treated as it should be. Look at the last one.",
        near={
            "update every micro-batch": "True of the last loader batch only. What is different there?",
            "wrong window": "Near. The list has a name for what happens at the end of the loader.",
            "tail too small": "The slices fill whole windows: there is no short window.",
        },
    ),
    title="Slices of a loader batch",
    story="The loader gives large batches, the loop cuts each into K slices. A flag makes sure that the end "
    "gets its update.",
    hints=(
        "List the slices: 1 to 4 belong to the first loader batch, 5 to 8 to the last. When does the test "
        "hold?",
        "The flag was made for loaders whose end may fall inside a window. Can that happen here?",
        "K slices per loader batch always fill the window: the test on `done` alone is enough.",
    ),
    proof=2,
    misnamed="tail leaks",
    wrong=(
        ("updates for each slice", b.slices_without_test, "update every micro-batch", ""),
        ("clears for each slice", b.slices_last_slice_only, "cleared too early", "B01"),
    ),
    unusual=(("the update behind the inner loop", b.slices_step_outside),),
)

# -- how much each micro-batch counts -----------------------------------------------------------------------

add(
    "03.12",
    Case(
        reference=g.loud_gradients,
        given=g.loud_gradients_given,
        asks="the weights of the 4 micro-batches in an update, K = 4",
        nudge="backward() adds the gradient of the loss that it is called on. What stands before that loss?",
        against="All micro-batches of a window count the same, none is lost, and the updates come on time.",
        near={
            "divided twice": "Count the divisions in the code.",
            "clipped before unscale": "There is no loss scale in this loop.",
        },
    ),
    title="Loud gradients",
    story="Since accumulation is on, SGD diverges and clipping bites at every step. Adam's curve looks as "
    "before.",
    hints=(
        "Is the sum of K means the mean over all rows of the window?",
        "Compare with the loop of notebook 02, line by line: one operation is missing.",
        "Divide the loss by accumulation_steps before backward().",
    ),
    proof=[1 / 4] * 4,
    misnamed="running division",
    wrong=(
        ("a smaller learning rate", b.lowers_rate, "not divided", ""),
        ("divides .grad each time", b.repeats_division, "repeated division", ""),
    ),
    unusual=(("divides .grad once", two.loop_divides_grad),),
)

add(
    "03.13",
    Case(
        reference=g.slow_training,
        given=g.slow_training_given,
        asks="the weights of the 4 micro-batches in an update, K = 4",
        nudge="Follow one loss through both functions.",
        against="All micro-batches of a window count the same, and none is lost. Count the divisions that "
        "one loss goes through.",
        near={
            "repeated division": "Near: but `.grad` itself is never divided here, so all micro-batches are "
            "treated alike."
        },
    ),
    title="Slow training",
    story="The script divides. The trainer's backward is a library's. The loss falls far too slowly. Leave "
    "the library alone.",
    hints=(
        "Which two lines of this cell divide?",
        "1/4 of 1/4 is 1/16. One of the two must go; the library's is not yours.",
        "Give backward() the loss as loss_fn returns it.",
    ),
    proof=[1 / 4] * 4,
    misnamed="not divided",
    wrong=(
        ("both divisions gone", g.loud_gradients_given, "not divided", "B04"),
        ("divides .grad each time", b.repeats_division, "repeated division", ""),
    ),
    unusual=(("one division, at the update", two.loop_divides_grad),),
)

add(
    "03.14",
    Case(
        reference=g.moving_average,
        given=g.moving_average_given,
        asks="how many times too long the gradient is if all 4 micro-batches of a window are the same, K = 4",
        nudge="With equal micro-batches the gradient is the sum of the weights times the right one.",
        against="The updates come on time, and nothing is wiped. Write down the divisor of each of the four "
        "micro-batches.",
        near={
            "not divided": "Each loss is divided. By what?",
            "repeated division": "There `.grad` is divided again and again. Here each loss is divided once, "
            "by its own number.",
            "mean of means": "All micro-batches have the same size. But do they count the same?",
        },
    ),
    title="A moving average",
    story='"Divide by the number so far, then .grad is the mean at any time", says the comment in the pull '
    "request.",
    hints=(
        "What are the divisors of micro-batches 1, 2, 3 and 4?",
        "A running mean would also have to shrink what is in the sum already. Dividing the new loss alone "
        "does not.",
        "Every micro-batch of the window needs the same divisor: accumulation_steps.",
    ),
    proof=4,
    misnamed="divided twice",
    wrong=(
        ("no division", g.loud_gradients_given, "not divided", "B04"),
        ("divides .grad each time", b.repeats_division, "repeated division", ""),
    ),
    unusual=(("i % K == K - 1", two.loop_none),),
)

add(
    "03.15",
    Case(
        reference=g.odd_sizes,
        given=g.odd_sizes_given,
        data=(((4, 4, 4, 1) * 2, 4), ((5, 2, 3, 1, 6, 2), 3), EIGHT, ((2, 7, 1), 2)),
        asks="the weights that a window needs whose micro-batches have 4, 4, 4 and 1 rows",
        nudge="The window's mean loss is a sum over 13 rows. What is one micro-batch's share of it?",
        against="Each loss is divided once, by the length of its window, and the weights add up to 1.",
        near={
            "tail too small": "The weights of every window add up to 1, the short ones' too.",
            "not divided": "Each loss is divided by the length of the window.",
        },
    ),
    title="Odd sizes",
    story="Micro-batches of 4, 4, 4 and 1 rows. The one row of the last pulls as hard as four others.",
    hints=(
        "How much does one row of a micro-batch of 4 count, and how much the single row?",
        "A mean over 4 rows must weigh 4 times as much as a mean over 1.",
        "weight = len(targets) / rows of the whole window, in place of 1 / len(window).",
    ),
    proof=[1 / 4] * 4,
    misnamed="divided twice",
    wrong=(
        ("over the largest", b.sizes_over_largest, "all scaled", ""),
        ("shares, divided again", b.sizes_divided_again, "divided twice", "B19"),
    ),
    unusual=(("sums, divided by the rows at the end", two.accumulate_any),),
)
