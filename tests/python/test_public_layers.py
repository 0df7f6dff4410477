"""Gated DeltaNet layers of public models against prism.GatedDeltaNet: outputs, continued prefill and decode steps.

Qwen3-Next's layer is transformers' own, in models that it saves itself. flash-linear-attention needs a GPU, so its
layer is written down here as its layers/gated_deltanet.py defines it, token by token, with its names.
"""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import prism


def expect_equal(ours, theirs, tolerance=2e-6):
    """To `tolerance` of the largest output; the default is for fp32."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def stand_out(module):
    """Weights away from their initial ones, so that no part can be left out unseen."""
    for name, parameter in module.named_parameters():
        if name.endswith(("A_log", "dt_bias")):
            parameter.data.uniform_(-2, 1)
        elif "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
        else:
            parameter.data.normal_(0, 0.4)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A small Qwen3-Next with 4 layers, the last of softmax attention, saved in one file and in several."""
    transformers = pytest.importorskip("transformers", reason="skipped: no transformers package")
    torch.manual_seed(1)
    config = transformers.Qwen3NextConfig(
        vocab_size=64, hidden_size=24, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=6,
        linear_num_key_heads=2, linear_num_value_heads=6, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=8, shared_expert_intermediate_size=8, rms_norm_eps=1e-4,
    )
    model = transformers.Qwen3NextForCausalLM(config).eval()
    for layer in model.model.layers[:3]:
        stand_out(layer.linear_attn)
    whole, shards = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("shards")
    model.save_pretrained(whole)
    model.save_pretrained(shards, max_shard_size="8KB")
    assert (shards / "model.safetensors.index.json").exists()
    return transformers, model, whole, shards


@pytest.mark.parametrize("saved", ["whole", "shards"])
@pytest.mark.parametrize("layer", [0, 2])
def test_qwen3_next(qwen, saved, layer):
    transformers, model, whole, shards = qwen
    theirs = model.model.layers[layer].linear_attn
    ours = prism.GatedDeltaNet.load(whole if saved == "whole" else shards, layer)
    x = torch.randn(2, 133, 24)
    with torch.no_grad():
        expect_equal(ours(x), theirs(x))
        for length in (1, 3, 64):
            expect_equal(ours(x[:, :length]), theirs(x[:, :length]))


def test_qwen3_next_decodes(qwen):
    transformers, model, whole, _ = qwen
    ours, theirs = prism.GatedDeltaNet.load(whole, 1), model.model.layers[1].linear_attn
    x, prompt = torch.randn(3, 90, 24), 70
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        expect_equal(ours.prefill(x[:, :prompt]), theirs(x[:, :prompt], cache_params=cache))
        for t in range(prompt, x.shape[1]):
            expect_equal(ours.step(x[:, t]), theirs(x[:, t : t + 1], cache_params=cache).squeeze(1))
        ours.reset()
        expect_equal(torch.cat([ours.prefill(x[:, :33]), ours.prefill(x[:, 33:])], 1), theirs(x))


def test_qwen3_next_trains(qwen):
    """Gradients reach input and weights as in transformers' layer."""
    _, model, whole, _ = qwen
    ours, theirs = prism.GatedDeltaNet.load(whole), model.model.layers[0].linear_attn
    x, y = torch.randn(1, 70, 24, requires_grad=True), torch.randn(1, 70, 24)
    d_ours, d_out, d_A = torch.autograd.grad((ours(x) * y).sum(), [x, ours.weights["out_weight"], ours.weights["A_log"]])
    d_theirs = torch.autograd.grad((theirs(x) * y).sum(), [x, theirs.out_proj.weight, theirs.A_log])
    for own, other in zip((d_ours, d_out, d_A), d_theirs, strict=True):
        assert (own - other).norm() <= 2e-5 * other.norm()


class FlaLayer(torch.nn.Module):
    """GatedDeltaNet of flash-linear-attention: its names and its equations, one token after the other."""

    def __init__(self, D, Hk, H, K, V, W, gate=True, conv=True, negative=False, eps=1e-5):
        super().__init__()
        self.shape, self.negative, self.eps = (Hk, H, K, V), negative, eps
        for name, rows in [("q", Hk * K), ("k", Hk * K), ("v", H * V), ("b", H), ("a", H)] + [("g", H * V)] * gate:
            self.add_module(name + "_proj", torch.nn.Linear(D, rows, bias=False))
        for name, rows in [("q", Hk * K), ("k", Hk * K), ("v", H * V)] * conv:
            self.add_module(name + "_conv1d", torch.nn.Conv1d(rows, rows, W, groups=rows, padding=W - 1, bias=False))
        self.A_log, self.dt_bias = torch.nn.Parameter(torch.zeros(H)), torch.nn.Parameter(torch.zeros(H))
        self.o_norm, self.o_proj = torch.nn.RMSNorm(V, eps), torch.nn.Linear(H * V, D, bias=False)
        stand_out(self)

    def short(self, name, x):
        y = getattr(self, name + "_proj")(x)
        if hasattr(self, name + "_conv1d"):
            y = getattr(self, name + "_conv1d")(y.mT)[..., : x.shape[1]].mT
        return F.silu(y)

    def forward(self, x):
        Hk, H, K, V = self.shape
        q, k = (self.short(n, x).unflatten(-1, (Hk, K)).repeat_interleave(H // Hk, 2) for n in "qk")
        q, k = (z * torch.rsqrt(z.square().sum(-1, keepdim=True) + 1e-6) for z in (q, k))
        v, b = self.short("v", x).unflatten(-1, (H, V)), self.b_proj(x).sigmoid() * (1 + self.negative)
        alpha = torch.exp(-self.A_log.exp() * F.softplus(self.a_proj(x) + self.dt_bias))
        S, o = x.new_zeros(x.shape[0], H, K, V), []
        for t in range(x.shape[1]):
            S = S * alpha[:, t, :, None, None]
            error = v[:, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, t])
            S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], b[:, t, :, None] * error)
            o.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]) * K**-0.5)
        o = self.o_norm(torch.stack(o, 1))
        if hasattr(self, "g_proj"):
            o = o * F.silu(self.g_proj(x).unflatten(-1, (H, V)))
        return self.o_proj(o.flatten(-2))


