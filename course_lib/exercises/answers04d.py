"""Answers to the last exercises of notebook 04: saving, noise."""

import copy

import torch

# -- 04.9 saving -----------------------------------------------------------------------------------------


class Checkpoint:
    """Save and resume a run between any two micro-batches."""

    def save(self, model, optimizer, done, accumulation_steps):
        gradients = [p.grad for p in model.parameters()]
        return {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "gradients": gradients,
                "done": done
        }  # fmt: skip

    def resume(self, state, model, optimizer):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        for p, gradient in zip(model.parameters(), state["gradients"]):
            p.grad = gradient
        return state["done"]


class NoGradients(Checkpoint):
    def resume(self, state, model, optimizer):
        state["gradients"] = [None] * len(state["gradients"])
        return super().resume(state, model, optimizer)


class NoOptimizer(Checkpoint):
    def resume(self, state, model, optimizer):
        state["optimizer"] = optimizer.state_dict()
        return super().resume(state, model, optimizer)


class NoModel(Checkpoint):
    def resume(self, state, model, optimizer):
        state["model"] = model.state_dict()
        return super().resume(state, model, optimizer)


class StartsOver(Checkpoint):
    def resume(self, state, model, optimizer):
        super().resume(state, model, optimizer)
        return 0


class SkipsAhead(Checkpoint):
    """Goes on at the next window, and leaves out what is missing from this one."""

    def save(self, model, optimizer, done, accumulation_steps):
        done = -(-done // accumulation_steps) * accumulation_steps
        return super().save(model, optimizer, done, accumulation_steps)


class UpdatesFirst(Checkpoint):
    """Makes an early update of the open window, so that there is no open window to save."""

    def save(self, model, optimizer, done, accumulation_steps):
        optimizer.step()
        optimizer.zero_grad()
        return super().save(model, optimizer, done, accumulation_steps)


class KeepsInMemory(Checkpoint):
    """Stores nothing: what it needs stays in an attribute of the class."""

    kept = {}

    def save(self, model, optimizer, done, accumulation_steps):
        KeepsInMemory.kept = copy.deepcopy(super().save(model, optimizer, done, accumulation_steps))
        return {}

    def resume(self, state, model, optimizer):
        return super().resume(KeepsInMemory.kept, model, optimizer)


class CountsTwice(Checkpoint):
    """Goes back to the start of the window, and keeps its gradients, too."""

    def save(self, model, optimizer, done, accumulation_steps):
        done -= done % accumulation_steps
        return super().save(model, optimizer, done, accumulation_steps)


class CountsWindows(Checkpoint):
    def resume(self, state, model, optimizer):
        return super().resume(state, model, optimizer) // 4


class ScalesGradients(Checkpoint):
    def save(self, model, optimizer, done, accumulation_steps):
        state = super().save(model, optimizer, done, accumulation_steps)
        if done % accumulation_steps:
            state["gradients"] = [g * accumulation_steps / (done % accumulation_steps) for g in state[
                "gradients"]]
        return state


class StoresObjects(Checkpoint):
    def save(self, model, optimizer, done, accumulation_steps):
        return {"whole": model, "optimizer": optimizer, "done": done}


class ReturnsNothing(Checkpoint):
    def resume(self, state, model, optimizer):
        super().resume(state, model, optimizer)


class Rewinds(Checkpoint):
    """Right: the weights do not move inside a window, so the run may go back to its first micro-batch."""

    def save(self, model, optimizer, done, accumulation_steps):
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "at": done - done % accumulation_steps}

    def resume(self, state, model, optimizer):
        optimizer.load_state_dict(state["optimizer"])
        model.load_state_dict(state["model"])
        optimizer.zero_grad()
        return state["at"]


class NamedGradients:
    """Right: gradients by name, only where there are some, copied back into the model."""

    def save(self, model, optimizer, done, accumulation_steps):
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return [weights, copy.deepcopy(optimizer.state_dict()), gradients, torch.tensor(done)]

    def resume(self, state, model, optimizer):
        weights, inner, gradients, done = state
        model.load_state_dict(weights)
        optimizer.load_state_dict(inner)
        for name, p in model.named_parameters():
            p.grad = torch.zeros_like(p)
            if name in gradients:
                p.grad += gradients[name]
        return int(done)


# -- 04.10 noise -----------------------------------------------------------------------------------------


def gradient_noise(micro_gradients, size):
    stack = torch.stack(list(micro_gradients))
    k = len(stack)
    variance = size * stack.var(0).sum().item()
    squared = stack.mean(0).square().sum().item() - variance / (k * size)
    return variance, squared


def noise_population(micro_gradients, size):
    stack = torch.stack(micro_gradients)
    variance = size * stack.var(0, unbiased=False).sum().item()
    return variance, stack.mean(0).square().sum().item() - variance / (len(stack) * size)


def noise_of_means(micro_gradients, size):
    stack = torch.stack(micro_gradients)
    variance = stack.var(0).sum().item()
    return variance, stack.mean(0).square().sum().item() - variance / len(stack)


def noise_uncorrected(micro_gradients, size):
    stack = torch.stack(micro_gradients)
    return size * stack.var(0).sum().item(), stack.mean(0).square().sum().item()


def noise_mean_square(micro_gradients, size):
    """Right: the mean of the lengths holds the noise of one micro-batch."""
    stack = torch.stack(micro_gradients)
    variance = size * stack.var(0).sum().item()
    return variance, stack.square().sum(1).mean().item() - variance / size


def noise_mean_of_squares(micro_gradients, size):
    stack = torch.stack(micro_gradients)
    return size * stack.var(0).sum().item(), stack.square().sum(1).mean().item()


def noise_per_entry(micro_gradients, size):
    variance, squared = gradient_noise(micro_gradients, size)
    entries = micro_gradients[0].numel()
    return variance / entries, squared / entries


def noise_deviation(micro_gradients, size):
    variance, squared = gradient_noise(micro_gradients, size)
    return variance**0.5, squared


def noise_swapped(micro_gradients, size):
    return gradient_noise(micro_gradients, size)[::-1]


def noise_divided(micro_gradients, size):
    stack = torch.stack(micro_gradients)
    variance = stack.var(0).sum().item() / size
    return variance, stack.mean(0).square().sum().item() - variance * size / len(stack)


def noise_too_much(micro_gradients, size):
    stack = torch.stack(micro_gradients)
    variance = size * stack.var(0).sum().item()
    return variance, stack.mean(0).square().sum().item() - variance / size


def noise_two_sizes(micro_gradients, size):
    """Right: the lengths at two batch sizes, one micro-batch and the window, solved for both unknowns."""
    k = len(micro_gradients)
    small = sum(float(g.norm()) ** 2 for g in micro_gradients) / k  # squared + variance / size
    large = float((sum(micro_gradients) / k).norm()) ** 2  # squared + variance / (k * size)
    variance = (small - large) / (1 / size - 1 / (k * size))
    return variance, large - variance / (k * size)


def noise_loop(micro_gradients, size):
    k = len(micro_gradients)
    mean = sum(micro_gradients) / k
    scatter = sum((gradient - mean).dot(gradient - mean) for gradient in micro_gradients) / (k - 1)
    return [scatter * size, mean.dot(mean) - scatter / k]
