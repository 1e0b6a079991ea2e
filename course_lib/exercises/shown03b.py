"""The gallery of notebook 03, second half: clipping, the loss scale, and what stands beside the gradient."""

from __future__ import annotations

from . import gallery03 as g
from . import late03 as late
from . import odd03 as b
from . import odd03b as c
from .case03 import EIGHT, Case, add

# -- clipping and the loss scale ----------------------------------------------------------------------------

add(
    "03.16",
    Case(
        reference=late.safe_steps,
        given=late.safe_steps_given,
        keeps=("clip",),
        asks="`.grad` at the update if two micro-batches give (2, 0) and (0, 2), each is clipped to norm 1 "
        "as here, K = 2",
        nudge="After the first backward: (2, 0), clipped. Then (0, 2) is added to that, and the sum is "
        "clipped again.",
        against="The norm at the update is right: it is max_norm. Compare its direction with that of the "
        "whole window.",
        near={
            "clipped before unscale": "There is no loss scale in this loop.",
            "running division": "No division by 1, 2, 3. But early micro-batches do lose weight: what takes "
            "it away?",
        },
    ),
    title="Safe steps",
    story='"Clip as early as possible, then nothing can explode." max_norm is given.',
    hints=(
        "What does `.grad` hold when the clip runs for the first time in a window?",
        "A sum whose first part was cut points elsewhere, even if its length is right in the end.",
        "Clip once, when the window is full, between the last backward() and the step.",
    ),
    proof=[0.5**0.5, 0.5**0.5],
    misnamed="cleared too early",
    wrong=(
        ("no clipping", c.clip_forgotten, "taken out", ""),
        ("a share of max_norm each", c.clip_shared_out, "clipped in the window", "B30"),
        ("clips once, divides never", c.clip_undivided, "not divided", "B04"),
    ),
    unusual=(("clips by hand", c.clip_by_hand),),
)

add(
    "03.17",
    Case(
        reference=late.stuck_model,
        given=late.stuck_model_given,
        keeps=("clip", "scaler step"),
        unless_equal=("clipped before unscale",),
        asks="the norm of the gradient that reaches the optimizer: max_norm 0.1, loss scale 65536, a true "
        "norm near 5",
        nudge="At the clip, `.grad` is 65536 times too long. It is cut to 0.1. And scaler.step() divides "
        "before it steps.",
        against="The direction of every update is right. Ask how long it is.",
        near={
            "unscaled twice": "It is unscaled once, inside scaler.step(). When, seen from the clip?",
            "divided twice": "Its length hangs on max_norm and on the loss scale, not on K.",
            "clipped in the window": "The clip runs once per window, when all is there.",
        },
    ),
    title="A model that hardly moves",
    story="Mixed precision with a loss scale, clipping as in the recipe, no error, and almost no progress.",
    hints=(
        "In which unit is `.grad` when the clip looks at it?",
        "scaler.step() unscales by itself if nobody has. That is after the clip.",
        "Call scaler.unscale_(optimizer) once, right before the clip.",
    ),
    proof=0.1,
    misnamed="unscaled twice",
    wrong=(
        ("no clipping", c.scaled_no_clip, "taken out", ""),
        ("unscales each micro-batch", c.scaled_each_unscale, "unscaled twice", "B33"),
        ("unscales after the clip", c.scaled_unscales_late, "clipped before unscale", "B31"),
    ),
    unusual=(("divides at the end", c.scaled_mean), ("scales the threshold, too", c.scaled_threshold)),
)

add(
    "03.18",
    Case(
        reference=late.eager_scaler,
        given=late.eager_scaler_given,
        keeps=("scaler step",),
        asks="the weight of the third of four micro-batches in the update, loss scale 65536",
        nudge="After its own backward and unscale it counts 1/4. Then comes one more unscale, of the whole "
        "of `.grad`.",
        against="The optimizer's own clear comes once per window, after the step, and the updates come on "
        "time.",
        near={
            "cleared too early": "The weights look like it. But no clear runs inside the window: what "
            "shrinks the earlier ones?",
            "unscaled twice": "Between two updates of the scaler it is unscaled once; torch would raise "
            "otherwise. That is the point.",
            "repeated division": "Right about what happens to the numbers. Who divides?",
        },
    ),
    title="An eager scaler",
    story="unscale_() and update() run for every micro-batch, so that the scale is always fresh.",
    hints=(
        "`.grad` holds unscaled gradients of earlier micro-batches. What does the next scaled backward add "
        "to them?",
        "The next unscale_() divides everything by 65536 once more, also what was unscaled already.",
        "unscale_(), step() and update() all belong under the test for a full window.",
    ),
    proof=1 / 4,
    misnamed="data skipped",
    wrong=(
        ("update moved, unscale not", c.scaler_update_only, "unscaled twice", "B33"),
        ("no scaler", c.scaler_gone, "taken out", ""),
        ("steps past the scaler", c.scaler_bypassed, "taken out", ""),
    ),
    unusual=(("leaves the unscaling to step()", c.scaler_by_itself),),
)

