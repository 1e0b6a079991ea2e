"""The ledger's formulas against the Meter and against what autograd keeps, to the byte."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.experiments.models import GPT, cnn, mlp, next_token_loss
from course_lib.measure import Meter, saved_tensors
from course_lib.measure.saved import saved_bytes
from course_lib.memory import ledger

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def after_a_step(model, optimizer, loss):
    """{category: bytes} of what stays after the first update."""
    with Meter(model, optimizer) as meter:
        loss().backward()
        optimizer.step()
    return meter.trace.records[-1].by_category


def digits_loss(model, inputs=64):
    x, y = torch.randn(5, inputs), torch.randint(10, (5,))
    return lambda: F.cross_entropy(model(x), y)


def gpt_loss(model):
    tokens = torch.randint(17, (2, 8))
    return lambda: next_token_loss(model(tokens), tokens)


def assert_states(found, parts):
    for category in ("parameters", "gradients", "optimizer state"):
        assert found.get(category, 0) == parts[category], category


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", OPTIMIZERS)
@pytest.mark.parametrize("name", ["mlp", "gpt with a shared head", "half frozen"])
def test_states_are_what_the_meter_finds_after_one_update(recipe, name):
    if name == "gpt with a shared head":
        model = GPT(17, 8, 16, 2, 2)
        loss = gpt_loss(model)
    else:
        model = mlp(width=32, depth=3)
        loss = digits_loss(model)
    if name == "half frozen":
        for layer in model[:4]:
            layer.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    found = after_a_step(model, OPTIMIZERS[recipe](trained), loss)
    assert_states(found, ledger.states(model, recipe))


def test_states_of_a_bf16_model_are_in_its_own_dtype():
    model = mlp(width=32, depth=2).bfloat16()
    x, y = torch.randn(5, 64).bfloat16(), torch.randint(10, (5,))
    found = after_a_step(model, torch.optim.Adam(model.parameters()), lambda: F.cross_entropy(model(x), y))
    assert_states(found, ledger.states(model, "adam"))


def test_mixed_adam_is_what_a_bf16_model_with_fp32_masters_keeps():
    model = mlp(width=32, depth=2).bfloat16()
    model[0].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    masters = [p.detach().float().requires_grad_() for p in trained]
    optimizer = torch.optim.Adam(masters)
    x, y = torch.randn(5, 64).bfloat16(), torch.randint(10, (5,))
    with Meter(model, optimizer) as meter:
        F.cross_entropy(model(x), y).backward()
        for master, p in zip(masters, trained):
            master.grad = p.grad.float()
        optimizer.step()
        optimizer.zero_grad()  # the fp32 gradients live for the update only
        with torch.no_grad():
            for master, p in zip(masters, trained):
                p.copy_(master)
    found, parts = meter.trace.records[-1].by_category, ledger.states(model, "mixed adam")
    assert found["parameters"] == parts["parameters"] + parts["master parameters"]
    assert found["gradients"] == parts["gradients"]
    assert found["optimizer state"] == parts["optimizer state"]


def test_mixed_adam_is_16_bytes_per_parameter_and_a_counter_per_tensor():
    parts = ledger.states([torch.nn.Parameter(torch.zeros(1000))], "mixed adam")
    assert ledger.total(parts) == 16 * 1000 + 4


def test_a_tensor_given_twice_counts_once_and_any_iterable_will_do():
    p = nn.Parameter(torch.zeros(10))
    once = ledger.states([p], "momentum")
    assert once == ledger.states(iter([p, p]), "momentum")
    assert once == {"parameters": 40, "gradients": 40, "optimizer state": 40}


def test_an_unknown_recipe_is_named_with_those_that_exist():
    with pytest.raises(ValueError, match="no recipe 'lion'.*sgd, momentum, adam, adamw, mixed adam"):
        ledger.states(mlp(), "lion")


@pytest.mark.parametrize("dims", [(17, 8, 16, 2, 2), (256, 64, 128, 4, 4), (9, 4, 8, 0, 1)])
def test_the_parameters_of_a_gpt_are_those_of_the_real_model(dims):
    vocab, length, width, depth, heads = dims
    model = GPT(vocab, length, width, depth, heads)
    parts = ledger.gpt_parameters(vocab, length, width, depth)
    assert ledger.total(parts) == sum(p.numel() for p in model.parameters())
    assert parts["blocks"] == sum(p.numel() for p in model.blocks.parameters())


# -- activations of whole models -------------------------------------------------------------------


def activations_at_the_end_of_forward(model, loss_fn, inputs, targets):
    with Meter(model) as meter:
        loss_fn(model(inputs), targets).backward()
    last = [record for record in meter.trace.records if record.phase == "forward"][-1]
    return last.by_category["activations"]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("batch, width, depth, classes", [(7, 32, 3, 10), (1, 5, 1, 2), (64, 128, 6, 10)])
def test_activations_of_an_mlp_to_the_byte(batch, width, depth, classes, activation):
    model = mlp(64, width, depth, classes, {"relu": nn.ReLU, "gelu": nn.GELU}[activation])
    x, y = torch.randn(batch, 64), torch.randint(classes, (batch,))
    found = activations_at_the_end_of_forward(model, F.cross_entropy, x, y)
    parts = ledger.mlp_activations(batch, width, depth, classes, activation=activation)
    assert found == ledger.total(parts)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "not fused"])
@pytest.mark.parametrize("p", [0.0, 0.1], ids=["no dropout", "dropout"])
@pytest.mark.parametrize("dims", [(2, 8, 32, 2, 4, 17), (3, 16, 24, 1, 3, 11), (1, 5, 8, 3, 1, 9)])
def test_activations_of_a_gpt_to_the_byte(dims, fused, p):
    batch, length, width, depth, heads, vocab = dims
    model = GPT(vocab, length, width, depth, heads, p, fused)
    tokens = torch.randint(vocab, (batch, length))
    found = activations_at_the_end_of_forward(model, next_token_loss, tokens, tokens.clone())
    assert found == ledger.total(ledger.gpt_activations(*dims, fused=fused, dropout_p=p))


def test_every_part_is_a_whole_number_of_bytes():
    for parts in (
        ledger.gpt_activations(2, 8, 32, 2, 4, 17, fused=False, dropout_p=0.1),
        ledger.mlp_activations(7, 32, 3, 10, activation="gelu"),
        ledger.logits(2, 8, 17),
        ledger.states(mlp(), "mixed adam"),
    ):
        assert all(type(nbytes) is int and nbytes >= 0 for nbytes in parts.values())


def test_the_widest_tensors_of_a_language_model_are_alive_together():
    batch, length, vocab = 4, 16, 512
    given = torch.randn(batch, length, vocab, requires_grad=True)
    targets = torch.randint(vocab, (batch, length))
    with Meter() as meter:
        held = given * 1.0
        next_token_loss(held, targets).backward()
    scalars = 4 + 4  # the loss, and the sum of the target weights
    total = ledger.total(ledger.logits(batch, length, vocab))
    assert total + scalars == meter.trace.peak_bytes - meter.trace.baseline_bytes


# -- one layer at a time ---------------------------------------------------------------------------

LAYERS = {
    "linear": (nn.Linear(6, 5), (7, 6), ledger.linear(7, 6)),
    "conv2d": (nn.Conv2d(3, 4, 3), (2, 3, 8, 8), ledger.conv2d(2, 3, 8, 8)),
    "relu": (nn.ReLU(), (7, 6), ledger.relu(42)),
    "gelu": (nn.GELU(), (7, 6), ledger.gelu(42)),
    "softmax": (nn.Softmax(-1), (7, 6), ledger.softmax(42)),
    "layer_norm": (nn.LayerNorm(6), (7, 6), ledger.layer_norm(7, 6)),
    "dropout": (nn.Dropout(0.1), (7, 6), ledger.dropout(42)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_what_a_layer_keeps_is_what_autograd_saved(kind):
    layer, shape, parts = LAYERS[kind]
    output = layer(torch.randn(shape, requires_grad=True))
    assert saved_bytes(saved_tensors(output, layer)) == ledger.total(parts)


def test_batch_norm_keeps_its_input_and_two_numbers_for_each_channel():
    layer, (batch, channels, height, width) = nn.BatchNorm2d(3), (2, 3, 8, 8)
    output = layer(torch.randn(batch, channels, height, width, requires_grad=True))
    # its running mean and variance are buffers: autograd holds them, but they are alive anyway
    saved = [entry for entry in saved_tensors(output, layer) if not entry.name.startswith("running")]
    assert saved_bytes(saved) == ledger.total(ledger.batch_norm(batch, channels, height, width))


def test_cross_entropy_keeps_log_probabilities_a_weight_sum_and_the_loss():
    logits, targets = torch.randn(7, 10, requires_grad=True), torch.randint(10, (7,))
    loss = F.cross_entropy(logits, targets)
    saved = [entry for entry in saved_tensors(loss) if entry.name != "target"]  # the data exist anyway
    assert saved_bytes(saved) + loss.nbytes == ledger.total(ledger.cross_entropy(7, 10))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_fused_attention_keeps_q_k_v_the_result_and_a_number_for_each_row(dtype):
    batch, heads, length, each = 2, 4, 8, 16
    q, k, v = (torch.randn(batch, heads, length, each, dtype=dtype, requires_grad=True) for _ in range(3))
    saved = saved_tensors(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    parts = ledger.attention(batch, length, heads * each, heads, dtype.itemsize)
    # q, k and v are parameters of nothing here, so all are counted
    assert saved_bytes(saved) == ledger.total(parts)


def test_attention_that_is_not_fused_pays_the_square_of_the_length():
    short, long = (ledger.attention(1, n, 8, 2, fused=False) for n in (16, 32))
    assert long["probabilities"] == 4 * short["probabilities"] == 4 * (2 * 16 * 16 * 4)
    assert long["causal mask"] == 32 * 32
    assert "probabilities" not in ledger.attention(1, 32, 8, 2)


def test_row_statistics_of_a_layer_norm_are_narrower_on_a_cpu_in_bf16():
    """The ledger says fp32, as CUDA kernels keep them; the CPU's kernel keeps them in the weights' dtype."""
    layer = nn.LayerNorm(6).bfloat16()
    output = layer(torch.randn(7, 6, dtype=torch.bfloat16, requires_grad=True))
    parts = ledger.layer_norm(7, 6, itemsize=2)
    assert ledger.total(parts) - saved_bytes(saved_tensors(output, layer)) == parts["row statistics"] // 2


def test_a_dropout_mask_is_one_byte_each_on_cuda():
    assert ledger.dropout(42, itemsize=2, device="cuda") == {"mask": 42}


def test_the_cnn_keeps_what_its_layers_say():
    """Two conv-norm-ReLU groups, then Linear: ReLU's output is the next layer's input and counts once."""
    batch, c = 4, 16
    images, labels = torch.randn(batch, 1, 8, 8), torch.randint(10, (batch,))
    parts = [
        ledger.batch_norm(batch, c, 8, 8),
        ledger.relu(batch * c * 64),
        ledger.batch_norm(batch, 2 * c, 4, 4),
        ledger.relu(batch * 2 * c * 16),
        ledger.cross_entropy(batch, 10),
    ]
    found = activations_at_the_end_of_forward(cnn(c), F.cross_entropy, images, labels)
    assert found == sum(map(ledger.total, parts))


# -- the literature --------------------------------------------------------------------------------


def test_korthikantis_block_of_gpt3_is_2_87_gb():
    length, width, heads = 2048, 12288, 96
    by_hand = 34 * length * width + 5 * heads * length**2
    assert ledger.korthikanti_block(1, length, width, heads) == by_hand == 2_868_903_936
    assert ledger.korthikanti_block(4, 128, 64, 4) == 4 * ledger.korthikanti_block(1, 128, 64, 4)


def test_on_cuda_a_dropout_mask_is_one_byte_a_number():
    cpu = ledger.block_activations(2, 8, 16, 2, dropout_p=0.1)["dropout masks"]
    cuda = ledger.block_activations(2, 8, 16, 2, dropout_p=0.1, device="cuda")["dropout masks"]
    assert (cpu, cuda) == (2 * 2 * 8 * 16 * 4, 2 * 2 * 8 * 16)
