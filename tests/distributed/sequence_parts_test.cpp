// Sequences cut over ranks against the token loop over the whole, for all rows of the operation's list of
// cases.
#include "prism/distributed/sequence_parts.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "ops/chunk_cases.h"
#include "prism/core/config.h"
#include "prism/mixers/mixer.h"
#include "prism/ops/short_conv.h"
#include "support/error_of.h"
#include "support/join_ranks.h"
#include "support/rank_processes.h"

namespace prism {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

/// Parts of different lengths, the first ones empty for short sequences.
std::vector<int64_t> borders(int64_t tokens, int64_t ranks) {
  std::vector<int64_t> all;
  for (int64_t r = 0; r <= ranks; ++r) all.push_back(tokens * r * r / (ranks * ranks));
  return all;
}

class Parts {
 public:
  Parts(Ranks& ranks, int64_t tokens) : ranks_(ranks), borders_(borders(tokens, ranks.size())) {}

  int64_t begin() const { return borders_[static_cast<size_t>(ranks_.rank())]; }
  int64_t end() const { return borders_[static_cast<size_t>(ranks_.rank()) + 1]; }
  Tensor own(const Tensor& x) const { return x.defined() ? x.slice(1, begin(), end()).detach().clone() : x; }
  /// The tensor of which each rank holds its part along dimension 1.
  Tensor whole(const Tensor& part) const {
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[1] = borders_.back();
    const Tensor padded = at::zeros(sizes, part.options());
    padded.narrow(1, 0, part.size(1)).copy_(part);
    const Tensor all = ranks_.gather(padded);
    std::vector<Tensor> parts;
    for (int64_t r = 0; r < ranks_.size(); ++r)
      parts.push_back(
          all[r].narrow(1, 0, borders_[static_cast<size_t>(r) + 1] - borders_[static_cast<size_t>(r)]));
    return at::cat(parts, 1);
  }

