"""A Setting says everything that one training step depends on. It is frozen: a run belongs to exactly one setting."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace

MODELS = ("gpt", "cnn")
OPTIMIZERS = ("sgd", "momentum", "adamw")
PRECISIONS = ("fp32", "bf16")
POLICIES = {
    "none": "every activation is kept",
    "per block": "the input of each block is kept, each block is run again",
    "every k": "regions of k blocks; the input of each region is kept",
    "sqrt": "as many equal segments as cost the least memory",
    "nested": "halves inside halves",
    "binomial": "the fewest extra forwards with `slots` states",
    "budgeted": "the least recompute whose step peak keeps `budget_bytes`",
    "selective": "each block is run again, but the outputs of matrix products and attention are kept",
    "offload": "activations of the blocks wait elsewhere: in the CPU's memory, or on a CPU in files",
}


@dataclass(frozen=True)
class Setting:
    """One training step: `accumulation_steps` micro-batches, then an update.

    model: "gpt" (reads real English, 128 characters) or "cnn" (residual, reads real digits). depth: blocks. width: features
    or channels. length: tokens of a sample, or the side of an image in pixels. micro_batch: samples. policy: one of
    POLICIES; k belongs to "every k", slots to "binomial", budget_bytes (of the whole step's peak) to "budgeted".
    precision: "fp32", or "bf16" for autocast. Raises ValueError, with what is allowed.
    """

    model: str = "gpt"
    depth: int = 6
    width: int = 64
    length: int = 32
    micro_batch: int = 8
    accumulation_steps: int = 1
    policy: str = "none"
    precision: str = "fp32"
    optimizer: str = "adamw"
    k: int | None = None
    slots: int | None = None
    budget_bytes: int | None = None

    def __post_init__(self):
        for name, known in (("model", MODELS), ("policy", POLICIES), ("precision", PRECISIONS), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {', '.join(map(repr, known))}, not {getattr(self, name)!r}.")
        for name in ("depth", "width", "length", "micro_batch", "accumulation_steps"):
            _whole(name, getattr(self, name))
        for name, policy, usual in (("k", "every k", 2), ("slots", "binomial", 3), ("budget_bytes", "budgeted", None)):
            value = getattr(self, name)
            if self.policy != policy:
                if value is not None:
                    raise ValueError(f"{name} belongs to the policy {policy!r}; this one is {self.policy!r}.")
            elif value is None and usual is None:
                raise ValueError(f"The policy {policy!r} needs {name}.")
            else:
                object.__setattr__(self, name, _whole(name, usual if value is None else value))
        if self.model == "gpt" and self.width % self.heads:
            raise ValueError(f"The width is below 64 or a multiple of 32; {self.width} is not.")
        if self.model == "gpt" and self.length > 512:
            raise ValueError(f"The text is cut into at most 512 tokens, not {self.length}.")
        if self.model == "cnn" and (self.length % 8 or self.length > 64):
            raise ValueError(f"Digits have 8 pixels a side and are enlarged 1 to 8 times: length 8, 16, ... 64, not {self.length}.")
        if self.effective_batch > 1797:
            raise ValueError(f"There are 1797 samples; this setting asks for {self.effective_batch} in one update.")

    @property
    def effective_batch(self) -> int:
        """Samples of one update."""
        return self.micro_batch * self.accumulation_steps

    @property
    def heads(self) -> int:
        return max(1, self.width // 32)

    def but(self, **changes) -> Setting:
        """The same setting with some fields changed. What belongs to another policy is dropped."""
        policy = changes.get("policy", self.policy)
        for name, owner in (("k", "every k"), ("slots", "binomial"), ("budget_bytes", "budgeted")):
            if policy != owner:
                changes.setdefault(name, None)
        return replace(self, **changes)

    def to_dict(self) -> dict:
        """The fields that are set, in order: what `from_dict` reads."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: dict) -> Setting:
        """A setting from its dict. Raises ValueError for fields that this version does not know."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"This version of the course knows no {', '.join(unknown)} in a setting; it was written by another one.")
        return cls(**values)

    def code(self) -> str:
        """The expression that makes this setting, with what differs from the defaults."""
        usual = {field.name: field.default for field in fields(self)}
        changed = {name: value for name, value in asdict(self).items() if value != usual[name]}
        return f"Setting({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    @property
    def policy_words(self) -> str:
        """The policy with its number: "every 2", "binomial, 3 slots"."""
        if self.policy == "every k":
            return f"every {self.k}"
        return f"binomial, {self.slots} slots" if self.policy == "binomial" else self.policy

    def words(self) -> str:
        """One line for a table or a title."""
        size = "tokens" if self.model == "gpt" else "pixels a side"
        split = f"{self.micro_batch} x {self.accumulation_steps}" if self.accumulation_steps > 1 else str(self.micro_batch)
        return (
            f"{self.model.upper()}, {self.depth} blocks, width {self.width}, {self.length} {size}, batch {split}, "
            f"{self.policy_words}, {self.precision}, {self.optimizer}"
        )

    def build(self):
        """(model, optimizer, step) on the CPU, for `predict(setting)`: step() trains two updates, so that all states exist."""
        from .experiment import prepared

        made = prepared(self, on="cpu")

        def step():
            made.update()
            made.update()

        return made.net, made.optimizer, step


def _whole(name: str, value) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is a whole number, 1 or more; got {value!r}.")
    return value
