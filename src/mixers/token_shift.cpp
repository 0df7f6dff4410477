#include "mixers/token_shift.h"

#include <ATen/Functions.h>

#include <vector>

namespace prism {
namespace {

at::Tensor indices(const std::vector<int64_t>& values, const at::Tensor& like) {
  return at::tensor(values, at::kLong).to(like.device());
}

}  // namespace

at::Tensor token_before(const at::Tensor& x, const TokenStream& stream) {
  if (stream.is_single()) {
    at::Tensor before = *stream.state("shift");
    stream.set_state("shift", x.detach().clone());
    return before;
  }
  const at::Tensor flat = x.flatten(0, 1);  // [tokens,D]
  if (flat.size(0) == 0) return x;
  const std::vector<int64_t> offsets = stream.offsets(x);
  std::vector<int64_t> first, last, sequence;  // of the sequences that have tokens
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    if (offsets[n] == offsets[n + 1]) continue;
    first.push_back(offsets[n]), last.push_back(offsets[n + 1] - 1), sequence.push_back(int64_t(n));
  }
  const at::Tensor rows = indices(sequence, x);
  const auto state = stream.state("shift");
  const at::Tensor starts = state ? state->index_select(0, rows).to(x.scalar_type())
                                  : at::zeros({int64_t(first.size()), x.size(2)}, x.options());
  const at::Tensor before = at::cat({flat.narrow(0, 0, 1), flat.narrow(0, 0, flat.size(0) - 1)})
                                .index_copy(0, indices(first, x), starts);
  if (state)
    stream.set_state(
        "shift", state->index_copy(0, rows, flat.index_select(0, indices(last, x)).to(state->scalar_type())));
  return before.view_as(x);
}

}  // namespace prism