 private:
  Ranks& ranks_;
  std::vector<int64_t> borders_;
};

/// Sequences of `lengths`, cut to tokens [begin, end): the first one goes on from the part before.
Packing packing_between(const std::vector<int64_t>& lengths, int64_t begin, int64_t end) {
  if (lengths.empty()) return Packing::rows();
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::vector<int64_t> own{0};
  int64_t start = 0;
  for (const int64_t length : lengths) {
    const bool inside = start >= begin && (start < end || end == total);  // empty ones may stand at the end
    if (start > 0 && inside) own.push_back(0);
    own.back() += std::max<int64_t>(0, std::min(start + length, end) - std::max(start, begin));
    start += length;
  }
  return Packing::packed(own);
}

test::ChunkTensors part_of(const test::ChunkTensors& all, const Parts& parts, const Ranks& ranks) {
  const bool last = ranks.rank() == ranks.size() - 1;
  return {
      .q = parts.own(all.q),
      .k = parts.own(all.k),
      .w = parts.own(all.w),
      .b = parts.own(all.b),
      .g = parts.own(all.g),
      .erase_read = parts.own(all.erase_read),
      .initial_state = ranks.leads() && all.initial_state.defined() ? all.initial_state.clone() : Tensor(),
      .cu_seqlens = {},
      .up_o = parts.own(all.up_o),
      .up_final_state = last ? all.up_final_state : at::zeros_like(all.up_final_state)};
}

test::Named in_parts(const test::ChunkTensors& all, const std::vector<int64_t>& lengths, Ranks& ranks) {
  const Parts parts(ranks, all.q.size(1));
  test::Named found = outputs_and_gradients(part_of(all, parts, ranks), [&](const PrismChunkArgs& args) {
    return prism_chunk_in_parts(args, packing_between(lengths, parts.begin(), parts.end()), ranks);
  });
  if (all.initial_state.defined() && !ranks.leads())
    found.emplace_back("d_initial_state", at::zeros_like(all.initial_state));
  for (auto& [name, tensor] : found) {
    if (name == "final_state")
      tensor = ranks.gather(tensor)[ranks.size() - 1];
    else if (name == "d_initial_state")
      tensor = ranks.gather(tensor)[0];
    else
      tensor = parts.whole(tensor);
  }
  return found;
}

/// Of packed sequences the parts give the state after the last one alone, and take no initial state.
void keep_last_state(test::ChunkTensors& tensors) {
  tensors.initial_state = Tensor();
  tensors.up_final_state.narrow(0, 0, tensors.up_final_state.size(0) - 1).zero_();
}

TEST(SequenceParts, DISABLED_Chunks) {
  const auto ranks = join_ranks();
  for (const test::ChunkCase& c : test::chunk_cases()) {
    test::ChunkTensors tensors = make_tensors(c);
    if (c.packed()) keep_last_state(tensors);
    test::Named reference = outputs_and_gradients(tensors, test::token_loop);
    if (c.packed()) {
      const int64_t last = tensors.up_final_state.size(0) - 1;
      tensors.up_final_state = tensors.up_final_state.narrow(0, last, 1);
      for (auto& [name, tensor] : reference)
        if (name == "final_state") tensor = tensor.narrow(0, last, 1);
    }
    for (const at::ScalarType type : {at::kDouble, at::kFloat})
      test::expect_close(in_parts(tensors.to(type), c.lengths, *ranks), reference, type, c.name);
  }
}
TEST(SequenceParts, ChunksAreTheWholeSequence) { expect_ranks_pass(3, "SequenceParts.DISABLED_Chunks"); }

void expect_same_convolution(Ranks& ranks, const std::vector<int64_t>& lengths) {
  const int64_t batch = lengths.empty() ? 2 : 1;
  for (const auto type : {at::kDouble, at::kFloat})
    for (const int64_t width : {1, 4}) {
      at::manual_seed(7);
      const Tensor x = at::randn({batch, 31, 5}, type), weight = at::randn({5, width}, type),
                   bias = at::randn({5}, type);
      const Tensor up = at::randn({batch, 31, 5}, type);
      const Parts parts(ranks, 31);
      const auto gradients = [](const Tensor& y, const std::vector<Tensor>& leaves, const Tensor& d_y) {
        return torch::autograd::grad({y}, leaves, {d_y});
      };
      const auto leaf = [](const Tensor& value) { return value.detach().clone().requires_grad_(); };
      const Tensor x_all = leaf(x), x_own = leaf(parts.own(x)), w = leaf(weight), b = leaf(bias);
      const Packing all = lengths.empty() ? Packing::rows() : Packing::packed(lengths);
      const Tensor y_all = short_conv(x_all, w, b, all);
      const auto d_all = gradients(y_all, {x_all, w, b}, up);
      const Packing own = packing_between(lengths, parts.begin(), parts.end());
      const Tensor y = short_conv_in_parts(x_own, w, b, own, ranks);
      auto d = gradients(y, {x_own, w, b}, parts.own(up));
      for (const size_t i : {1, 2}) ranks.sum(d[i]);
      const double bound = type == at::kDouble ? 1e-11 : 1e-5;
      EXPECT_LT(test::relative_error(parts.whole(y.detach()), y_all.detach()), bound);
      EXPECT_LT(test::relative_error(parts.whole(d[0]), d_all[0]), bound);
      for (const size_t i : {1, 2}) EXPECT_LT(test::relative_error(d[i], d_all[i]), bound);
    }
}
TEST(SequenceParts, DISABLED_Convolution) {
  const auto ranks = join_ranks();
  expect_same_convolution(*ranks, {});
  // Borders of three parts lie at 3 and 13, of two at 7: inside, at the ends of and just after sequences.
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {31}, {3, 10, 18}, {2, 5, 5, 1, 18}, {7, 0, 5, 1, 0, 18}, {1, 1, 1, 3, 1, 24}, {6, 1, 5, 2, 17}})
    expect_same_convolution(*ranks, lengths);
}
TEST(SequenceParts, TheConvolutionLooksIntoThePartBefore) {
  expect_ranks_pass(2, "SequenceParts.DISABLED_Convolution");
  expect_ranks_pass(3, "SequenceParts.DISABLED_Convolution");
}

