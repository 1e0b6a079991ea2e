"""Public reports and styles that were found after the doctor was made: what it says about loops it was not made for.

The place that each loop was told from stands in its docstring (owner/repository#number); the code is ours.
"""

from itertools import islice

from torch import nn
from torch.nn import functional as F

from ..problems import tokens
from .case import called, first_used, ratio, told
from .wrapper import windows


def islice_of_the_loader(model, optimizer, loss_fn, batches, accumulation_steps):
    """islice(loader, K) begins anew each time: always the same data (michaelnny/InstructLLaMA#6)."""
    for _ in range(len(batches) // accumulation_steps):
        optimizer.zero_grad()
        for x, y in islice(batches, accumulation_steps):
            (loss_fn(model(x), y) / accumulation_steps).backward()
        optimizer.step()


def counts_samples(model, optimizer, loss_fn, batches, accumulation_steps):
    """Steps when enough samples have come; the last ones never are enough (tomhosking/torchseq#8)."""
    wanted, samples = 4 * accumulation_steps, 0
    optimizer.zero_grad()
    for x, y in batches:
        (loss_fn(model(x), y) * len(x) / wanted).backward()
        samples += len(x)
        if samples >= wanted:
            optimizer.step()
            optimizer.zero_grad()
            samples = 0


def remainder_unscaled(model, optimizer, loss_fn, batches, accumulation_steps, ema):
    """A last step for the remainder, with losses that were divided by K (m2lines/Samudra#476)."""
    for i, (x, y) in enumerate(batches):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            ema.update_parameters(model)
            optimizer.zero_grad()
    if (i + 1) % accumulation_steps != 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        optimizer.step()
        ema.update_parameters(model)
        optimizer.zero_grad()


def only_the_count_is_gated(model, optimizer, loss_fn, batches, accumulation_steps):
    """The boundary only moves a counter; step and clear run each time (Lightricks/LTX-Video-Trainer#46)."""
    global_step = 0
    for step, (x, y) in enumerate(batches):
        is_update = (step + 1) % accumulation_steps == 0
        if is_update:
            global_step += 1
        loss_fn(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def sentences_for_tokens(model, optimizer, loss_fn, batches, accumulation_steps):
    """Token sums over the number of sentences (OpenNMT/OpenNMT-py#526)."""
    for window in windows(batches, accumulation_steps):
        sentences = sum(len(x) for x, _ in window)
        optimizer.zero_grad()
        for x, y in window:
            logits = model(x).flatten(0, 1)
            total = F.cross_entropy(logits, y.flatten(), ignore_index=-100, reduction="sum")
            (total / sentences).backward()
        optimizer.step()


def too_many_epochs(model, optimizer, loss_fn, batches, accumulation_steps, epochs):
    """The epochs are counted in updates of one micro-batch: K times too many (devilismyfriend/StableTuner#60)."""
    updates = epochs * len(batches)  # should be divided by K
    per_epoch = -(-len(batches) // accumulation_steps)
    for _ in range(-(-updates // per_epoch)):
        for window in windows(batches, accumulation_steps):
            optimizer.zero_grad()
            for x, y in window:
                (loss_fn(model(x), y) / len(window)).backward()
            optimizer.step()


def steps_outside_as_well(model, optimizer, loss_fn, batches, accumulation_steps):
    """A second step stands outside of the boundary test (mzolfaghari/ECO-pytorch#1)."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        loss_fn(model(x), y).backward()
        if i % accumulation_steps == 0:
            for parameter in model.parameters():
                parameter.grad /= accumulation_steps
            optimizer.step()
            optimizer.zero_grad()
        optimizer.step()


def clips_before_backward(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """The clip stands before backward(): it meets the partial sum (simchowitzlabpublic/nano-world-model#22)."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y) / len(window)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            loss.backward()
        optimizer.step()


def skips_without_update(model, optimizer, loss_fn, batches, accumulation_steps, scaler, max_norm):
    """A large norm skips scaler.step and scaler.update: the next unscale_ is refused (Haian-Jin/LVSM#19)."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        scaler.unscale_(optimizer)
        if nn.utils.clip_grad_norm_(model.parameters(), 1.0) > max_norm:
            continue
        scaler.step(optimizer)
        scaler.update()


def late_backward(model, optimizer, loss_fn, batches, accumulation_steps):
    """One loss goes backward each time, another every K-th time, over graphs whose weights have moved
    (microsoft/voxelpose-pytorch#47)."""
    kept = []
    for i, (x, y) in enumerate(batches, 1):
        optimizer.zero_grad()
        out = model(x)
        kept.append((out * y).mean())
        loss_fn(out, y).backward(retain_graph=True)
        optimizer.step()
        if i % accumulation_steps == 0:
            (sum(kept) / accumulation_steps).backward()
            kept = []


def window_tokens_then_k(model, optimizer, loss_fn, batches, accumulation_steps):
    """Normalised by the window's tokens, then divided by K by the trainer (modelscope/ms-swift#10117)."""
    for window in windows(batches, accumulation_steps):
        items = sum(int((y != -100).sum()) for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            each = F.cross_entropy(model(x).transpose(1, 2), y, ignore_index=-100, reduction="none")
            loss = each.sum() / items
            (loss / len(window)).backward()
        optimizer.step()


def masked_mean_then_k(model, optimizer, loss_fn, batches, accumulation_steps):
    """A masked mean of each micro-batch, divided by K (allenai/open-instruct#1161)."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            mask = (y != -100).double()
            each = F.cross_entropy(model(x).transpose(1, 2), y, ignore_index=-100, reduction="none")
            ((each * mask).sum() / mask.sum() / len(window)).backward()
        optimizer.step()


def mean_per_sequence(model, optimizer, loss_fn, batches, accumulation_steps):
    """A mean over each sequence first, then over sequences: another loss than the token mean."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        for x, y in window:
            mask = (y != -100).double()
            each = F.cross_entropy(model(x).transpose(1, 2), y, ignore_index=-100, reduction="none")
            ((each * mask).sum(1) / mask.sum(1)).mean().div(len(window)).backward()
        optimizer.step()


def scales_gradients_by_tokens(model, optimizer, loss_fn, batches, accumulation_steps):
    """Means times tokens go backward, .grad is divided by all tokens at the step: right (as in torchtune)."""
    counted = 0
    for i, (x, y) in enumerate(batches, 1):
        here = int((y != -100).sum())
        counted += here
        (loss_fn(model(x), y) * here).backward()
        if i % accumulation_steps == 0 or i == len(batches):
            for parameter in model.parameters():
                parameter.grad *= 1 / counted
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            counted = 0


def tokens_never_set_back(model, optimizer, loss_fn, batches, accumulation_steps):
    """The same, and the token count goes on."""
    counted = 0
    for i, (x, y) in enumerate(batches, 1):
        here = int((y != -100).sum())
        counted += here
        (loss_fn(model(x), y) * here).backward()
        if i % accumulation_steps == 0 or i == len(batches):
            for parameter in model.parameters():
                parameter.grad *= 1 / counted
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def knows_the_last_window(model, optimizer, loss_fn, batches, accumulation_steps):
    """The last window's divisor is worked out before the epoch: right (as in timm)."""
    last_steps = len(batches) % accumulation_steps or accumulation_steps
    last_start = len(batches) - last_steps
    optimizer.zero_grad()
    for index, (x, y) in enumerate(batches):
        steps = last_steps if index >= last_start else accumulation_steps
        need_update = index == len(batches) - 1 or (index + 1) % accumulation_steps == 0
        (loss_fn(model(x), y) / steps).backward()
        if need_update:
            optimizer.step()
            optimizer.zero_grad()


def multiplies_gradients(model, optimizer, loss_fn, batches, accumulation_steps):
    """Summed losses, the gradient multiplied by 1 / sample size at the update: right (as in fairseq)."""
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        sample_size = 0
        for x, y in window:
            F.mse_loss(model(x), y, reduction="sum").backward()
            sample_size += y.numel()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.data.mul_(1.0 / sample_size)
        optimizer.step()


def remainder_factor(model, optimizer, loss_fn, batches, accumulation_steps):
    """A hook with a loss factor that knows the remainder: right (as in mmcv)."""
    remainder = len(batches) % accumulation_steps
    divisible = len(batches) // accumulation_steps * accumulation_steps
    for i, (x, y) in enumerate(batches):
        factor = accumulation_steps if i < divisible else remainder
        (loss_fn(model(x), y) / factor).backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def next_update_is_due(model, optimizer, loss_fn, batches, accumulation_steps):
    """`i - last >= K` with last = -1: windows of K, and no tail (as in the YOLO trainers)."""
    last = -1
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if i - last >= accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()
            last = i


def sums_and_divides_in_hooks(model, optimizer, loss_fn, batches, accumulation_steps):
    """Undivided losses, a step hook that divides by what was counted: right."""
    counted = [0]

    def divide(*_):
        for parameter in model.parameters():
            parameter.grad /= counted[0]

    handle = optimizer.register_step_pre_hook(divide)
    for window in windows(batches, accumulation_steps):
        optimizer.zero_grad()
        counted[0] = len(window)
        for x, y in window:
            loss_fn(model(x), y).backward()
        optimizer.step()
    handle.remove()


SHORT_AND_LONG = {"problem": tokens([[2] * 4, [16] * 4, [3, 9], [5]], 2)}
EIGHT = {"sizes": [4] * 8}

CASES = (
    told("found: islice of the loader", islice_of_the_loader, ("data skipped",), ("other micro-batches",)),
    told("found: counts samples", counts_samples, ("tail dropped",)),
    told("found: remainder unscaled", remainder_unscaled, ("tail too small",)),
    told("found: only the count is gated", only_the_count_is_gated, ("update every micro-batch",),
         options=EIGHT),
    told("found: sentences for tokens", sentences_for_tokens, ("all scaled",), options=SHORT_AND_LONG,
         check=ratio(9.0)),
    told("found: steps outside as well", steps_outside_as_well, ("update every micro-batch",),
         ("not cleared", "not divided", "all scaled", "wrong number of updates", "cleared before the step")),
    told("found: clips before backward", clips_before_backward, ("clipped in the window",)),
    told("found: skips without update", skips_without_update, ("unscaled twice",), ("raised", "no update")),
    told("found: late backward", late_backward, ("raised",),
         ("update every micro-batch", "graph kept", "not a weighted sum")),
    told("found: window tokens, then K", window_tokens_then_k, ("divided twice",), options=SHORT_AND_LONG,
         check=ratio(0.5)),
    told("found: masked mean, then K", masked_mean_then_k, ("mean of means",), options=SHORT_AND_LONG,
         check=first_used(0.5, 0.5)),
    told("found: mean per sequence", mean_per_sequence, ("not a weighted sum",), ("mean of means",),
         options={"problem": tokens([[2, 16], [4, 9]], 2)}),
    told("right: scales gradients by tokens", scales_gradients_by_tokens, options=SHORT_AND_LONG),
    told("found: tokens never set back", tokens_never_set_back, ("all scaled",), options=SHORT_AND_LONG),
    told("right: knows the last window", knows_the_last_window),
    told("right: multiplies gradients", multiplies_gradients),
    told("right: remainder factor", remainder_factor),
    told("found: next update is due", next_update_is_due, ("tail dropped",)),
    told("right: next update is due", next_update_is_due, options=EIGHT, check=called(step=4)),
    told("right: divides in a step hook", sums_and_divides_in_hooks),
)  # fmt: skip

# the doctor does not say this yet
OPEN = (
    told("found: too many epochs", too_many_epochs, ("runs too long",)),
)  # fmt: skip