FLA_CONFIG = dict(
    model_type="gated_deltanet", hidden_size=20, num_heads=2, num_v_heads=4, head_dim=6, expand_v=1.5, conv_size=4,
    norm_eps=1e-5, use_gate=True, use_short_conv=True, allow_neg_eigval=False,
)


def save_fla(folder, layer, **changes):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(FLA_CONFIG | changes))
    tensors = {f"model.layers.1.attn.{name}": tensor.contiguous() for name, tensor in layer.state_dict().items()}
    save_file(tensors | {"model.embeddings.weight": torch.ones(3, 20)}, folder / "model.safetensors")


@pytest.mark.parametrize(
    "layer, config",
    [
        ({}, {}),
        (dict(gate=False), dict(use_gate=False)),
        (dict(conv=False), dict(use_short_conv=False)),
        (dict(negative=True), dict(allow_neg_eigval=True)),
        (dict(Hk=4, eps=1e-2), dict(num_heads=4, num_v_heads=None, norm_eps=1e-2)),
    ],
    ids=["grouped", "no-gate", "no-convolution", "negative-eigenvalues", "as-many-heads"],
)
def test_flash_linear_attention(layer, config, tmp_path):
    torch.manual_seed(2)
    theirs = FlaLayer(**(dict(D=20, Hk=2, H=4, K=6, V=9, W=4) | layer))
    save_fla(tmp_path, theirs, **config)
    ours = prism.GatedDeltaNet.load(tmp_path, 1)
    x = torch.randn(2, 75, 20, dtype=torch.float64)
    with torch.no_grad():
        expected = theirs.double()(x)
        expect_equal(ours(x.float()), expected, 1e-5)
        ours.to(dtype=torch.float64)
        expect_equal(ours(x), expected, 1e-12)
        expect_equal(ours.prefill(x[:, :40]), expected[:, :40], 1e-12)
        for t in range(40, 75):
            expect_equal(ours.step(x[:, t]), expected[:, t], 1e-12)
        packed = ours(x.reshape(1, 150, 20), torch.tensor([0, 75, 150]))
        expect_equal(packed.reshape(2, 75, 20), expected, 1e-12)


def test_errors_name_the_tensor(qwen, tmp_path):
    _, _, whole, shards = qwen
    with pytest.raises(RuntimeError, match=r'no tensor begins with "model\.layers\.3\.linear_attn\."'):
        prism.GatedDeltaNet.load(whole, 3)
    tensors, config = load_file(whole / "model.safetensors"), (whole / "config.json").read_text()
    name = "model.layers.0.linear_attn.in_proj_ba.weight"

    def error(tensors, config=config):
        (tmp_path / "config.json").write_text(config)
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(RuntimeError) as caught:
            prism.GatedDeltaNet.load(tmp_path)
        return str(caught.value)

    missing = {key: value for key, value in tensors.items() if key != name}
    assert f"has no tensor {name}, expected one of shape [12,24]" in error(missing)
    assert f"tensor {name} has shape [12,23], expected [12,24]" in error(tensors | {name: torch.ones(12, 23)})
    assert f"tensor {name} is Int, expected a float type" in error(tensors | {name: torch.ones(12, 24, dtype=torch.int32)})
    bias = "model.layers.0.linear_attn.conv1d.bias"
    assert f"tensor {bias} is no weight of this layer" in error(tensors | {bias: torch.ones(68)})
    other = config.replace('"qwen3_next"', '"mamba2"')
    assert 'model_type is "mamba2", expected qwen3_next or gated_deltanet' in error(tensors, other)
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RuntimeError, match="has neither model.safetensors nor model.safetensors.index.json"):
        prism.GatedDeltaNet.load(tmp_path)


def test_misuse_is_named(qwen):
    layer = prism.GatedDeltaNet.load(qwen[2])
    layer.prefill(torch.randn(2, 3, 24))
    with pytest.raises(RuntimeError, match="given 3 sequences, the state has 2"):
        layer.step(torch.randn(3, 24))
    with pytest.raises(RuntimeError, match=r"x has shape \[2,23\], expected \[B,D\] with D = 24"):
        layer.step(torch.randn(2, 23))
