"""The operators as PyTorch users meet them: gradcheck, opcheck, compile, autocast, fake tensors, errors.

Numbers are compared with a token loop here; the C++ tests walk the long list of cases.
"""

import math

import prism
import pytest
import torch
from torch.library import opcheck

OPS = torch.ops.prism


def tensors(dtype=torch.float64, B=2, T=11, L=2, H=4, Hk=2, K=5, V=3, erase_read=False, lengths=None, seed=0):
    """Arguments of prism_chunk; q, k, w need gradients, so do the gates and the state."""
    generator = torch.Generator().manual_seed(seed)
    gates = torch.float64 if dtype == torch.float64 else torch.float32

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def unit(*shape):
        x = normal(*shape)
        return (0.99 * x / x.norm(dim=-1, keepdim=True)).to(dtype).requires_grad_()

    if lengths is not None:
        B, T = 1, sum(lengths)
    N = B if lengths is None else len(lengths)
    named = dict(
        q=unit(B, T, Hk, K),
        k=unit(B, T, L, Hk, K),
        w=normal(B, T, L, H, V).to(dtype).requires_grad_(),
        b=normal(B, T, H).sigmoid().to(gates).requires_grad_(),
        g=(-normal(B, T, H).exp()).to(gates).requires_grad_(),
        initial_state=normal(N, H, K, V).to(gates).requires_grad_(),
    )
    if erase_read:
        named["erase_read"] = unit(B, T, Hk, K)
    if lengths is not None:
        named["cu_seqlens"] = torch.tensor([0, *lengths]).cumsum(0)
    return named


def token_loop(q, k, w, b, g, initial_state, erase_read=None, cu_seqlens=None):
    group = w.shape[3] // q.shape[2]
    q, k = q.repeat_interleave(group, 2), k.repeat_interleave(group, 3)
    e = k[:, :, 0] if erase_read is None else erase_read.repeat_interleave(group, 2)
    if cu_seqlens is None:
        rows = [(n, slice(None)) for n in range(q.shape[0])]
    else:
        rows = [(0, slice(*pair)) for pair in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist())]
    outputs, states = [], []
    for n, (row, span) in enumerate(rows):
        S = initial_state[n]
        for t in range(q.shape[1])[span]:
            erased = torch.einsum("hk,hkv->hv", e[row, t], S)
            S = S - b[row, t, :, None, None] * k[row, t, 0, :, :, None] * erased[:, None, :]
            S = g[row, t].exp()[:, None, None] * S + torch.einsum("lhk,lhv->hkv", k[row, t], w[row, t])
            outputs.append(torch.einsum("hk,hkv->hv", q[row, t], S) / math.sqrt(q.shape[-1]))
        states.append(S)
    return torch.stack(outputs).view(*q.shape[:2], *w.shape[3:]), torch.stack(states)


def gradients(function, named):
    """Outputs and gradients of a fixed weighting of both outputs."""
    outputs = function(**named, return_final_state=True) if function is not token_loop else function(**named)
    weights = [torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o) for o in outputs]
    leaves = [x for x in named.values() if x.requires_grad]
    return [*outputs, *torch.autograd.grad(outputs, leaves, weights)]


def relative_error(x, reference):
    x, reference = x.double(), reference.double()
    return ((x - reference).norm() / reference.norm().clamp_min(1e-6 * max(x.numel(), 1) ** 0.5)).item()


VARIANTS = [dict(), dict(L=1), dict(erase_read=True), dict(lengths=[0, 1, 9, 0, 4])]


