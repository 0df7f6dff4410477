#include "prism/train/run_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/text.h"
#include "prism/train/checkpoint.h"
#include "prism/train/recipe.h"
#include "prism/train/run_folder.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

ordered_json read_json(const fs::path& path) {
  if (!fs::exists(path)) return nullptr;
  ordered_json json = ordered_json::parse(read_file(path), nullptr, false);
  check(!json.is_discarded(), "{}: is not JSON", path.string());
  return json;
}

/// Counters of one checkpoint and its weights, or what is wrong with it.
ordered_json checkpoint_json(const fs::path& path) try {
  if (!fs::exists(path)) return nullptr;
  const Checkpoint checkpoint = read_checkpoint(path);
  int64_t parameters = 0;
  for (const auto& [name, tensor] : checkpoint.tensors)
    if (name.starts_with("model.")) parameters += tensor.numel();
  const TrainState& state = checkpoint.state;
  return {{"epoch", state.epoch},           {"step", state.step},
          {"best_epoch", state.best_epoch}, {"best_metric", state.best_metric},
          {"stale", state.stale},           {"seconds", state.seconds},
          {"parameters", parameters}};
} catch (const Error& error) {
  return {{"error", error.what()}};
}

ordered_json files_json(const RunFolder& folder) {
  ordered_json files = ordered_json::object();
  std::vector<fs::path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder.root()))
    if (entry.is_regular_file()) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) files[fs::relative(path, folder.root()).string()] = fs::file_size(path);
  return files;
}

ordered_json summary(const fs::path& root) {
  const RunFolder folder = RunFolder::open(root);
  const auto recipe = Recipe::read(folder.config());
  return {{"run", root.string()},
          {"mixer", recipe->model.model.mixer},
          {"seed", recipe->run.seed},
          {"dataset", read_json(folder.dataset())},
          {"settings", ordered_json::parse(recipe->settings.to_json())},
          {"last", checkpoint_json(folder.last())},
          {"best", checkpoint_json(folder.best())},
          {"results", read_json(folder.results())},
          {"files", files_json(folder)}};
}

std::string dataset_text(const ordered_json& dataset) {
  if (dataset.is_null()) return "data: not read yet\n";
  const ordered_json& counts = dataset["counts"];
  return fmt::format(
      "data: {}: {} users, {} items, {} interactions, histories {} to {} (median {})\n      {}\n",
      dataset["file"].get<std::string>(), with_commas(counts["users"]), with_commas(counts["items"]),
      with_commas(counts["interactions"]), counts["length_min"].get<int64_t>(),
      counts["length_max"].get<int64_t>(), counts["length_median"].get<double>(),
      dataset["split"].get<std::string>());
}

std::string checkpoint_text(const std::string& name, const ordered_json& json) {
  if (json.is_null()) return fmt::format("{} checkpoint: none yet\n", name);
  if (json.contains("error"))
    return fmt::format("{} checkpoint: {}\n", name, json["error"].get<std::string>());
  return fmt::format("{} checkpoint: epoch {}, step {}, {} parameters, {} of training\n", name,
                     json["epoch"].get<int64_t>(), with_commas(json["step"]), with_commas(json["parameters"]),
                     format_duration(json["seconds"]));
}

std::string results_text(const ordered_json& results, const std::string& root) {
  if (results.is_null())
    return fmt::format("results: training has not ended; prism train --resume {}\n", root);
  constexpr const char* kColumns[] = {"HR@10", "NDCG@10", "HR@200", "MRR", "AUC"};
  std::string text = fmt::format("test of epoch {}: {}\n  {:<16}", results["best_epoch"].get<int64_t>(),
                                 results["protocol"]["text"].get<std::string>(), "");
  for (const char* column : kColumns) text += fmt::format(" {:>9}", column);
  for (const auto& [name, figures] : results["test"].items()) {
    text += fmt::format("\n  {:<16}", name);
    for (const char* column : kColumns)
      text += figures.contains(column) && figures[column].is_number()
                  ? fmt::format(" {:>9.4f}", figures[column].get<double>())
                  : fmt::format(" {:>9}", "-");
  }
  return text + "\n";
}

/// Settings that are not at their defaults, a line a section.
std::string settings_text(const ordered_json& settings) {
  const Recipe plain(settings["model"]["mixer"].get<std::string>());
  const ordered_json defaults = ordered_json::parse(plain.settings.to_json());
  std::string text = "settings (the others are at their defaults; all are in config.toml):\n";
  for (const auto& [section, values] : settings.items()) {
    std::string line;
    for (const auto& [key, value] : values.items())
      if (value != defaults[section][key])
        line += fmt::format("{}{} = {}", line.empty() ? "" : ", ", key, value.dump());
    if (!line.empty()) text += fmt::format("  [{}] {}\n", section, line);
  }
  return text;
}

}  // namespace

std::string run_summary_json(const fs::path& root) { return summary(root).dump(2); }

std::string run_summary_text(const fs::path& root) {
  const ordered_json json = summary(root);
  std::string text = fmt::format("run {}: {}, seed {}\n", root.string(), json["mixer"].get<std::string>(),
                                 json["seed"].get<int64_t>());
  text += dataset_text(json["dataset"]) + checkpoint_text("last", json["last"]) +
          checkpoint_text("best", json["best"]);
  text += results_text(json["results"], root.string()) + settings_text(json["settings"]) + "files:\n";
  for (const auto& [name, bytes] : json["files"].items())
    text += fmt::format("  {:<40} {:>12}\n", name, format_bytes(bytes));
  return text;
}

}  // namespace prism