add(
    "03.19",
    Case(
        reference=late.one_bad_batch,
        given=late.one_bad_batch_given,
        keeps=("clip",),
        spoiled=True,
        data=(((4,) * 8, 2), EIGHT),
        asks="the updates of an epoch of 4 windows if the loss is NaN once, in the second window",
        nudge="In the second window the norm is NaN: neither step nor clear. What does the third window add "
        "to?",
        against="As long as every loss is finite, this loop is right. Think of one that is not.",
        near={
            "not cleared": "After each step it is cleared. But what if there is no step?",
            "data skipped": "Skipping a bad window is meant. But which windows are skipped after it?",
        },
    ),
    title="One bad batch",
    story="The loop skips an update whose norm is not finite. After one bad batch, training stands still for "
    "ever.",
    hints=(
        "What is in `.grad` after the skipped window, and what is NaN plus a number?",
        "Skipping the step is right. What else is skipped with it?",
        "Move optimizer.zero_grad() out of the inner `if`, so that it runs for every full window.",
    ),
    proof=3,
    misnamed="no update",
    wrong=(
        ("no test", c.bad_batch_steps, "wrong weights after training", ""),
        ("clears every micro-batch", c.bad_batch_clears_all, "cleared too early", "B01"),
        ("no clipping, no test", c.clip_forgotten, "taken out", ""),
    ),
    unusual=(("clears when a window starts", c.bad_batch_clears_first),),
)

# -- beside the gradient ------------------------------------------------------------------------------------

add(
    "03.20",
    Case(
        reference=late.short_warm_up,
        given=late.short_warm_up_given,
        keeps=("scheduler",),
        asks="the updates after which a warm-up of 1000 scheduler steps is over, K = 8",
        nudge="How often is scheduler.step() called between two updates?",
        against="Every update gets exactly the gradient of its window. Look beside the gradient.",
        near={
            "EMA per micro-batch": "There are no averaged weights in this loop.",
            "update every micro-batch": "The updates come once per window. Something else comes more often.",
        },
    ),
    title="A short warm-up",
    story="The warm-up is planned for 1000 steps. It is over long before.",
    hints=(
        "In which unit does the scheduler count here, and in which was the warm-up planned?",
        "Per window there are K scheduler steps and one update.",
        "scheduler.step() belongs under the test, right behind optimizer.step().",
    ),
    proof=8000,
    misnamed="EMA per micro-batch",
    wrong=(
        ("no schedule", c.schedule_gone, "taken out", ""),
        ("once per epoch", c.schedule_per_epoch, "taken out", ""),
        ("the clear slips out", c.schedule_clears_wrong, "cleared too early", "B01"),
    ),
    unusual=(("between step and clear", c.schedule_in_between),),
)

add(
    "03.21",
    Case(
        reference=late.pretty_curve,
        given=late.pretty_curve_given,
        keeps=("log",),
        asks="what the log shows if every micro-batch has the loss 2.0, K = 4",
        nudge="`loss` is divided before it is added to `shown`. And then?",
        against="Every update gets exactly the gradient of its window, and memory is flat. Look at what is "
        "reported.",
        near={
            "logged loss of the last micro-batch": "All micro-batches of the window are in `shown`.",
            "divided twice": "The gradient is divided once. What else is divided?",
        },
    ),
    title="A pretty curve",
    story="Accumulation made the curve so much lower that it was put on the slides. log() takes the mean "
    "loss of the window.",
    hints=(
        "Follow one loss of 2.0 from the division to the log.",
        "The sum of K losses that are each divided by K is their mean already.",
        "Log `shown` as it is, or add up undivided losses and divide once.",
    ),
    proof=2.0,
    misnamed="not divided",
    wrong=(
        ("logs the last one", c.log_last, "logged loss of the last micro-batch", "B41"),
        ("no log", c.log_gone, "taken out", ""),
        ("logs the sum", c.log_summed, "wrong logged loss", ""),
    ),
    unusual=(("the mean of a list of tensors", c.log_mean_of_list),),
)

