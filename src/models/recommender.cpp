#include "prism/models/recommender.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cmath>

#include "mixers/parameters.h"
#include "models/block.h"
#include "models/seeded_weights.h"
#include "prism/core/error.h"
#include "prism/core/random.h"
#include "prism/ops/norm.h"

namespace prism {
namespace {

constexpr int64_t kGapBuckets = 64;
constexpr double kItemDeviation = 0.02, kLayerNormEps = 1e-8, kCosineEps = 1e-12;

/// Two buckets for each doubling: floor(2 log2(1 + seconds)), at most 63.
at::Tensor gap_buckets(const at::Tensor& gaps) {
  return at::log2(gaps.clamp_min(0).to(at::kDouble) + 1)
      .mul(2)
      .floor()
      .to(at::kLong)
      .clamp_max(kGapBuckets - 1);
}

/// The length that all packed sequences have; 0 where they differ or there are none.
int64_t common_length(const Packing& packing) {
  const auto& offsets = packing.offsets();
  if (offsets.size() < 2) return 0;
  for (size_t n = 1; n < offsets.size(); ++n)
    if (offsets[n] - offsets[n - 1] != offsets[1]) return 0;
  return offsets[1];
}

at::Tensor row_of(const at::Tensor& tokens) { return tokens.defined() ? tokens.unsqueeze(0) : tokens; }

/// The batch of all items of each sequence: those that the state remembers and then the new ones, which it
/// remembers from now on. The rest of the state begins anew.
Batch with_history(const Batch& batch, RecommenderState& state) {
  const auto& offsets = batch.packing.offsets();
  const size_t sequences = offsets.size() - 1;
  const auto join = [&](const at::Tensor& tokens, std::vector<at::Tensor>& history) {
    if (!tokens.defined()) return tokens;
    if (history.empty()) history.assign(sequences, tokens.narrow(0, 0, 0));
    for (size_t n = 0; n < sequences; ++n)
      history[n] = at::cat({history[n], tokens.slice(0, offsets[n], offsets[n + 1])});
    return at::cat(history);
  };
  Batch whole{join(batch.items, state.items), join(batch.gaps, state.gaps), [&] {
                std::vector<int64_t> lengths;
                for (const at::Tensor& items : state.items) lengths.push_back(items.size(0));
                return Packing::packed(lengths);
              }()};
  state.blocks.clear();
  state.lengths.clear();
  return whole;
}

void check_model(const RecommenderConfig& config, int64_t items) {
  check(items >= 1, "recommender: {} items", items);
  check(config.width >= 1 && config.blocks >= 1, "recommender: width {}, {} blocks", config.width,
        config.blocks);
}

int64_t ffn_width(const RecommenderConfig& config) {
  return config.ffn_width > 0 ? config.ffn_width : config.width * config.ffn_multiple;
}

}  // namespace

ModelSpec::ModelSpec(const std::string& pattern) : mixer(pattern) { model.mixer = pattern; }

void ModelSpec::bind(Settings& settings) {
  settings.bind("model", model);
  mixer.bind(settings);
}

struct Recommender::Impl {
  RecommenderConfig config;
  int64_t items;
  uint64_t seed;
  bool positions = false, times = false;
  int64_t dropout_step = 0, dropout_row = 0;
  at::Tensor item_embedding, gap_embedding, position_embedding, features, feature_weight, final_norm,
      final_norm_bias;
  std::vector<std::shared_ptr<Block>> blocks;

