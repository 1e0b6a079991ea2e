"""Answers to the exercises of notebook 04 about samples that depend on each other: BatchNorm, contrastive losses."""

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
    """Right: one chunk is live among cached rows, and the whole loss goes backward through it. N/chunk losses."""
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
    """Right: gradients of the embeddings by autograd.grad, then the dot product as a stand-in loss, both views at once."""
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
