"""The table of faults: each name, what kind of fault it is, and the cure. Worst first: this is the order of a report.

kind: "wrong" (the gradient or the update is not what it should be), "limit" (the loop is right, accumulation cannot be
exact), "cost" (right, but memory or time is wasted), "log" (only the report is wrong).
"""

TABLE = {
    # the code
    "generator": ("wrong", "Remove the `yield`, or call `list(...)` on what the loop returns."),
    "raised": ("wrong", "Mend that line first; the findings below hold up to it."),
    "time limit": ("wrong", "Look for a loop that never ends."),
    "model changed": ("wrong", "Use the model as it is given; cast the inputs, or use autocast."),
    "could not be examined": ("wrong", "Look at the model and the data first; a function that makes the model often helps."),
    "wrong signature": ("wrong", "Take these five parameters, or pass an adapter."),
    "runs in another thread": ("wrong", "Run the loop in the thread that calls it, for the examination."),
    "not finite": ("wrong", "Find the first operation that makes it: torch.autograd.set_detect_anomaly(True)."),
    "no trainable parameters": ("wrong", "Set requires_grad=True on what should be trained."),
    "nothing went forward": ("wrong", "Call the model on the batches that the loop is given."),
    # no update, or not there
    "no backward": ("wrong", "Call backward() on each micro-batch's loss."),
    "no update": ("wrong", "Call optimizer.step() when a window is full, inside the loop, and once more for a tail."),
    "steps by hand": ("wrong", "Let optimizer.step() move the weights."),
    "update every micro-batch": ("wrong", "Step and clear only when accumulation_steps micro-batches are done."),
    "forced update at the end": ("wrong", "Count the slices yourself, or tell the wrapper only once per loader batch."),
    "wrong window": ("wrong", "Count from one and step when `i % accumulation_steps == 0`."),
    "wrong number of updates": ("wrong", "Step once per window."),
    "other micro-batches": ("wrong", "Take the micro-batches in the order in which they come, each once."),
    "learning rate changed": ("wrong", "Leave the learning rate; divide the loss."),
    # what is lost or left over
    "cleared before the step": ("wrong", "Clear after optimizer.step(), not between backward() and it."),
    "cleared too early": ("wrong", "Clear once per window: right after optimizer.step()."),
    "cleared on the wrong side": ("wrong", "The right call on the wrong side of the step: clear after it, not before the last backward()."),
    "partial window lost": ("wrong", "Save only between windows, or save `.grad` with the model and put it back."),
    "no gradient": ("wrong", "See that backward() reaches every parameter before the step, and that nothing is detached."),
    "data skipped": ("wrong", "Every micro-batch of a window needs its own forward and backward."),
    "stops early": ("wrong", "Count updates the same way in the limit and in the loop: both with the tail, both rounded up."),
    "tail dropped": ("wrong", "Make a last update for the tail, or carry it into the next epoch with its gradients and its count."),
    "tail leaks": ("wrong", "Step for the tail at the end of the epoch, or let the count go on, too."),
    "not cleared": ("wrong", "Clear after each update."),
    "NaN never cleared": ("wrong", "Clear the gradients also when the step is skipped."),
    "parameters never updated": ("wrong", "Give them to the optimizer that steps, or freeze them."),
    # weights
    "not divided": ("wrong", "Divide each mean loss by the number of micro-batches in its window."),
    "divided twice": ("wrong", "Divide in one place only: in the loop, or in the wrapper."),
    "mean of means": ("wrong", "Weigh each micro-batch by its share of the window's samples (or tokens)."),
    "tail too small": ("wrong", "Divide the last window's losses by the number of micro-batches that it has."),
    "running division": ("wrong", "Use one divisor for the whole window."),
    "repeated division": ("wrong", "Divide the loss before backward, or `.grad` once when the window is full."),
    "running total": ("wrong", "Call backward() on the micro-batch's own loss, not on the running total."),
    "not unscaled": ("wrong", "Step through the scaler, or call unscale_() before optimizer.step()."),
    "averaged over ranks": ("wrong", "DDP takes the mean over ranks: multiply by the number of ranks after dividing by a global count."),
    "mean over ranks": ("wrong", "Divide by the global number of samples (all-reduce the count first), times the number of ranks."),
    "all scaled": ("wrong", "Look for the wrong divisor."),
    "wrong weights": ("wrong", "Weigh each micro-batch by its share of the window."),
    # no weighted sum
    "unscaled twice": ("wrong", "Call unscale_() once per update, when the window is full."),
    "scaler updated in the window": ("wrong", "Call scaler.update() once per update, after scaler.step()."),
    "clipped before unscale": ("wrong", "Call scaler.unscale_(optimizer) before clipping."),
    "clipped after the step": ("wrong", "Clip before optimizer.step(): afterwards nobody looks at these gradients."),
    "clipped in the window": ("wrong", "Clip once, when the window is full, right before the step."),
    "weights moved in the window": ("wrong", "Change weights only in optimizer.step(), between windows."),
    "gradient of another loss": ("wrong", "Clear or freeze these parameters around the other loss's backward()."),
    "low precision sum": ("wrong", "Keep the sum in a float32 buffer, or keep float32 master weights."),
    "not a weighted sum": ("wrong", "Look at what changes the loss or `.grad` between forward and step."),
    "ranks differ": ("wrong", "Let the last backward() of each window synchronise."),
    "layer couples samples": ("limit", "Use GroupNorm or LayerNorm, freeze the statistics, or live with it and adapt the momentum."),
    "loss couples samples": ("limit", "Cache the embeddings and go through the model twice (gradient cache)."),
    # beside the gradient
    "schedule per micro-batch": ("wrong", "Call scheduler.step() once per update; count warm-up in updates."),
    "schedule on a skipped update": ("wrong", "Step the scheduler only if the scale did not fall in scaler.update()."),
    "EMA per micro-batch": ("wrong", "Average the weights once per update."),
    "one backward for the window": ("cost", "Call backward() for each micro-batch: its activations are freed at once."),
    "graph kept": ("cost", "Keep `loss.item()` or `loss.detach()`, not the loss."),
    "evaluation keeps the graph": ("cost", "eval() does not switch autograd off: use torch.no_grad()."),
    "collectives per micro-batch": ("cost", "Use no_sync() for all micro-batches of a window but the last."),
    "forward outside no_sync": ("cost", "Put the forward inside no_sync() too: DDP decides there."),
    "logged loss divided": ("log", "Log the loss before it is divided, or multiply it back."),
    "wrong logged loss": ("log", "Log the weighted sum of the window's micro-batch losses, and start it afresh for each window."),
    "logged loss of the last micro-batch": ("log", "Add up the weighted losses of the whole window."),
}  # fmt: skip

ORDER = {name: place for place, name in enumerate(TABLE)}


def kind_of(name: str) -> str:
    """The kind of a fault; faults that come from the loop's own code count as wrong."""
    return TABLE.get(name, ("wrong", ""))[0]


def cure_of(name: str) -> str:
    """What to do about it."""
    return TABLE.get(name, ("wrong", "Mend that line first."))[1]
