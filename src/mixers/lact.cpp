// LaCT, arXiv 2505.23884; layer as in a1600012888/LaCT lact_llm, without its window attention.
#include "prism/mixers/lact.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "mixers/delta_common.h"
#include "mixers/parameters.h"
#include "prism/core/log.h"

namespace prism {
namespace {

using at::Tensor;

constexpr double kFirstRate = 1e-3, kUnitEps = 1e-5;

LactConfig resolved(LactConfig c, int64_t width) {
  const auto heads = delta::resolved_heads({c.heads, c.heads, c.key_width, c.value_width}, width, "lact");
  c.key_width = heads.key_width, c.value_width = heads.value_width;
  return c;
}

Tensor fast_weight(int64_t heads, int64_t outputs, int64_t inputs) {
  return initial::normal({heads, outputs, inputs}, 1 / std::sqrt(double(inputs)));
}

Tensor unit(const Tensor& x) { return x / (at::linalg_vector_norm(x, 2, -1, /*keepdim=*/true) + kUnitEps); }

std::string numbered(const char* name, size_t j) { return name + std::to_string(j); }

void put(MixerState& state, const LactState& from) {
  for (size_t j = 0; j < 3; ++j) {
    state.tensors[numbered("w", j)] = from.weights[j];
    if (from.sums[j].defined()) state.tensors[numbered("sum", j)] = from.sums[j];
    if (from.momentum[j].defined()) state.tensors[numbered("momentum", j)] = from.momentum[j];
  }
}

using NamedTensors = std::map<std::string, Tensor>;

/// The tokens of a chunk by their names in the state.
NamedTensors named(const LactTokens& tokens) {
  NamedTensors all{{"open_k", tokens.k}, {"open_v", tokens.v}, {"open_lr", tokens.lr}};
  if (tokens.momentum) all["open_momentum"] = *tokens.momentum;
  return all;
}

std::optional<LactTokens> open_chunk(const MixerState& state) {
  if (!state.tensors.contains("open_k")) return std::nullopt;
  LactTokens tokens{state.tensors.at("open_k"), state.tensors.at("open_v"), state.tensors.at("open_lr")};
  const auto momentum = state.tensors.find("open_momentum");
  if (momentum != state.tensors.end()) tokens.momentum = momentum->second;
  return tokens;
}

Tensor index(const std::vector<int64_t>& values, const Tensor& like) {
  return at::tensor(values, at::kLong).to(like.device());
}

/// Each sequence's held tokens [N,capacity,...] followed by its new ones [B,T,...], as one packed row.
class JoinedTokens {
 public:
  JoinedTokens(const Tensor& x, const Packing& packing, const std::vector<int64_t>& held, int64_t capacity,
               int64_t chunk)
      : lengths_(held) {
    const auto N = int64_t(held.size());
    std::vector<int64_t> from, fresh, ends, open;
    for (int64_t n = 0; n < N; ++n) {
      const int64_t begin = packing.is_packed() ? packing.offsets()[n] : n * x.size(1);
      const int64_t count = packing.is_packed() ? packing.offsets()[n + 1] - begin : x.size(1);
      for (int64_t i = 0; i < held[n]; ++i) from.push_back(n * capacity + i);
      for (int64_t i = 0; i < count; ++i) {
        fresh.push_back(int64_t(from.size()));
        from.push_back(N * capacity + begin + i);
      }
      lengths_[n] += count;
      ends.push_back(int64_t(from.size()));
      open.push_back(lengths_[n] == 0 ? 0 : (lengths_[n] - 1) % chunk + 1);
    }
    longest_open_ = N ? *std::max_element(open.begin(), open.end()) : 0;
    std::vector<int64_t> last(N * longest_open_, 0);  // places beyond a chunk's tokens hold any token
    for (int64_t n = 0; n < N; ++n)
      for (int64_t i = 0; i < open[n]; ++i) last[n * longest_open_ + i] = ends[n] - open[n] + i;
    from_ = index(from, x), fresh_ = index(fresh, x), last_ = index(last, x);
  }

  const std::vector<int64_t>& lengths() const { return lengths_; }
  /// held may be undefined where there is none. [1,all,...]
  Tensor join(const Tensor& held, const Tensor& fresh) const {
    const Tensor flat = fresh.flatten(0, 1);
    const Tensor all = held.defined() ? at::cat({held.flatten(0, 1).to(flat.scalar_type()), flat}) : flat;
    return all.index_select(0, from_).unsqueeze(0);
  }
  /// The tokens of each sequence's last chunk, [N,longest,...].
  Tensor open_chunks(const Tensor& joined) const {
    return joined.squeeze(0).index_select(0, last_).unflatten(0, {int64_t(lengths_.size()), longest_open_});
  }
  /// The new tokens of a joined tensor, [all new,...].
  Tensor fresh(const Tensor& joined) const { return joined.squeeze(0).index_select(0, fresh_); }