  at::Tensor embed(const at::Tensor& ids, const at::Tensor& gaps, const at::Tensor& places) const;
  at::Tensor places(const Packing& packing, const std::vector<int64_t>& before, at::Device device) const;
  at::Tensor item_vectors() const;
  at::Tensor normed(const at::Tensor& x) const;
  at::Tensor scoring(const at::Tensor& vectors) const;
};

Recommender::Recommender(const ModelSpec& spec, int64_t items, uint64_t seed)
    : impl_(std::make_shared<Impl>()) {
  check_model(spec.model, items);
  const SeededWeights seeded(seed);
  auto& m = *impl_;
  m.config = spec.model, m.items = items, m.seed = seed;
  for (int64_t i = 0; i < std::min(m.config.blocks, spec.mixer.period()); ++i) {
    m.positions |= spec.mixer.of_block(i).needs_positions();
    m.times |= spec.mixer.of_block(i).needs_times();
  }
  const int64_t width = m.config.width;
  m.item_embedding = register_parameter("item_embedding", initial::normal({items, width}, kItemDeviation));
  if (m.positions)
    m.position_embedding = register_parameter("position_embedding",
                                              initial::normal({m.config.max_length, width}, kItemDeviation));
  if (m.config.time_gaps)
    m.gap_embedding =
        register_parameter("gap_embedding", initial::normal({kGapBuckets, width}, kItemDeviation));
  for (int64_t i = 0; i < m.config.blocks; ++i)
    m.blocks.push_back(
        register_module("block" + std::to_string(i + 1),
                        std::make_shared<Block>(spec.mixer.of_block(i), width, ffn_width(m.config),
                                                m.config.max_length, m.config.input_conv)));
  m.final_norm = register_parameter("final_norm", initial::ones({width}));
  if (spec.mixer.of_block(m.config.blocks - 1).is_whole_block())
    m.final_norm_bias = register_parameter("final_norm_bias", initial::zeros({width}));
}

/// Items may carry features; the same vectors embed the history and score the next item.
at::Tensor Recommender::Impl::item_vectors() const {
  return features.defined() ? item_embedding + at::linear(features, feature_weight) : item_embedding;
}

/// Models with learned positions scale the item vectors by sqrt(D), as SASRec and HSTU do.
at::Tensor Recommender::Impl::embed(const at::Tensor& ids, const at::Tensor& gaps,
                                    const at::Tensor& places) const {
  at::Tensor x = at::embedding(item_embedding, ids);
  if (features.defined()) x = x + at::linear(features.index_select(0, ids), feature_weight);
  if (positions)
    x = x * std::sqrt(static_cast<double>(config.width)) + at::embedding(position_embedding, places);
  if (config.time_gaps) {
    check(gaps.defined(), "recommender: the model was built with time_gaps but the batch has no times");
    x = x + at::embedding(gap_embedding, gap_buckets(gaps));
  }
  return x;
}

/// Vectors as they enter scores: of unit length where scores are cosines.
at::Tensor Recommender::Impl::scoring(const at::Tensor& vectors) const {
  return config.cosine ? l2_norm(vectors, kCosineEps) : vectors;
}

/// RMS norm; after whole blocks, which bring layer norms of their own, a layer norm as in SASRec. Not rounded
/// under autocast either: losses score in full precision.
at::Tensor Recommender::Impl::normed(const at::Tensor& x) const {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (!final_norm_bias.defined()) return scoring(rms_norm(x, final_norm));
  return scoring(at::layer_norm(x, {x.size(-1)}, final_norm, final_norm_bias, kLayerNormEps));
}

/// Position of every packed token in its window; undefined for models without positions.
at::Tensor Recommender::Impl::places(const Packing& packing, const std::vector<int64_t>& before,
                                     at::Device device) const {
  if (!positions) return {};
  const auto fits = [&](int64_t length) {
    check(length <= config.max_length, "recommender: a history of {} items, max_length is {}", length,
          config.max_length);
  };
  const auto& offsets = packing.offsets();
  if (const int64_t length = common_length(packing); length > 0 && before.empty()) {
    fits(length);
    return at::arange(length, at::device(device).dtype(at::kLong)).repeat(offsets.back() / length);
  }
  std::vector<int64_t> all;
  all.reserve(offsets.back());
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    const int64_t first = before.empty() ? 0 : before[n], last = first + offsets[n + 1] - offsets[n];
    fits(last);
    for (int64_t t = first; t < last; ++t) all.push_back(t);
  }
  return at::tensor(all, at::kLong).to(device);
}

at::Tensor Recommender::forward(const Batch& batch) {
  auto& m = *impl_;
  const Dropout drop{is_training() ? m.config.dropout : 0, stream_seed(m.seed, "dropout", m.dropout_step),
                     m.dropout_row};
  at::Tensor x = m.embed(batch.items, batch.gaps, m.places(batch.packing, {}, batch.items.device()));
  // Histories of one length lie in memory as rows do, and rows need no plan of where each begins.
  const int64_t length = common_length(batch.packing);
  const Packing packing = length > 0 ? Packing::rows() : batch.packing;
  const auto shaped = [&](const at::Tensor& tokens) {
    return length > 0 && tokens.defined() ? tokens.unflatten(0, {-1, length}) : row_of(tokens);
  };
  x = shaped(dropout(x, drop.at(0)));
  const at::Tensor gaps = shaped(batch.gaps);
  for (size_t i = 0; i < m.blocks.size(); ++i) x = m.blocks[i]->forward(x, packing, gaps, drop.at(i + 1));
  return m.normed(x.flatten(0, 1));
}

