#include "prism/serve/open_public_layer.h"

#include <nlohmann/json.hpp>
#include <set>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/safetensors.h"
#include "prism/models/public_layer.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

/// The files with tensors under `prefix`, by the index of a model in several files.
std::set<fs::path> files_of(const fs::path& index, const std::string& prefix) {
  const auto stated = nlohmann::json::parse(read_file(index), nullptr, /*allow_exceptions=*/false);
  check(stated.is_object() && stated.contains("weight_map") && stated["weight_map"].is_object(),
        "{}: has no weight_map, expected names of tensors and their files", index.string());
  std::set<fs::path> files;
  for (const auto& [name, file] : stated["weight_map"].items()) {
    if (!name.starts_with(prefix)) continue;
    check(file.is_string(), "{}: the file of tensor {} is {}, expected a name", index.string(), name,
          file.dump());
    files.insert(index.parent_path() / file.get<std::string>());
  }
  return files;
}

std::map<std::string, at::Tensor> tensors_under(const std::string& prefix, const fs::path& whole,
                                                const fs::path& index) {
  if (fs::exists(whole)) return read_safetensors(whole, prefix).tensors;
  std::map<std::string, at::Tensor> tensors;
  for (const fs::path& file : files_of(index, prefix)) tensors.merge(read_safetensors(file, prefix).tensors);
  return tensors;
}

}  // namespace

std::shared_ptr<GatedDeltaNet> open_public_layer(const fs::path& folder, int64_t index,
                                                 const std::string& prefix) {
  check(index >= 0, "layer {} of {}: expected at least 0", index, folder.string());
  const fs::path config = folder / "config.json", whole = folder / "model.safetensors",
                 map = folder / "model.safetensors.index.json";
  const PublicLayer layer = parse_public_layer(read_file(config), config.string());
  check(fs::exists(whole) || fs::exists(map), "{}: has neither model.safetensors nor {}", folder.string(),
        map.filename().string());
  auto mixer = std::make_shared<GatedDeltaNet>(layer.config, layer.width);
  const std::string names = prefix.empty() ? public_prefix(layer.layout, index) : prefix;
  const fs::path& source = fs::exists(whole) ? whole : map;
  copy_public_weights(layer, tensors_under(names, whole, map), names, source.string(), *mixer);
  mixer->eval();
  return mixer;
}

}  // namespace prism
