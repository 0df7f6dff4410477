#pragma once
// What the chunked recurrences check and choose the same way.
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "arguments.h"

namespace prism {

/// Sequences of a call with activations q [B,T,...]: B, or those of cu_seqlens [sequences + 1].
c10::SymInt check_packing(const ArgumentCheck& check, const at::Tensor& q,
                          const std::optional<at::Tensor>& cu_seqlens);

/// A state [sequences,heads,K,V] of `sizes` in the gate type beside activations of `type`. `key_owner`: "q
/// has", of K.
void check_state(ArgumentCheck& check, const char* name, const at::Tensor& state, at::ScalarType type,
                 const std::array<c10::SymInt, 4>& sizes, const char* key_owner);

/// The sequences' starts on the host, [sequences + 1]: from cu_seqlens (checked: from 0, never falling, up to
/// `tokens`) or, without it, `batch` rows of `tokens`. Errors open with `op`.
std::vector<int64_t> sequence_starts(const char* op, const std::optional<at::Tensor>& cu_seqlens,
                                     int64_t batch, int64_t tokens);

/// "fused", "composed" or "reference" for what a caller of `op` asked; auto takes fused where `has_kernel`,
/// else composed, and says so once an operation. `what` describes the call: "Float on cuda".
std::string_view chosen_implementation(const char* op, std::string_view asked, bool has_kernel,
                                       const at::Tensor& q, std::string_view what);

/// cu_seqlens in host memory, so that forward and backward wait for it once; traced tensors stay where they
/// are.
std::optional<at::Tensor> offsets_on_host(const std::optional<at::Tensor>& cu_seqlens);

/// Tokens of the longest sequence of q [B,T,...]; nothing while tracing.
std::optional<int64_t> longest_sequence(const at::Tensor& q, const std::optional<at::Tensor>& host_offsets);

inline std::optional<at::Tensor> or_nothing(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? tensor : std::nullopt;
}

}  // namespace prism
