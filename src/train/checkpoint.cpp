#include "prism/train/checkpoint.h"

#include <ATen/core/Formatting.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <charconv>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/safetensors.h"

namespace prism {
namespace {

constexpr const char* kCheckpointFormat = "prism-checkpoint";

std::string shape_text(const at::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ","));
}

std::string state_json(TrainState state) {
  Settings settings;
  settings.bind("state", state);
  return settings.to_json();
}

TrainState parse_state(const std::string& json, const std::string& file) {
  TrainState state;
  Settings settings;
  settings.bind("state", state);
  settings.parse_json(json, file);
  return state;
}

void check_version(const std::string& text, const std::string& file) {
  int64_t version = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  check(error == std::errc() && end == text.data() + text.size() && version >= 1,
        "{}: checkpoint format version \"{}\" is not a number", file, text);
  check(version <= kCheckpointVersion,
        "{}: checkpoint format version {} is newer than this program reads (up to {}); use a newer prism",
        file, version, kCheckpointVersion);
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  Safetensors content{.tensors = checkpoint.tensors,
                      .metadata = {{"format", kCheckpointFormat},
                                   {"format_version", std::to_string(kCheckpointVersion)},
                                   {"state", state_json(checkpoint.state)},
                                   {"settings", checkpoint.settings},
                                   {"items", checkpoint.items}}};
  for (auto& [name, tensor] : content.tensors) tensor = tensor.detach().cpu().contiguous();
  content.metadata["checksum"] = checksum_of(content);
  write_safetensors(path, content);
}

Checkpoint read_checkpoint(const std::filesystem::path& path) {
  const std::string file = path.string();
  Safetensors content = read_safetensors(path);
  const auto entry = [&](const char* key) {
    const auto found = content.metadata.find(key);
    check(found != content.metadata.end(), "{}: not a checkpoint of prism (no \"{}\" in its metadata)", file,
          key);
    return found->second;
  };
  check(entry("format") == kCheckpointFormat, "{}: not a checkpoint of prism (format \"{}\")", file,
        entry("format"));
  check_version(entry("format_version"), file);
  const std::string expected = entry("checksum"), found = checksum_of(content);
  check(expected == found, "{}: the checkpoint was damaged or edited (its checksum says {}, its content {})",
        file, expected, found);
  return {.state = parse_state(entry("state"), file),
          .settings = entry("settings"),
          .items = content.metadata.count("items") ? content.metadata.at("items") : "",
          .tensors = std::move(content.tensors)};
}

NamedTensors model_tensors(const torch::nn::Module& model) {
  NamedTensors tensors;
  for (const auto& item : model.named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

void store_tensors(const NamedTensors& tensors, const std::string& prefix, Checkpoint& checkpoint) {
  for (const auto& [name, tensor] : tensors) checkpoint.tensors[prefix + name] = tensor.detach();
}

void restore_tensors(const Checkpoint& checkpoint, const std::string& prefix, const NamedTensors& tensors,
                     const std::string& file) {
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) {
    const auto found = checkpoint.tensors.find(prefix + name);
    check(found != checkpoint.tensors.end(), "{}: has no tensor {}{}", file, prefix, name);
    check(found->second.sizes() == tensor.sizes(), "{}: tensor {}{} is {}, the model expects {}", file,
          prefix, name, shape_text(found->second), shape_text(tensor));
    tensor.copy_(found->second);
  }
  size_t present = 0;
  for (const auto& [name, tensor] : checkpoint.tensors) present += name.starts_with(prefix);
  check(present == tensors.size(), "{}: has {} tensors under {}, the model has {}", file, present, prefix,
        tensors.size());
}

}  // namespace prism
