// A generator's state as a file: "blockN.<tensor>" of the mixers and "seen.I" of the sequences.
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/safetensors.h"
#include "prism/serve/text_generator.h"

namespace prism {
namespace {

using nlohmann::json;

constexpr const char* kGeneratorFormat = "prism-generator-state";

std::string block_prefix(size_t block) { return fmt::format("block{}.", block + 1); }

json header_of(const Safetensors& content, const std::string& file) {
  const auto found = content.metadata.find("state");
  check(content.metadata.count("format") && content.metadata.at("format") == kGeneratorFormat &&
            found != content.metadata.end(),
        "{}: is no state that prism lm generate saved", file);
  const auto checksum = content.metadata.find("checksum");
  check(checksum != content.metadata.end() && checksum->second == checksum_of(content),
        "{}: was damaged or edited (its checksum does not fit its content)", file);
  json header = json::parse(found->second, nullptr, false);
  check(header.is_object(), "{}: its state is damaged", file);
  return header;
}

/// Error unless the state has the tensors that this model's has, to the number of tokens (dimension 1 of
/// caches).
void require_fitting(LanguageModel& model, const LanguageModelState& state, int64_t sequences,
                     const std::string& file) {
  LanguageModelState own;
  model.step(at::zeros({sequences}, at::TensorOptions(at::kLong).device(model.embedding().device())), own);
  check(state.blocks.size() == own.blocks.size(), "{}: is of a model with {} blocks, the run's has {}", file,
        state.blocks.size(), own.blocks.size());
  for (size_t block = 0; block < own.blocks.size(); ++block)
    for (const auto& [name, expected] : own.blocks[block].tensors) {
      const auto found = state.blocks[block].tensors.find(name);
      bool fits = found != state.blocks[block].tensors.end() && found->second.dim() == expected.dim();
      for (int64_t i = 0; fits && i < expected.dim(); ++i)
        fits = found->second.size(i) == expected.size(i) || (i == 1 && expected.size(i) == 1);
      check(fits, "{}: {}{} does not fit the run's model", file, block_prefix(block), name);
    }
}

}  // namespace

void TextGenerator::save(const std::filesystem::path& file) const {
  Safetensors content{.tensors = {}, .metadata = {{"format", kGeneratorFormat}}};
  json header{{"tokenizer", tokenizer_.fingerprint()},
              {"blocks", state_.blocks.size()},
              {"seed", seed_},
              {"lengths", json::array()},
              {"pending", json::array()},
              {"tokens", json::array()}};
  for (size_t block = 0; block < state_.blocks.size(); ++block) {
    header["lengths"].push_back(state_.blocks[block].lengths);
    for (const auto& [name, tensor] : state_.blocks[block].tensors)
      content.tensors[block_prefix(block) + name] = tensor;
  }
  for (size_t i = 0; i < sequences_.size(); ++i) {
    std::vector<int64_t> seen(sequences_[i].seen.begin(), sequences_[i].seen.end());
    std::sort(seen.begin(), seen.end());
    content.tensors[fmt::format("seen.{}", i)] = at::tensor(seen, at::kLong);
    header["pending"].push_back(sequences_[i].pending);
    header["tokens"].push_back(sequences_[i].tokens);
  }
  content.metadata["state"] = header.dump();
  content.metadata["checksum"] = checksum_of(content);
  write_safetensors(file, content);
}

void TextGenerator::load(const std::filesystem::path& path) {
  const std::string file = path.string();
  const Safetensors content = read_safetensors(path);
  const json header = header_of(content, file);
  try {
    check(header.at("tokenizer") == tokenizer_.fingerprint(),
          "{}: was saved with the tokenizer {}, the run has {}", file,
          header.at("tokenizer").get<std::string>(), tokenizer_.fingerprint());
    LanguageModelState state;
    state.blocks.resize(header.at("blocks").get<size_t>());
    for (size_t block = 0; block < state.blocks.size(); ++block) {
      state.blocks[block].lengths = header.at("lengths").at(block).get<std::vector<int64_t>>();
      for (const auto& [name, tensor] : content.tensors)
        if (name.starts_with(block_prefix(block)))
          state.blocks[block].tensors[name.substr(block_prefix(block).size())] =
              tensor.to(model_.embedding().device());
    }
    require_fitting(model_, state, static_cast<int64_t>(header.at("pending").size()), file);
    std::vector<Sequence> sequences(header.at("pending").size());
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto seen = content.tensors.find(fmt::format("seen.{}", i));
      check(seen != content.tensors.end(), "{}: its state is damaged (no seen.{})", file, i);
      const auto* ids = seen->second.const_data_ptr<int64_t>();
      for (int64_t n = 0; n < seen->second.numel(); ++n)
        sequences[i].seen.insert(static_cast<int32_t>(ids[n]));
      sequences[i].pending = header.at("pending").at(i).get<int32_t>();
      sequences[i].tokens = header.at("tokens").at(i).get<int64_t>();
    }
    seed_ = header.at("seed").get<uint64_t>();
    state_ = std::move(state);
    sequences_ = std::move(sequences);
  } catch (const json::exception& error) {
    fail("{}: its state is damaged: {}", file, error.what());
  }
}

}  // namespace prism
