"""Answers to the exercises of notebook 04 about BatchNorm, contrastive losses and clipping."""

import math

import torch

# -- 04.4 BatchNorm --------------------------------------------------------------------------------------


def matching_momentum(momentum, accumulation_steps):
    return 1 - (1 - momentum) ** (1 / accumulation_steps)


def momentum_share(momentum, accumulation_steps):
    return momentum / accumulation_steps


def momentum_same(momentum, accumulation_steps):
    return momentum


def momentum_power(momentum, accumulation_steps):
    return 1 - (1 - momentum) ** accumulation_steps


def momentum_root(momentum, accumulation_steps):
    return momentum ** (1 / accumulation_steps)


def momentum_kept(momentum, accumulation_steps):
    return (1 - momentum) ** (1 / accumulation_steps)


def momentum_times(momentum, accumulation_steps):
    return momentum * accumulation_steps


def momentum_log(momentum, accumulation_steps):
    return -math.expm1(math.log1p(-momentum) / accumulation_steps)


def momentum_tensor(momentum, accumulation_steps):
    return 1 - torch.tensor(1 - momentum, dtype=torch.float64).pow(1 / accumulation_steps)


# -- 04.5 contrastive ------------------------------------------------------------------------------------


def cached_backward(encoder, loss_fn, first, second, chunk):
    with torch.no_grad():
        a, b = (torch.cat([encoder(part) for part in view.split(chunk)]) for view in (first, second))
    a.requires_grad_()
    b.requires_grad_()
    loss = loss_fn(a, b)
    loss.backward()
    for view, cached in ((first, a), (second, b)):
        for part, gradient in zip(view.split(chunk), cached.grad.split(chunk)):
            encoder(part).backward(gradient)
    return loss.item()


def contrast_chunks(encoder, loss_fn, first, second, chunk):
    pairs = list(zip(first.split(chunk), second.split(chunk)))
    total = 0.0
    for x, y in pairs:
        loss = loss_fn(encoder(x), encoder(y)) / len(pairs)
        loss.backward()
        total += loss.item()
    return total


def contrast_shares(encoder, loss_fn, first, second, chunk):
    total = 0.0
    for x, y in zip(first.split(chunk), second.split(chunk)):
        loss = loss_fn(encoder(x), encoder(y)) * (len(x) / len(first))
        loss.backward()
        total += loss.item()
    return total


def contrast_whole(encoder, loss_fn, first, second, chunk):
    loss = loss_fn(encoder(first), encoder(second))
    loss.backward()
    return loss.item()


def contrast_keeps(encoder, loss_fn, first, second, chunk):
    a, b = (torch.cat([encoder(part) for part in view.split(chunk)]) for view in (first, second))
    loss = loss_fn(a, b)
    loss.backward()
    return loss.item()


def contrast_no_second_pass(encoder, loss_fn, first, second, chunk):
    with torch.no_grad():
        a, b = (torch.cat([encoder(part) for part in view.split(chunk)]) for view in (first, second))
    loss = loss_fn(a.requires_grad_(), b.requires_grad_())
    loss.backward()
    return loss.item()


def contrast_one_view(encoder, loss_fn, first, second, chunk):
    with torch.no_grad():
        a, b = (torch.cat([encoder(part) for part in view.split(chunk)]) for view in (first, second))
    loss = loss_fn(a.requires_grad_(), b)
    loss.backward()
    for part, gradient in zip(first.split(chunk), a.grad.split(chunk)):
        encoder(part).backward(gradient)
    return loss.item()


def contrast_divided(encoder, loss_fn, first, second, chunk):
    loss = cached_backward(encoder, loss_fn, first, second, chunk)
    for parameter in encoder.parameters():
        parameter.grad /= len(first.split(chunk))
    return loss


def contrast_loss_of_chunks(encoder, loss_fn, first, second, chunk):
    cached_backward(encoder, loss_fn, first, second, chunk)
    pairs = list(zip(first.split(chunk), second.split(chunk)))
    with torch.no_grad():
        return sum(loss_fn(encoder(x), encoder(y)).item() for x, y in pairs) / len(pairs)


def contrast_clears(encoder, loss_fn, first, second, chunk):
    with torch.no_grad():
        a, b = (torch.cat([encoder(part) for part in view.split(chunk)]) for view in (first, second))
    loss = loss_fn(a.requires_grad_(), b.requires_grad_())
    loss.backward()
    for view, cached in ((first, a), (second, b)):
        for part, gradient in zip(view.split(chunk), cached.grad.split(chunk)):
            encoder.zero_grad()
            encoder(part).backward(gradient)
    return loss.item()


def contrast_no_loss(encoder, loss_fn, first, second, chunk):
    cached_backward(encoder, loss_fn, first, second, chunk)


def contrast_live_chunk(encoder, loss_fn, first, second, chunk):
    """Right: one chunk is live among cached rows, and the whole loss goes backward through it."""
    with torch.no_grad():
        a, b = (torch.cat([encoder(part) for part in view.split(chunk)]) for view in (first, second))
    for start in range(0, len(first), chunk):
        rows = slice(start, start + chunk)
        live_a, live_b = a.clone(), b.clone()
        live_a[rows], live_b[rows] = encoder(first[rows]), encoder(second[rows])
        loss = loss_fn(live_a, live_b)
        loss.backward()
    return loss.item()