at::Tensor Recommender::prefill(const Batch& given, RecommenderState& state) {
  auto& m = *impl_;
  const Batch batch = m.times ? with_history(given, state) : given;
  const auto& offsets = batch.packing.offsets();
  std::vector<int64_t> last(batch.packing.sequences(batch.items));
  state.lengths.resize(last.size(), 0);
  state.blocks.resize(m.blocks.size());
  at::Tensor x =
      m.embed(batch.items, batch.gaps, m.places(batch.packing, state.lengths, batch.items.device()));
  x = x.unsqueeze(0);
  const at::Tensor gaps = row_of(batch.gaps);
  for (size_t i = 0; i < m.blocks.size(); ++i)
    x = m.blocks[i]->prefill(x, batch.packing, gaps, state.blocks[i]);
  for (size_t n = 0; n < last.size(); ++n) {
    check(offsets[n + 1] > offsets[n], "recommender: sequence {} of the batch is empty", n);
    state.lengths[n] += offsets[n + 1] - offsets[n];
    last[n] = offsets[n + 1] - 1;
  }
  return m.normed(x.squeeze(0).index_select(0, at::tensor(last, at::kLong).to(x.device())));
}

at::Tensor Recommender::step(const at::Tensor& items, const at::Tensor& gaps, RecommenderState& state) {
  const at::NoGradGuard no_gradient;
  auto& m = *impl_;
  const Packing one_each = Packing::packed(std::vector<int64_t>(items.size(0), 1));
  if (m.times) return prefill({items, gaps, one_each}, state);
  state.lengths.resize(items.size(0), 0);
  state.blocks.resize(m.blocks.size());
  at::Tensor x = m.embed(items, gaps, m.places(one_each, state.lengths, items.device()));
  for (size_t i = 0; i < m.blocks.size(); ++i) x = m.blocks[i]->step(x, gaps, state.blocks[i]);
  for (int64_t& length : state.lengths) ++length;
  return m.normed(x);
}

at::Tensor Recommender::item_vectors() { return impl_->scoring(impl_->item_vectors()); }
void Recommender::set_dropout_step(int64_t step, int64_t row) {
  impl_->dropout_step = step, impl_->dropout_row = row;
}
int64_t Recommender::items() const { return impl_->items; }
const RecommenderConfig& Recommender::config() const { return impl_->config; }
bool Recommender::has_positions() const { return impl_->positions; }
bool Recommender::reads_times() const { return impl_->config.time_gaps || impl_->times; }
bool Recommender::revises_history() const { return impl_->times; }

at::Tensor Recommender::auxiliary_loss() const {
  at::Tensor sum;
  for (const auto& module : modules(/*include_self=*/false)) {
    const auto* mixer = dynamic_cast<const Mixer*>(module.get());
    if (!mixer || !mixer->auxiliary_loss().defined()) continue;
    sum = sum.defined() ? sum + mixer->auxiliary_loss() : mixer->auxiliary_loss();
  }
  return sum;
}

void Recommender::set_item_features(const at::Tensor& features_IF) {
  auto& m = *impl_;
  check(features_IF.dim() == 2 && features_IF.size(0) == m.items, "item features: {} rows for {} items",
        features_IF.size(0), m.items);
  const SeededWeights seeded(stream_seed(m.seed, "features"));
  const auto options = m.item_embedding.options().requires_grad(false);
  m.features = register_buffer("item_features", features_IF.to(options));
  m.feature_weight =
      register_parameter("feature_weight", initial::linear(m.config.width, features_IF.size(1)).to(options));
}

int64_t Recommender::state_size(int64_t tokens) const {
  int64_t size = 0;
  for (const auto& block : impl_->blocks) size += block->mixer()->state_size(tokens);
  return size;
}

std::vector<std::pair<std::string, int64_t>> Recommender::parameter_counts() const {
  std::vector<std::pair<std::string, int64_t>> parts;
  const auto add = [&](const std::string& part, int64_t count) {
    if (parts.empty() || parts.back().first != part) parts.emplace_back(part, 0);
    parts.back().second += count;
  };
  for (const auto& own : named_parameters(/*recurse=*/false))
    if (!own.key().starts_with("final_norm"))
      add(own.key().substr(0, own.key().find('_')) + " embedding", own.value().numel());
  for (size_t i = 0; i < impl_->blocks.size(); ++i)
    for (const auto& own : impl_->blocks[i]->named_parameters()) {
      const bool in_mixer = own.key().rfind("mixer.", 0) == 0;
      add("block " + std::to_string(i + 1) + (in_mixer ? " mixer" : " norms and FFN"), own.value().numel());
    }
  add("final norm",
      impl_->final_norm.numel() + (impl_->final_norm_bias.defined() ? impl_->final_norm_bias.numel() : 0));
  return parts;
}

}  // namespace prism