add(
    "03.22",
    Case(
        reference=late.long_memory,
        given=late.long_memory_given,
        returns=True,
        data=(((4,) * 16, 4), ((4,) * 12, 3)),
        asks="the micro-batches whose graphs `total` holds at the end of an epoch of 16",
        nudge="`total + loss` has a grad_fn: it remembers both of its parts. Does anything let go of them?",
        against="Every update gets exactly the gradient of its window, and the returned number is right. "
        "Look at what is kept alive.",
        near={
            "one backward for the window": "There is one backward() for each micro-batch.",
            "not cleared": "Gradients are cleared once per window. Something else is never let go.",
        },
    ),
    title="A long memory",
    story="The process grows from iteration to iteration and dies at night. The loop returns the epoch's "
    "mean loss.",
    hints=(
        "Which variable lives through the whole epoch, and what type does it have?",
        "A tensor that was computed from losses holds on to their graphs.",
        "Add loss.item() (or loss.detach()) instead of the loss itself.",
    ),
    proof=4,
    misnamed="one backward for the window",
    wrong=(
        ("a list of losses", c.memory_in_list, "graph kept", "B27"),
        ("the divided losses", c.memory_small, "wrong return", "B41"),
        ("returns nothing", c.memory_silent, "returned nothing", ""),
    ),
    unusual=(("detached", c.memory_detached),),
)

add(
    "03.23",
    Case(
        reference=late.night_shift,
        given=late.night_shift_given,
        epochs=1,
        restarts=True,
        data=(((4,) * 16, 4), ((4,) * 20, 4)),
        asks="how much of its length the second update keeps if all micro-batches are the same, K = 4, "
        "restart after the sixth",
        nudge="Micro-batches 5 to 8 are the second window. Which of them came before the restart?",
        against="Without the restart the loop would be right. What is not in the files?",
        near={
            "data skipped": "Every micro-batch reaches backward(). Where did that gradient go?",
            "cleared too early": "Nobody calls zero_grad() there. Look at what rebuilt() copies, and what "
            "not.",
        },
    ),
    title="The night shift",
    story="After six micro-batches the job is killed and starts again from its files: `rebuilt` gives a new "
    "model and a new optimizer with the saved weights and state. Make it lose nothing.",
    hints=(
        "What is a training state inside a window? Weights, optimizer state, and what else?",
        "Either save what the window has gathered so far, or save only where a window ends.",
        "Keep each parameter's .grad before `rebuilt`, and put it into the new model's parameters after it.",
    ),
    proof=1 / 4,
    misnamed="tail dropped",
    wrong=(
        ("no restart", g.loud_gradients, "taken out", ""),
        ("stretches what is left", b.restart_halves, "partial window lost", "B43"),
        ("the restart gone, and the division", g.loud_gradients_given, "not divided", "B04"),
    ),
    unusual=(("starts again between windows only", b.restarts_at_once),),
)

add(
    "03.24",
    Case(
        reference=late.two_players,
        given=late.two_players_given,
        returns=True,
        asks="(backward calls that add to `.grad` of `model` in one window, how many of them belong there), "
        "K = 4",
        nudge="Each micro-batch calls backward() twice. Through which parameters does each of them go?",
        against="Each micro-batch's own loss counts 1/K, and the updates come on time. But the gradient is "
        "no sum of these.",
        near={
            "not cleared": "Nothing is left over from the window before. Look inside the window.",
            "not divided": "The micro-batch's loss is divided. And the other one?",
        },
    ),
    title="Two players",
    story="`model` is the discriminator. The generator learns from how `model` judges its output; the loop "
    "returns that pull.",
    hints=(
        "backward() fills the .grad of every parameter on its way, not only the one that you look at.",
        "The generator needs the gradient with respect to `fakes` only. Which function gives just that?",
        "torch.autograd.grad(-model(fakes).mean(), fakes), or freeze the model around the first backward.",
    ),
    proof=[4, 4],
    misnamed="not cleared",
    wrong=(
        ("clears in between", c.players_clear, "gradient of another loss", "B49"),
        ("no generator", c.players_alone, "wrong length", ""),
        ("a smaller share of it", c.players_halved, "gradient of another loss", "B49"),
    ),
    unusual=(("freezes the discriminator", c.players_frozen),),
)