def contrast_surrogate(encoder, loss_fn, first, second, chunk):
    """Right: gradients of the embeddings by autograd.grad, then a dot product as stand-in loss."""
    a, b = [], []
    for start in range(0, len(first), chunk):
        a.append(encoder(first[start : start + chunk]).detach())
        b.append(encoder(second[start : start + chunk]).detach())
    a, b = torch.cat(a).requires_grad_(), torch.cat(b).requires_grad_()
    loss = loss_fn(a, b)
    ga, gb = torch.autograd.grad(loss, (a, b))
    for start in range(0, len(first), chunk):
        rows = slice(start, start + chunk)
        dot = (encoder(first[rows]) * ga[rows]).sum() + (encoder(second[rows]) * gb[rows]).sum()
        dot.backward()
    return loss.detach()


# -- 04.6 clipping ---------------------------------------------------------------------------------------


def train_clipped(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    norms = []
    optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            norms.append(norm.item())
            optimizer.step()
            optimizer.zero_grad()
    return norms


def clip_partial_sums(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    norms = []
    for i, (inputs, targets) in enumerate(batches, 1):
        (loss_fn(model(inputs), targets) / accumulation_steps).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if i % accumulation_steps == 0:
            norms.append(norm.item())
            optimizer.step()
            optimizer.zero_grad()
    return norms


def _clip_each(before_division):
    def loop(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
        parameters, norms, i = list(model.parameters()), [], 0
        sums = [torch.zeros_like(p) for p in parameters]
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            (loss if before_division else loss / accumulation_steps).backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
            for total, p in zip(sums, parameters):
                total += p.grad / accumulation_steps if before_division else p.grad
            i += 1
            if i % accumulation_steps == 0:
                for total, p in zip(sums, parameters):
                    p.grad = total.clone()
                    total.zero_()
                norms.append(norm.item())
                optimizer.step()
        return norms

    return loop


clip_each_mean = _clip_each(True)
clip_each_share = _clip_each(False)


def _clip_with(clip, divide=True, late=False):
    """A loop that does `clip(model, max_norm, K)` when a window is full, before the update or after it."""

    def loop(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
        norms = []
        for i, (inputs, targets) in enumerate(batches, 1):
            loss = loss_fn(model(inputs), targets)
            (loss / accumulation_steps if divide else loss).backward()
            if i % accumulation_steps == 0:
                if late:
                    optimizer.step()
                norms.append(float(clip(model, max_norm, accumulation_steps)))
                if not late:
                    optimizer.step()
                optimizer.zero_grad()
        return norms

    return loop


def _plain_clip(model, max_norm, k):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def _norm(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()]).norm()


def _then_divide(model, max_norm, k):
    norm = _plain_clip(model, max_norm, k)
    for p in model.parameters():
        p.grad /= k
    return norm / k


def _by_value(model, max_norm, k):
    norm = _norm(model)
    torch.nn.utils.clip_grad_value_(model.parameters(), max_norm)
    return norm


def _tensor_by_tensor(model, max_norm, k):
    norm = _norm(model)
    for p in model.parameters():
        torch.nn.utils.clip_grad_norm_(p, max_norm)
    return norm


def _always(model, max_norm, k):
    norm = _norm(model)
    for p in model.parameters():
        p.grad *= max_norm / norm
    return norm


def _norm_after(model, max_norm, k):
    _plain_clip(model, max_norm, k)
    return _norm(model)


def _smaller_limit(model, max_norm, k):
    return _plain_clip(model, max_norm / k, k)


def _exactly(model, max_norm, k):
    norm = _norm(model)
    for p in model.parameters():
        p.grad *= min(1.0, max_norm / norm.item())
    return norm


clip_undivided = _clip_with(_plain_clip, divide=False)
clip_then_divide = _clip_with(_then_divide, divide=False)
clip_late = _clip_with(_plain_clip, late=True)
clip_never = _clip_with(lambda model, max_norm, k: _norm(model))
clip_by_value = _clip_with(_by_value)
clip_tensors = _clip_with(_tensor_by_tensor)
clip_always = _clip_with(_always)
clip_norm_after = _clip_with(_norm_after)
clip_smaller_limit = _clip_with(_smaller_limit)
clip_by_hand = _clip_with(_exactly)


def clip_sum_scaled(model, optimizer, loss_fn, batches, accumulation_steps, max_norm):
    """Right: sums, a limit that is K times as large, and one division after clipping."""
    norms = []
    for i, (inputs, targets) in enumerate(batches, 1):
        loss_fn(model(inputs), targets).backward()
        if i % accumulation_steps == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * accumulation_steps)
            for p in model.parameters():
                p.grad /= accumulation_steps
            norms.append(norm / accumulation_steps)
            optimizer.step()
            optimizer.zero_grad()
    return norms