@pytest.mark.parametrize("implementation", ["fused", "composed"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_numbers_are_the_token_loops(variant, implementation):
    named = tensors(**variant)
    found = gradients(lambda **kw: prism.prism_chunk(**kw, implementation=implementation), named)
    for x, reference in zip(found, gradients(token_loop, named), strict=True):
        assert relative_error(x, reference) < 1e-11


@pytest.mark.parametrize("implementation", ["fused", "composed"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_gradcheck(variant, implementation):
    named = tensors(**(dict(B=1, T=5, H=2, Hk=1, K=3, V=2) | variant))
    names = list(named)

    def function(*values):
        return prism.prism_chunk(
            **dict(zip(names, values)), return_final_state=True, chunk=2, implementation=implementation
        )

    assert torch.autograd.gradcheck(function, tuple(named.values()), fast_mode=False)


def test_gradcheck_refine():
    torch.manual_seed(0)
    v, u = (torch.randn(2, 3, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    p = torch.randn(2, 3, 2, 2, 4, dtype=torch.float64, requires_grad=True)
    beta = torch.rand(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    for nonlinearity in ("gelu", "identity"):
        for residual in ("subtract", "none"):
            for implementation in ("fused", "composed"):
                options = dict(nonlinearity=nonlinearity, residual=residual, implementation=implementation)
                assert torch.autograd.gradcheck(
                    lambda *x: prism.prism_refine(*x, **options, return_delta_and_residual=True), (v, u, p, beta)
                )


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_opcheck_chunk(variant, grad):
    named = tensors(torch.float32, **variant)
    if not grad:
        named = {name: x.detach() for name, x in named.items()}
    positional = tuple(named.pop(name) for name in ("q", "k", "w", "b", "g"))
    for options in (dict(return_final_state=True), dict(implementation="composed")):
        opcheck(OPS.prism_chunk.default, positional, named | options)


def test_opcheck_step_and_refine():
    named = {name: x.detach() for name, x in tensors(torch.float32, T=1).items()}
    token = tuple(named[name].squeeze(1) for name in ("q", "k", "w", "b", "g"))
    opcheck(OPS.prism_step.default, (*token, named["initial_state"]))
    v, u = torch.randn(2, 3, 2, 4, requires_grad=True), torch.randn(2, 3, 2, 4)
    p, beta = torch.randn(2, 3, 2, 2, 4, requires_grad=True), torch.rand(2, 3, 2, 2, requires_grad=True)
    opcheck(OPS.prism_refine.default, (v, u, p, beta), dict(return_delta_and_residual=True))
    opcheck(OPS.prism_refine.default, (v, None, None, beta))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_compiled_is_eager(variant, dynamic):
    torch._dynamo.reset()

    def layer(q, k, w, b, g, **rest):
        o, state = prism.prism_chunk(q * 1.0, k, w + 0.0, b, g, **rest)
        return torch.tanh(o), state * 2

    named = tensors(torch.float32, **variant)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for x, reference in zip(gradients(compiled, named), gradients(layer, named), strict=True):
        assert relative_error(x, reference) < 1e-5


def test_compiled_with_inductor():
    torch._dynamo.reset()

    def layer(v, u, p, beta, q, k, b, g):
        w, _, _ = prism.prism_refine(v.tanh(), u, p, beta)
        return prism.prism_chunk(q, k, w, b, g)[0].sin()

    torch.manual_seed(0)
    named = tensors(torch.float32, H=2, V=5)
    v, u = torch.randn(2, 11, 2, 5, requires_grad=True), torch.randn(2, 11, 2, 5, requires_grad=True)
    p, beta = torch.randn(2, 11, 2, 2, 5, requires_grad=True), torch.rand(2, 11, 2, 2, requires_grad=True)
    inputs = (v, u, p, beta, named["q"], named["k"], named["b"], named["g"])
    results = []
    for function in (layer, torch.compile(layer, fullgraph=True)):
        o = function(*inputs)
        results.append([o, *torch.autograd.grad(o.square().sum(), inputs)])
    for x, reference in zip(*reversed(results), strict=True):
        assert relative_error(x, reference) < 1e-5


def test_compiled_step_updates_the_state():
    torch._dynamo.reset()
    named = {name: x.detach() for name, x in tensors(torch.float32, T=1).items()}
    token = [named[name].squeeze(1) for name in ("q", "k", "w", "b", "g")]

    def decode(*values):
        return prism.prism_step(*values) + 1

    states = [named["initial_state"].clone() for _ in range(2)]
    outputs = [
        function(*token, state)
        for function, state in zip((decode, torch.compile(decode, fullgraph=True, backend="aot_eager")), states)
    ]
    assert torch.equal(*outputs) and torch.equal(*states)
    assert not torch.equal(states[0], named["initial_state"])


def test_step_is_the_chunk_form():
    named = {name: x.detach() for name, x in tensors().items()}
    o, final_state = prism.prism_chunk(**named, return_final_state=True)
    state = named.pop("initial_state").clone()
    steps = [prism.prism_step(*(x[:, t] for x in named.values()), state) for t in range(o.shape[1])]
    assert relative_error(torch.stack(steps, 1), o) < 1e-11
    assert relative_error(state, final_state) < 1e-11


def test_autocast():
    named = tensors(torch.float32)
    narrow = {name: x if name in ("b", "g", "initial_state") else x.bfloat16() for name, x in named.items()}
    expected, expected_state = prism.prism_chunk(**narrow, return_final_state=True)
    with torch.autocast("cpu", torch.bfloat16):
        o, state = prism.prism_chunk(**named, return_final_state=True)
        w, _, _ = prism.prism_refine(named["w"][:, :, 0], None, named["w"], None)
        assert w.dtype == torch.bfloat16
        gates = {"b": named["b"].bfloat16(), "g": named["g"].bfloat16()}
        assert prism.prism_chunk(**(named | gates))[0].dtype == torch.bfloat16
        assert prism.prism_chunk(**tensors())[0].dtype == torch.float64
    assert o.dtype == torch.bfloat16 and state.dtype == torch.float32
    assert torch.equal(o, expected) and torch.equal(state, expected_state)
    for x in torch.autograd.grad(o.float().sum(), list(named.values())):
        assert x.dtype == torch.float32


@pytest.mark.parametrize("implementation", ["fused", "composed"])
def test_backward_where_autocast_is_on(implementation):
    named = tensors(torch.float32)
    gradients = []
    for inside in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            o, _ = prism.prism_chunk(**named, implementation=implementation)
            w, _, _ = prism.prism_refine(named["w"][:, :, 0], None, named["w"], None, implementation=implementation)
            with torch.autocast("cpu", enabled=inside):
                loss = o.float().square().sum() + w.float().square().sum()
                gradients.append(torch.autograd.grad(loss, list(named.values())))
    for outside, inside in zip(*gradients):
        assert torch.equal(outside, inside)


def test_fake_and_meta_tensors():
    named = tensors(torch.bfloat16, lengths=[3, 0, 8])
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {name: mode.from_tensor(x) for name, x in named.items()}
        o, state = prism.prism_chunk(**fake, return_final_state=True)
        o.float().sum().backward()
    assert (o.shape, o.dtype, o.device.type) == ((1, 11, 4, 3), torch.bfloat16, "cpu")
    assert (state.shape, state.dtype) == ((3, 4, 5, 3), torch.float32)
    meta = {name: x.to("meta") for name, x in tensors(torch.float32).items()}
    assert prism.prism_chunk(**meta)[0].shape == (2, 11, 4, 3)


def test_inference_mode_and_absent_state():
    with torch.inference_mode():
        o, state = prism.prism_chunk(**{name: x.detach() for name, x in tensors(torch.float32).items()})
    assert o.shape == (2, 11, 4, 3) and state is None


def test_memory_of_a_training_step():
    """Forward and backward keep the inputs and one state a chunk, nothing else."""
    named = tensors(torch.float32, B=1, T=64, L=1, H=1, Hk=1, K=16, V=16)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        prism.prism_chunk(**named, chunk=16)
    sizes = [x.numel() for x in saved if x is not None and not any(x.data_ptr() == y.data_ptr() for y in named.values())]
    assert sum(sizes) == 4 * 16 * 16


def test_second_derivative_is_an_error():
    named = tensors()
    o, _ = prism.prism_chunk(**named)
    (dq,) = torch.autograd.grad(o.square().sum(), named["q"], create_graph=True)
    with pytest.raises(RuntimeError, match="prism_chunk: differentiable once"):
        torch.autograd.grad(dq.square().sum(), named["w"])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (dict(k=torch.zeros(2, 11, 2, 2, 4, dtype=torch.float64)), "k has 4 channels a head but q has 5"),
        (dict(w=torch.zeros(2, 11, 2, 3, 3, dtype=torch.float64)), "heads of w must be a multiple"),
        (dict(g=torch.zeros(2, 11, 4)), "g is Float, expected Double"),
        (dict(cu_seqlens=torch.tensor([0, 11])), "need one row"),
        (dict(implementation="quick"), 'implementation is "quick"'),
        (dict(b=torch.zeros(2, 11, 4, dtype=torch.float64, device="meta")), "b is on meta, q on cpu"),
    ],
)
def test_errors_name_the_tensor(spoil, message):
    with pytest.raises(RuntimeError, match="prism_chunk: .*" + message):
        prism.prism_chunk(**(tensors() | spoil))


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="skipped: no CUDA device")


@gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_cuda_is_the_token_loop(variant, dtype):
    named = tensors(dtype, **(dict(T=150) | variant))
    on_gpu = {name: x.detach().cuda().requires_grad_(x.requires_grad) for name, x in named.items()}
    reference = {name: x.detach().double().requires_grad_() if x.requires_grad else x for name, x in named.items()}
    limits = {torch.float64: (1e-11, 1e-11), torch.float32: (1e-5, 1e-5)}.get(dtype, (0.005, 0.01))
    found = gradients(prism.prism_chunk, on_gpu)
    for i, (x, expected) in enumerate(zip(found, gradients(token_loop, reference), strict=True)):
        assert relative_error(x.cpu(), expected) < limits[i >= 2]
    for x, again in zip(found, gradients(prism.prism_chunk, on_gpu), strict=True):
        assert torch.equal(x, again)


def cuda_tensors(**variant):
    """Sizes that the CUDA kernels take."""
    named = tensors(torch.bfloat16, **(dict(T=150, K=64, V=64) | variant))
    return {name: x.detach().cuda().requires_grad_(x.requires_grad) for name, x in named.items()}


@gpu
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("variant", [dict(), dict(lengths=[0, 1, 99, 0, 50])], ids=str)
def test_cuda_compiled_is_eager(variant, backend):
    torch._dynamo.reset()

    def layer(q, k, w, b, g, **rest):
        o, state = prism.prism_chunk(q * 1.0, k, w + 0.0, b, g, **rest)
        return torch.tanh(o), state * 2

    named = cuda_tensors(**variant)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for x, reference in zip(gradients(compiled, named), gradients(layer, named), strict=True):
        assert relative_error(x, reference) < 0.01


@gpu
@pytest.mark.parametrize("state_type", [torch.float32, torch.bfloat16])
def test_cuda_step_in_a_graph(state_type):
    named = {name: x.detach() for name, x in cuda_tensors(T=1).items()}
    token = [named[name].squeeze(1) for name in ("q", "k", "w", "b", "g")]
    eager, captured = (named["initial_state"].to(state_type, copy=True) for _ in range(2))
    expected = prism.prism_step(*token, eager)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        o = prism.prism_step(*token, captured)
    captured.copy_(named["initial_state"])
    graph.replay()
    assert torch.equal(o, expected) and torch.equal(captured, eager)


@gpu
def test_cuda_autocast():
    named = cuda_tensors()
    wide = {name: x.detach().float().requires_grad_() for name, x in named.items()}
    expected, expected_state = prism.prism_chunk(**named, return_final_state=True)
    with torch.autocast("cuda", torch.bfloat16):
        o, state = prism.prism_chunk(**wide, return_final_state=True)
    assert torch.equal(o, expected) and torch.equal(state, expected_state)
    for x in torch.autograd.grad(o.float().sum(), list(wide.values())):
        assert x.dtype == torch.float32 and x.isfinite().all()
