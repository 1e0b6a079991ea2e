"""A schedule step by step: what runs, what is alive, how many bytes. Pictures and predictions are both made from this."""

from __future__ import annotations

from typing import NamedTuple

from .chain import Chain
from .trees import blocks_of


class Tick(NamedTuple):
    """One block, run once. Bytes count what the schedule holds: parameters and gradients from before are not in them."""

    action: str  # "forward", "recompute" or "backward"
    block: int
    kept: bool  # its activations stay (a forward or recompute that is taped)
    states: tuple  # boundaries alive afterwards: i is the input of block i, n the output of the chain
    taped: tuple  # blocks whose activations are alive afterwards
    live_bytes: int  # alive afterwards
    peak_bytes: int  # highest while it runs


def ticks(chain: Chain, tree: tuple) -> tuple:
    """All ticks of forward and backward, in order."""
    out: list = []
    _Run(chain, out).stretch(tree, len(chain) - 1, {}, frozenset(), first=True, held=False)
    return tuple(out)


class _Run:
    def __init__(self, chain: Chain, out: list):
        self.chain, self.out = chain, out

    def stretch(self, parts: tuple, end: int, taped: dict, states: frozenset, first: bool, held: bool) -> None:
        """Run parts forward and then backward. taped: {block: bytes} and states: boundaries, both kept by what lies before.

        first: the first run, not a rerun. held: somebody else keeps the input of the stretch to its end.
        """
        chain, action = self.chain, "forward" if first else "recompute"
        if not first:
            # Blocks at the end that save nothing run backward before anybody asks for a saved tensor, and never again.
            while parts and not isinstance(parts[-1], tuple) and not chain.blocks[parts[-1]].saves:
                self.backward(parts[-1], taped, states, True, held and len(parts) == 1)
                parts = parts[:-1]
            if not parts:
                return
            end = blocks_of(parts)[-1]
        waiting = chain.waiting(end) if first or end < len(chain) - 1 else chain.gradient(end + 1) + chain.loss_bytes
        stages = [(dict(taped), states, held)]
        for part in parts:
            taped, states, held = dict(stages[-1][0]), *stages[-1][1:]
            base = self.held(taped, states) + waiting
            if isinstance(part, tuple):
                blocks = blocks_of(part)
                before, states = states, states | {blocks[0]}
                # a rerun that ends with a region stops when that region's input is there
                for i in blocks if first or part is not parts[-1] else ():
                    tip = frozenset({i + 1})
                    self.note(action, i, False, states | tip, taped, waiting, base + chain.plain_forward(blocks[0], i))
                if not any(chain.blocks[i].saves for i in blocks):  # nobody will ask for its input
                    states = before
            else:
                last = not first and part == end
                peak = base + chain.taped_forward(part, last)
                taped[part] = chain.blocks[part].own_bytes
                states |= {part} if chain.blocks[part].keeps_input or held else set()
                tip = frozenset() if last else frozenset({part + 1})
                self.note(action, part, True, states | tip, taped, waiting, peak)
            stages.append((taped, states, not isinstance(part, tuple) and chain.blocks[part].saves_output))
        for part, (taped, states, held) in zip(reversed(parts), reversed(stages[:-1])):
            if isinstance(part, tuple):
                # a region of the first run keeps its input itself; deeper ones hand it over to their rerun
                self.stretch(part, blocks_of(part)[-1], taped, states, first=False, held=held or first)
            else:
                self.backward(part, taped, states, not first, held)

    def backward(self, part: int, taped: dict, states: frozenset, rerun: bool, held: bool) -> None:
        peak = self.held(taped, states) + self.chain.backward(part, rerun=rerun, held=held)
        after = self.chain.gradient(part) + self.chain.weight_gradients_after(part - 1) + self.chain.loss_bytes
        self.note("backward", part, False, states, taped, after, peak)

    def held(self, taped: dict, states: frozenset) -> int:
        """Bytes of taped blocks and of the boundaries that are kept for them and for regions."""
        return sum(taped.values()) + sum(self.chain.boundary(i) for i in states)

    def note(self, action, block, kept, states, taped, more, peak) -> None:
        live = self.held(taped, states) + more
        self.out.append(Tick(action, block, kept, tuple(sorted(states)), tuple(sorted(taped)), live, max(peak, live)))
