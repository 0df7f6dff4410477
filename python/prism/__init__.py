"""PRISM's operators for PyTorch.

    import torch, prism
    o, state = prism.prism_chunk(q, k, w, b, g, return_final_state=True)

Importing loads libprism.so: $PRISM_LIBRARY, else the newest build of this repository, else the installed library.
The operators are also reachable as torch.ops.prism.*. They are differentiable once, work under torch.compile and
autocast, and raise RuntimeError naming the tensor that does not fit.
"""

import os
from pathlib import Path

import torch

__all__ = ["GatedDeltaNet", "library", "prism_chunk", "prism_refine", "prism_step"]


def _find_library() -> Path:
    if given := os.environ.get("PRISM_LIBRARY"):
        return Path(given)
    here = Path(__file__).resolve()
    builds = here.parents[2].glob("build/*/libprism.so")  # this file lies in python/prism of the repository
    installed = here.parents[4].glob("lib*/**/libprism.so")  # or in share/prism/python/prism of an installation
    newest = sorted([*builds, *installed], key=lambda path: path.stat().st_mtime)
    return newest[-1] if newest else Path("libprism.so")


library = _find_library()
torch.ops.load_library(str(library))
if torch.cuda.is_available() and (library.parent / "libprism_cuda.so").exists():
    torch.ops.load_library(str(library.parent / "libprism_cuda.so"))


def prism_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    g: torch.Tensor,
    *,
    erase_read: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    scale: float | None = None,
    return_final_state: bool = False,
    chunk: int = 0,
    implementation: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """S_t = exp(g_t) (I - b_t k_1 k_1^T) S_{t-1} + sum_l k_l w_l^T;  o_t = scale S_t^T q_t.

    q [B,T,Hk,K], k [B,T,L,Hk,K] (k[:,:,0] is also the erase key), w [B,T,L,Hv,V] in one of float64, float32,
    bfloat16, float16; b and g [B,T,Hv] in float32 (float64 with float64), g <= 0 and b |k_1|^2 <= 2. Hv is a
    multiple of Hk. The tensors may have any strides.

    erase_read [B,T,Hk,K]: the erase is I - b k_1 erase_read^T instead.
    initial_state [N,Hv,K,V] float32 (float64 with float64); N is B, or the number of packed sequences.
    cu_seqlens int64 [N+1] with B = 1: sequences packed one after the other, empty ones included. On any device;
        under torch.compile on the device of q.
    scale: default K ** -0.5.
    chunk, implementation ("auto", "fused", "composed", "reference"): for tests and benchmarks.

    Returns o [B,T,Hv,V] in q's dtype and the final state [N,Hv,K,V], or None without return_final_state.
    """
    o, final_state = torch.ops.prism.prism_chunk(
        q,
        k,
        w,
        b,
        g,
        erase_read=erase_read,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
        scale=scale,
        return_final_state=return_final_state,
        chunk=chunk,
        implementation=implementation,
    )
    return o, final_state if return_final_state else None


def prism_step(
    q: torch.Tensor,
    k: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
    *,
    erase_read: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """One token of each sequence with prism_chunk's numbers: the T dimension is left out everywhere.

    state [B,Hv,K,V] is updated in place. Returns o [B,Hv,V]. Not differentiable: call it under torch.no_grad().
    """
    return torch.ops.prism.prism_step(q, k, w, b, g, state, erase_read=erase_read, scale=scale)


def prism_refine(
    v: torch.Tensor,
    u: torch.Tensor | None = None,
    p: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    *,
    nonlinearity: str = "gelu",
    residual: str = "subtract",
    return_delta_and_residual: bool = False,
    implementation: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """r_1 = v - u;  d_l = phi(p_l r_l);  r_{l+1} = r_l - d_l;  w_l = beta_l d_l, in one fused pass.

    v, u [...,H,V] (u None: 0), p [...,L,H,V] (None: 1) in one dtype; beta [...,L,H] (None: 1) in float32 (float64
    with float64); p or beta is needed. nonlinearity: "gelu" (exact) or "identity"; residual: "subtract" or "none"
    (every step sees r_1).

    Returns w, d [...,L,H,V] and the last residual [...,H,V]; the last two are None unless asked for.
    """
    w, delta, last = torch.ops.prism.prism_refine(
        v,
        u,
        p,
        beta,
        nonlinearity=nonlinearity,
        residual=residual,
        return_delta_and_residual=return_delta_and_residual,
        implementation=implementation,
    )
    return (w, delta, last) if return_delta_and_residual else (w, None, None)


class GatedDeltaNet:
    """A Gated DeltaNet layer with the weights of a public model, run by prism_chunk and prism_step.

        layer = prism.GatedDeltaNet.load("Qwen3-Next-80B-A3B-Instruct", layer=0)
        y = layer(x)                            # x [B,T,D] -> y [B,T,D], differentiable
        y = layer.prefill(prompt)               # the same, and the state after the last token is kept
        y = layer.step(token)                   # [B,D] -> [B,D], the next token of each sequence

    The folder holds config.json (model_type qwen3_next, or flash-linear-attention's gated_deltanet) and
    model.safetensors, or several files with model.safetensors.index.json. RuntimeError names a tensor that is
    missing, has another shape or does not belong to the layer.
    """

    def __init__(self, layer):
        self._layer = layer

    @classmethod
    def load(cls, folder: str | os.PathLike, layer: int = 0, prefix: str = "") -> "GatedDeltaNet":
        """fp32 on the CPU. prefix: what the layer's names begin with, where it is not "model.layers.N.linear_attn."
        (qwen3_next) or "model.layers.N.attn." (gated_deltanet)."""
        return cls(torch.classes.prism.Layer(os.fspath(folder), layer, prefix))

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """By the names of PRISM's gated_delta_net; leaves that an optimiser may change."""
        return dict(self._layer.weights())

    def to(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> "GatedDeltaNet":
        """Moves the weights and resets the state."""
        self._layer.move(device, dtype)
        return self

    def __call__(self, x: torch.Tensor, cu_seqlens: torch.Tensor | None = None) -> torch.Tensor:
        """cu_seqlens as in prism_chunk: sequences packed one after the other, B = 1. Leaves the state alone."""
        return self._layer.forward(x, cu_seqlens)

    def prefill(self, x: torch.Tensor, cu_seqlens: torch.Tensor | None = None) -> torch.Tensor:
        """Continues the state that the layer keeps. Not differentiable."""
        return self._layer.prefill(x, cu_seqlens)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return self._layer.step(x)

    def reset(self) -> None:
        """The next prefill or step starts its sequences anew."""
        self._layer.reset()
