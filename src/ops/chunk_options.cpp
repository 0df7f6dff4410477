#include "chunk_options.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "prism/core/error.h"
#include "prism/core/log.h"

namespace prism {
namespace {

void say_once_that_composed_runs(const char* op, std::string_view what) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(op).second)
    info("{}: no fused kernel for {}; composing it from LibTorch's operations", op, what);
}

bool is_traced(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_python_dispatch() || tensor.is_meta();
}

}  // namespace

c10::SymInt check_packing(const ArgumentCheck& check, const at::Tensor& q,
                          const std::optional<at::Tensor>& cu_seqlens) {
  const at::Tensor* offsets = present(cu_seqlens);
  if (!offsets) return q.sym_size(0);
  if (offsets->dim() != 1 || offsets->sym_size(0) < 1)
    check.fail_with("cu_seqlens is {}, expected [sequences + 1]", shape_text(*offsets));
  if (offsets->scalar_type() != at::kLong && offsets->scalar_type() != at::kInt)
    check.fail_with("cu_seqlens is {}, expected Long", c10::toString(offsets->scalar_type()));
  if (q.sym_size(0) != 1) check.fail_with("packed sequences (cu_seqlens) need one row");
  return offsets->sym_size(0) - 1;
}

void check_state(ArgumentCheck& check, const char* name, const at::Tensor& state, at::ScalarType type,
                 const std::array<c10::SymInt, 4>& sizes, const char* key_owner) {
  check.tensor(name, state, 4, "[sequences,heads,K,V]");
  check.dtype(name, state, gate_type(type), fmt::format("beside q of {}", c10::toString(type)));
  check.size(name, state, 0, "sequences", sizes[0], "the call has");
  check.size(name, state, 1, "heads", sizes[1], "w has");
  check.size(name, state, 2, "key channels a head", sizes[2], key_owner);
  check.size(name, state, 3, "value channels a head", sizes[3], "w has");
}

std::vector<int64_t> sequence_starts(const char* op, const std::optional<at::Tensor>& cu_seqlens,
                                     int64_t batch, int64_t tokens) {
  std::vector<int64_t> offsets;
  const at::Tensor* given = present(cu_seqlens);
  if (!given) {
    offsets.resize(batch + 1);
    for (int64_t n = 0; n <= batch; ++n) offsets[n] = n * tokens;
    return offsets;
  }
  const at::Tensor host = given->to(at::kCPU, at::kLong).contiguous();
  const int64_t* data = host.const_data_ptr<int64_t>();
  offsets.assign(data, data + host.numel());
  check(offsets.front() == 0, "{}: cu_seqlens starts at {}, expected 0", op, offsets.front());
  for (size_t n = 1; n < offsets.size(); ++n)
    check(offsets[n] >= offsets[n - 1], "{}: cu_seqlens falls from {} to {} at sequence {}", op,
          offsets[n - 1], offsets[n], n - 1);
  check(offsets.back() == tokens, "{}: cu_seqlens ends at {}, but there are {} tokens", op, offsets.back(),
        tokens);
  return offsets;
}

std::string_view chosen_implementation(const char* op, std::string_view asked, bool has_kernel,
                                       const at::Tensor& q, std::string_view what) {
  if (asked == "composed" || asked == "reference") return asked;
  if (asked != "auto" && asked != "fused")
    fail("{}: implementation is \"{}\", expected auto, fused, composed or reference", op, asked);
  if (has_kernel) return "fused";
  if (asked == "fused") fail("{}: no fused kernel for {}", op, what);
  if (!q.device().is_meta()) say_once_that_composed_runs(op, what);
  return "composed";
}

std::optional<at::Tensor> offsets_on_host(const std::optional<at::Tensor>& cu_seqlens) {
  const at::Tensor* offsets = present(cu_seqlens);
  if (!offsets) return std::nullopt;
  return is_traced(*offsets) ? offsets->to(at::kLong) : offsets->to(at::kCPU, at::kLong);
}

std::optional<int64_t> longest_sequence(const at::Tensor& q, const std::optional<at::Tensor>& host_offsets) {
  const at::Tensor* offsets = present(host_offsets);
  if (!offsets) return q.sym_size(1).maybe_as_int();
  if (is_traced(*offsets) || !offsets->device().is_cpu()) return std::nullopt;
  int64_t longest = 0;
  const auto starts = offsets->accessor<int64_t, 1>();
  for (int64_t n = 1; n < starts.size(0); ++n) longest = std::max(longest, starts[n] - starts[n - 1]);
  return longest;
}

}  // namespace prism
