"""Wrong and unusual answers for version 1 of notebook 05."""

import torch
from torch.utils.checkpoint import checkpoint

from .answers05 import my_checkpoint


def leaves(ctx):
    return [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]


class Base(torch.autograd.Function):
    """Version 1; the wrong ones change one method."""

    @staticmethod
    def forward(ctx, segment, *inputs):
        ctx.segment = segment
        ctx.save_for_backward(*inputs)
        return segment(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = leaves(ctx)
        with torch.enable_grad():
            output = ctx.segment(*inputs)
        torch.autograd.backward(output, gradient)
        return None, *(x.grad for x in inputs)


# -- 05.2 wrong --------------------------------------------------------------------------------------------


class NotDetached(Base):
    @staticmethod
    def backward(ctx, gradient):
        inputs = ctx.saved_tensors
        with torch.enable_grad():
            output = ctx.segment(*inputs)
        torch.autograd.backward(output, gradient)
        return None, *(x.grad if x.is_leaf else None for x in inputs)


class Constants(Base):
    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach() for x in ctx.saved_tensors]
        with torch.enable_grad():
            output = ctx.segment(*inputs)
        torch.autograd.backward(output, gradient)
        return None, *(x.grad for x in inputs)


class OnlyInputs(Base):
    @staticmethod
    def backward(ctx, gradient):
        inputs = leaves(ctx)
        with torch.enable_grad():
            output = ctx.segment(*inputs)
        wanted = [x for x in inputs if x.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, gradient))
        return None, *(next(found) if x.requires_grad else None for x in inputs)


class KeepsGraph(Base):
    @staticmethod
    def forward(ctx, segment, *inputs):
        ctx.inputs = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        with torch.enable_grad():
            ctx.output = segment(*ctx.inputs)
        return ctx.output.detach()

    @staticmethod
    def backward(ctx, gradient):
        torch.autograd.backward(ctx.output, gradient)
        return None, *(x.grad for x in ctx.inputs)


class KeepsOutput(Base):
    @staticmethod
    def forward(ctx, segment, *inputs):
        ctx.segment = segment
        ctx.save_for_backward(*inputs)
        with torch.enable_grad():
            ctx.output = segment(*inputs)  # with its graph, and the graph with all it saved
        return ctx.output.detach()


class NoRecording(Base):
    @staticmethod
    def backward(ctx, gradient):
        inputs = leaves(ctx)
        output = ctx.segment(*inputs)
        torch.autograd.backward(output, gradient)
        return None, *(x.grad for x in inputs)


class AgainForParameters(Base):
    @staticmethod
    def backward(ctx, gradient):
        inputs = leaves(ctx)
        with torch.enable_grad():
            wanted = [x for x in inputs if x.requires_grad]
            found = iter(torch.autograd.grad(ctx.segment(*inputs), wanted, gradient))
            torch.autograd.backward(ctx.segment(*[x.detach() for x in inputs]), gradient)
        return None, *(next(found) if x.requires_grad else None for x in inputs)


class Ones(Base):
    @staticmethod
    def backward(ctx, gradient):
        inputs = leaves(ctx)
        with torch.enable_grad():
            ctx.segment(*inputs).sum().backward()
        return None, *(x.grad for x in inputs)


class RunsAgainAtOnce(Base):
    @staticmethod
    def forward(ctx, segment, *inputs):
        ctx.inputs = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        with torch.enable_grad():
            ctx.output = segment(*ctx.inputs)
        return segment(*inputs)

    backward = KeepsGraph.backward


class OnCtx(Base):
    @staticmethod
    def forward(ctx, segment, *inputs):
        ctx.segment, ctx.inputs = segment, inputs
        return segment(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.inputs]
        with torch.enable_grad():
            output = ctx.segment(*inputs)
        torch.autograd.backward(output, gradient)
        return None, *(x.grad for x in inputs)


class OneShort(Base):
    @staticmethod
    def backward(ctx, gradient):
        return Base.backward(ctx, gradient)[1:]


class ForwardOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, segment, *inputs):
        return segment(*inputs)


class BackwardTwice(Base):
    @staticmethod
    def backward(ctx, gradient):
        inputs = leaves(ctx)
        with torch.enable_grad():
            output = ctx.segment(*inputs)
        torch.autograd.backward(output, gradient, retain_graph=True)  # "for the inputs"
        torch.autograd.backward(output, gradient)  # "for the weights"
        return None, *(x.grad for x in inputs)


class NoStart(Base):
    @staticmethod
    def backward(ctx, gradient):
        inputs = leaves(ctx)
        with torch.enable_grad():
            ctx.segment(*inputs).backward()
        return None, *(x.grad for x in inputs)


class GivesAList(Base):
    @staticmethod
    def backward(ctx, gradient):
        nothing, *gradients = Base.backward(ctx, gradient)
        return nothing, gradients


class NotStatic(torch.autograd.Function):
    def forward(self, ctx, segment, *inputs):
        return Base.forward(ctx, segment, *inputs)

    def backward(self, ctx, gradient):
        return Base.backward(ctx, gradient)


class ByTorch(torch.autograd.Function):
    """Another's checkpoint in a Function's clothes."""

    @classmethod
    def apply(cls, segment, *inputs):
        return checkpoint(segment, *inputs, use_reentrant=False)


def by_hooks(segment, *inputs):
    return my_checkpoint(segment, *inputs)


# -- 05.2 unusual ------------------------------------------------------------------------------------------


class ApartContext(torch.autograd.Function):
    @staticmethod
    def forward(segment, *inputs):
        return segment(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.segment = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    backward = Base.backward


class DotProduct(Base):
    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.set_grad_enabled(True):
            (ctx.segment(*inputs) * gradient).sum().backward()
        return (None, *[x.grad for x in inputs])


class WalksTheGraph(Base):
    """Finds the weights itself, and adds to .grad by hand."""

    @staticmethod
    def backward(ctx, gradient):
        inputs = leaves(ctx)
        with torch.enable_grad():
            output = ctx.segment(*inputs)
        todo, seen, weights = [output.grad_fn], set(), []
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable") and not any(node.variable is x for x in inputs):
                weights.append(node.variable)
            todo += [parent for parent, _ in node.next_functions]
        wanted = [x for x in inputs if x.requires_grad]
        found = torch.autograd.grad(output, [*wanted, *weights], gradient)
        for weight, g in zip(weights, found[len(wanted) :]):
            weight.grad = g if weight.grad is None else weight.grad + g
        found = iter(found)
        return None, *(next(found) if x.requires_grad else None for x in inputs)