/// A whole layer: y, d_x and, added up over ranks, every weight's gradient.
void expect_same_layer(Mixer& layer, const std::string& name, const std::vector<int64_t>& lengths,
                       Ranks& ranks) {
  const Parts parts(ranks, 61);
  const int64_t batch = lengths.empty() ? 2 : 1;
  const Tensor x = at::randn({batch, 61, 16}, at::kDouble), up = at::randn({batch, 61, 16}, at::kDouble);
  const auto run = [&](const Tensor& input, const Tensor& d_y, const auto& forward) {
    const Tensor leaf = input.detach().clone().requires_grad_();
    std::vector<Tensor> leaves = layer.parameters();
    leaves.push_back(leaf);
    const Tensor y = forward(leaf);
    std::vector<Tensor> all = torch::autograd::grad({y}, leaves, {d_y});
    all.push_back(y.detach());
    return all;
  };
  const Packing packing = packing_between(lengths, 0, 61),
                own = packing_between(lengths, parts.begin(), parts.end());
  const auto whole = run(x, up, [&](const Tensor& input) { return layer.forward(input, packing); });
  auto found = run(parts.own(x), parts.own(up),
                   [&](const Tensor& input) { return layer.forward_in_parts(input, own, ranks); });
  const auto names = layer.named_parameters().keys();
  for (size_t i = 0; i < names.size(); ++i) ranks.sum(found[i] = found[i].contiguous());
  for (size_t i = names.size(); i < found.size(); ++i) found[i] = parts.whole(found[i]);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_LT(test::relative_error(found[i], whole[i]), 1e-11)
        << name << ": " << (i < names.size() ? names[i] : "x or y");
}

TEST(SequenceParts, DISABLED_Layer) {
  const auto ranks = join_ranks();
  int64_t cut = 0;
  for (const std::string& name : mixer_names()) {
    const auto spec = make_mixer_spec(name);
    Settings settings;
    spec->bind(settings, "mixer");
    at::manual_seed(11);
    const auto layer = spec->build(16, 64);
    layer->to(at::kDouble);
    if (!layer->takes_parts()) continue;
    ++cut;
    for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{}, {12, 1, 20, 2, 26}})
      expect_same_layer(*layer, name, lengths, *ranks);
  }
  EXPECT_EQ(cut, 7);  // prism, gated_delta_net, delta_net, efla, comba, mamba2, linear_attention
}
TEST(SequenceParts, TheLayerIsThatOfTheWholeSequence) {
  expect_ranks_pass(2, "SequenceParts.DISABLED_Layer");
  expect_ranks_pass(3, "SequenceParts.DISABLED_Layer");
}

TEST(SequenceParts, DISABLED_Mistakes) {
  const auto ranks = join_ranks();
  test::ChunkTensors tensors = make_tensors(test::chunk_case("odd length"));
  if (!ranks->leads()) {
    EXPECT_THAT(error_of([&] { prism_chunk_in_parts(tensors.args(), Packing::rows(), *ranks); }),
                HasSubstr("rank 1 has an initial_state"));
  }
  EXPECT_THAT(error_of([&] {
                prism_chunk_in_parts(make_tensors(test::chunk_case("packed, no state")).args(),
                                     Packing::rows(), *ranks);
              }),
              HasSubstr("cu_seqlens"));
  if (ranks->leads()) {
    EXPECT_THAT(error_of([&] {
                  short_conv_in_parts(at::ones({1, 2, 3}), at::ones({3, 4}), {}, Packing::rows(), *ranks);
                }),
                HasSubstr("the part of rank 0 has 2 tokens, a width of 4 needs 3"));
  }
}
TEST(SequenceParts, MistakesAreErrors) { expect_ranks_pass(2, "SequenceParts.DISABLED_Mistakes"); }

}  // namespace
}  // namespace prism