 private:
  std::vector<int64_t> lengths_;
  int64_t longest_open_ = 0;
  Tensor from_, fresh_, last_;
};

}  // namespace

Lact::Lact(const Config& config, int64_t width) : config_(resolved(config, width)) {
  const auto& c = config_;
  const int64_t H = c.heads, K = c.key_width, V = c.value_width, hidden = c.expansion * K;
  const int64_t qkv = H * (2 * K + V), rates = c.momentum ? 4 : 3;
  in_weight_ = register_parameter("in_weight", initial::linear(qkv + rates * H, width));
  register_convolution(qkv, c.conv_width);
  const double bias = std::log(std::expm1(kFirstRate));  // softplus gives the rate
  std::vector<Tensor> biases(3, initial::ones({H}) * bias);
  if (c.momentum) biases.push_back(initial::zeros({H}));
  rate_bias_ = register_parameter("rate_bias", at::stack(biases, 1));
  w_[0] = register_parameter("w0", fast_weight(H, hidden, K));
  w_[1] = register_parameter("w1", fast_weight(H, V, hidden));
  w_[2] = register_parameter("w2", fast_weight(H, hidden, K));
  norm_weight_ = register_parameter("norm_weight", initial::ones({V}));
  out_weight_ = register_parameter("out_weight", initial::linear(width, H * V));
}

Lact::Token Lact::token(const Tensor& x, const Packing& packing, MixerState* state) const {
  const auto& c = config_;
  const int64_t key = c.heads * c.key_width, values = c.heads * c.value_width, rates = rate_bias_.size(1);
  const auto parts = at::linear(x, in_weight_).split_with_sizes({2 * key + values, rates * c.heads}, -1);
  const auto qkv = convolve(parts[0], packing, state).split_with_sizes({key, key, values}, -1);
  const Tensor raw = delta::gate_typed(parts[1]).unflatten(-1, rate_bias_.sizes()) + rate_bias_;
  Token token{.q = unit(qkv[0].unflatten(-1, {c.heads, c.key_width})),
              .learns = {.k = unit(qkv[1].unflatten(-1, {c.heads, c.key_width})),
                         .v = qkv[2].unflatten(-1, {c.heads, c.value_width}),
                         .lr = at::softplus(raw.narrow(-1, 0, 3))}};
  if (c.momentum) token.learns.momentum = at::sigmoid(raw.select(-1, 3));
  return token;
}

LactState Lact::weights(const MixerState* state, int64_t sequences) const {
  LactState found;
  const auto stored = [&](const char* name, size_t j) {
    if (!state) return Tensor();
    const auto at = state->tensors.find(numbered(name, j));
    return at == state->tensors.end() ? Tensor() : at->second;
  };
  for (size_t j = 0; j < 3; ++j) {
    found.weights[j] = stored("w", j);
    found.sums[j] = stored("sum", j);
    found.momentum[j] = stored("momentum", j);
    if (!found.weights[j].defined()) found.weights[j] = w_[j].unsqueeze(0).expand({sequences, -1, -1, -1});
  }
  return found;
}

namespace {

/// Or who compares mixers on short sequences would not notice that this one is a map of single tokens.
void warn_once_that_tokens_are_apart(int64_t tokens, int64_t chunk) {
  static std::once_flag said;
  std::call_once(said, [&] {
    warn(
        "lact: no token of a sequence of {} sees another: chunk is {} and there is no convolution "
        "(conv_width)",
        tokens, chunk);
  });
}

}  // namespace

Tensor Lact::mix(const Tensor& x_BTD, const Packing& packing, MixerState* state) {
  if (is_training() && !packing.is_packed() && x_BTD.size(1) > 1 && x_BTD.size(1) <= config_.chunk &&
      config_.conv_width < 2)
    warn_once_that_tokens_are_apart(x_BTD.size(1), config_.chunk);
  const Token t = token(x_BTD, packing, state);
  if (state) return mix_on(t, x_BTD, packing, *state);
  std::optional<Tensor> cu_seqlens;
  if (packing.is_packed()) cu_seqlens = packing.cu_seqlens();
  const LactResult result =
      lact(t.q, t.learns, weights(nullptr, packing.sequences(x_BTD)), w_, rule(), cu_seqlens);
  return delta::gated_output(result.o, x_BTD, {}, norm_weight_, out_weight_);
}

/// The open chunk's tokens are put before the new ones, so that every sequence begins with a chunk.
Tensor Lact::mix_on(const Token& t, const Tensor& x, const Packing& packing, MixerState& state) const {
  const int64_t N = packing.sequences(x);
  std::vector<int64_t> held(N);
  for (int64_t n = 0; n < N; ++n) held[n] = open_tokens(state.lengths[n]);
  const auto before = open_chunk(state);
  const JoinedTokens joined(x, packing, held, before ? before->k.size(1) : 0, config_.chunk);
  const auto held_tokens = before ? named(*before) : NamedTensors{};
  LactTokens all;
  for (const auto& [name, fresh] : named(t.learns)) {
    const auto of_before = held_tokens.find(name);
    const Tensor tokens = joined.join(of_before == held_tokens.end() ? Tensor() : of_before->second, fresh);
    if (name == "open_k") all.k = tokens;
    if (name == "open_v") all.v = tokens;
    if (name == "open_lr") all.lr = tokens;
    if (name == "open_momentum") all.momentum = tokens;
    state.tensors[name] = joined.open_chunks(tokens);
  }
  const Tensor no_reads =
      before ? at::zeros({N, before->k.size(1), t.q.size(2), t.q.size(3)}, t.q.options()) : Tensor();
  const LactResult result = lact(joined.join(no_reads, t.q), all, weights(&state, N), w_, rule(),
                                 Packing::packed(joined.lengths()).cu_seqlens());
  put(state, result.state);
  const Tensor o = joined.fresh(result.o).view({x.size(0), x.size(1), config_.heads, config_.value_width});
  return delta::gated_output(o, x, {}, norm_weight_, out_weight_);
}

/// What the next token does to sequences whose open chunk is full.
void Lact::update_full_chunks(MixerState& state) const {
  const int64_t N = int64_t(state.lengths.size()), C = config_.chunk;
  std::vector<int64_t> full;
  for (int64_t n = 0; n < N; ++n)
    if (open_tokens(state.lengths[n]) == C) full.push_back(n);
  if (full.empty()) return;
  const Tensor rows = index(full, w_[0]);
  const auto chosen = [&](const Tensor& x) { return x.defined() ? x.index_select(0, rows) : x; };
  LactState now = weights(&state, N);
  const LactState all = now;
  LactTokens tokens = *open_chunk(state);
  for (Tensor* x : {&tokens.k, &tokens.v, &tokens.lr}) *x = chosen(*x);
  if (tokens.momentum) tokens.momentum = chosen(*tokens.momentum);
  for (LactWeights* part : {&now.weights, &now.sums, &now.momentum})
    for (Tensor& x : *part) x = chosen(x);
  LactState next = lact_update(now, tokens, w_, rule());
  for (size_t j = 0; j < 3; ++j) {
    next.weights[j] = all.weights[j].index_copy(0, rows, next.weights[j]);
    if (next.sums[j].defined()) next.sums[j] = all.sums[j].index_copy(0, rows, next.sums[j]);
    if (next.momentum[j].defined()) next.momentum[j] = all.momentum[j].index_copy(0, rows, next.momentum[j]);
  }
  put(state, next);
}

Tensor Lact::step(const Tensor& x_BD, MixerState& state) {
  const at::NoGradGuard no_gradient;
  if (state.empty()) return prefill(x_BD.unsqueeze(1), Packing::rows(), state).squeeze(1);
  const int64_t N = x_BD.size(0), C = config_.chunk;
  update_full_chunks(state);
  const Tensor x = x_BD.unsqueeze(1);
  const Token t = token(x, Packing::rows(), &state);
  const Tensor o = lact_read(weights(&state, N).weights, t.q.squeeze(1)).to(x.scalar_type());

  std::vector<int64_t> places(N);
  int64_t most = 0;
  for (int64_t n = 0; n < N; ++n) {
    places[n] = state.lengths[n] % C;
    most = std::max(most, places[n] + 1);
    ++state.lengths[n];
  }
  for (const auto& [name, token_of_row] : named(t.learns)) {
    Tensor& open = state.tensors.at(name);
    std::vector<int64_t> shape = open.sizes().vec();
    shape[1] = most;
    Tensor grown = at::zeros(shape, open.options());
    const int64_t old = std::min(most, open.size(1));
    grown.narrow(1, 0, old).copy_(open.narrow(1, 0, old));
    for (int64_t n = 0; n < N; ++n) grown[n][places[n]].copy_(token_of_row[n][0]);
    open = grown;
  }
  return delta::gated_output(o, x_BD, {}, norm_weight_, out_weight_);
}

int64_t Lact::state_size(int64_t tokens) const {
  const auto& c = config_;
  const int64_t weights = w_[0].numel() + w_[1].numel() + w_[2].numel();
  const int64_t token = c.heads * (c.key_width + c.value_width + 3 + c.momentum);
  return (1 + c.prenorm + c.momentum) * weights + open_tokens(tokens) * token + convolution_state_size();
}

}  // namespace prism
