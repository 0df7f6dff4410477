#include "prism/compare/cell.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "prism/compare/layer_speed.h"
#include "prism/core/clock.h"
#include "prism/core/enum_of.h"
#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/memory.h"
#include "prism/data/reader.h"
#include "prism/evaluate/evaluate_model.h"
#include "prism/train/run.h"
#include "prism/train/training_session.h"

namespace prism {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kGpuTokens = 65536;  // of one forward pass of an evaluation, as in training

struct CellOutcome {
  int signal = 0;
  Figures figures = {};
};

double bytes_of(int64_t floats) { return static_cast<double>(floats) * sizeof(float); }

/// The recipe of a cell, of any of the three kinds.
template <class R>
std::unique_ptr<R> read_recipe(const CellFolder& folder) {
  const std::string text = read_file(folder.recipe()), name = folder.recipe().string();
  auto recipe = std::make_unique<R>(peek_toml(text, name, "model.mixer"));
  recipe->settings.parse_toml(text, name);
  return recipe;
}

/// Positions trained a second over all epochs of a run, resumed or not.
double training_speed(const RunFolder& folder) {
  std::istringstream lines(read_file(folder.metrics()));
  double positions = 0, seconds = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row["kind"] != "epoch") continue;
    seconds += row["seconds"].get<double>();
    positions += row["seconds"].get<double>() * row["positions_per_second"].get<double>();
  }
  return seconds > 0 ? positions / seconds : 0;
}

/// Seconds that the ranking of all test users takes, the best of two.
double evaluation_seconds(Run& run, c10::Device device) {
  ReadReport report;
  const Interactions log = read_interactions(run.recipe->data, report);
  check_same_log(run.folder, log);
  const Split split(log, run.recipe->data);
  EvaluateOptions options{.filter_seen = run.recipe->evaluate.filter_seen};
  if (!device.is_cpu()) options.batch_tokens = kGpuTokens;
  double best = 0;
  for (int turn = 0; turn < 2; ++turn) {
    const double started = steady_seconds();
    evaluate_model(*run.model, log, split, Part::kTest, run.recipe->evaluate.ks, options);
    const double seconds = steady_seconds() - started;
    best = turn == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

/// CRC-32 of what a cell was to measure and of what came out.
std::string checksum_of(const CellFolder& folder, const ordered_json& figures) {
  uint32_t crc = 0;
  for (const std::string& text : {read_file(folder.cell()), read_file(folder.recipe()), figures.dump()})
    crc = crc32_of(text.data(), text.size(), crc);
  return fmt::format("crc32:{:08x}", crc);
}

CellOutcome recommend(const CellFolder& folder, c10::Device device) {
  const RunFolder run_folder(folder.run());
  TrainRequest request;
  request.device = device;
  if (fs::exists(run_folder.last()))
    request.resume = run_folder.root();
  else
    fs::remove_all(run_folder.root());  // stopped before its first checkpoint
  const auto recipe = read_recipe<Recipe>(folder);
  recipe->train.out = run_folder.root().string();
  const TrainOutcome outcome = train_recommender(*recipe, request);
  if (outcome.signal) return {.signal = outcome.signal};
  Run run = open_run(run_folder.root(), device);
  Figures figures;
  for (const auto& [prefix, parts] : {std::pair{"test", &outcome.test}, {"valid", &outcome.valid}})
    for (const auto& [scorer, metrics] : *parts) {
      const bool baseline = scorer == "markov" || scorer == "popularity";
      for (const Metric& metric : metrics)
        figures.emplace_back(fmt::format("{}{} {}", baseline ? scorer + " " : "", prefix, metric.name),
                             metric.value);
    }
  figures.emplace_back("positions_per_second", training_speed(run_folder));
  figures.emplace_back("evaluation_seconds", evaluation_seconds(run, device));
  figures.emplace_back("state_bytes", bytes_of(run.model->state_size(recipe->model.model.max_length)));
  figures.emplace_back("best_epoch", static_cast<double>(outcome.state.best_epoch));
  figures.emplace_back("epochs", static_cast<double>(outcome.state.epoch));
  figures.emplace_back("seconds", outcome.state.seconds);
  return {.figures = std::move(figures)};
}

CellOutcome probe(const CellFolder& folder, const std::string& item, c10::Device device) {
  const auto recipe = read_recipe<ProbeRecipe>(folder);
  const ProbeResult result = train_probe(*recipe, enum_of<ProbeTask>(item, "compare", "probe"), device);
  if (result.signal) return {.signal = result.signal};
  return {.figures = {{"accuracy", result.accuracy},
                      {"chance", result.chance},
                      {"updates", static_cast<double>(result.updates)},
                      {"positions_per_second", result.positions_per_second},
                      {"evaluation_seconds", result.test_seconds},
                      {"state_bytes", bytes_of(result.state_size)},
                      {"seconds", result.seconds}}};
}

CellOutcome speed(const CellFolder& folder, const std::string& item, c10::Device device) {
  const auto recipe = read_recipe<SpeedRecipe>(folder);
  const LayerSpeed result = measure_layer(*recipe, std::stoll(item), device);
  return {.figures = {{"train_tokens_per_second", result.train_tokens},
                      {"forward_tokens_per_second", result.forward_tokens},
                      {"step_seconds", result.step_seconds},
                      {"layer_parameters", static_cast<double>(result.parameters)},
                      {"state_bytes", bytes_of(result.state_size)}}};
}

}  // namespace

int run_cell(const CellFolder& folder, c10::Device device) {
  CellConfig config;
  Settings settings;
  settings.bind("cell", config);
  settings.read_toml(folder.cell());
  CellOutcome outcome = config.task == CompareTask::kRecommendation ? recommend(folder, device)
                        : config.task == CompareTask::kProbe        ? probe(folder, config.item, device)
                                                                    : speed(folder, config.item, device);
  if (outcome.signal) return outcome.signal;
  outcome.figures.emplace_back("peak_memory_bytes", static_cast<double>(peak_memory()));
  ordered_json json = ordered_json::object();
  for (const auto& [figure, value] : outcome.figures) json[figure] = value;
  write_file(folder.result(),
             ordered_json{{"checksum", checksum_of(folder, json)}, {"figures", json}}.dump(2) + "\n");
  return 0;
}

std::optional<Figures> read_figures(const CellFolder& folder) {
  const std::string name = folder.result().string();
  if (!fs::exists(folder.result())) return {};
  const auto json = ordered_json::parse(read_file(folder.result()), nullptr, false);
  constexpr auto kAdvice = "delete it, and the same command measures the cell again";
  check(json.is_object() && json.contains("figures") && json["figures"].is_object(),
        "{}: is no result of a cell; {}", name, kAdvice);
  const std::string found = json.contains("checksum") ? json["checksum"].dump() : "none",
                    expected = ordered_json(checksum_of(folder, json["figures"])).dump();
  check(found == expected,
        "{}: is not what its cell.toml and recipe.toml measured: its checksum is {}, its content gives {} "
        "(edited, copied from another cell, or of an older program); {}",
        name, found, expected, kAdvice);
  Figures figures;
  for (const auto& [figure, value] : json["figures"].items())
    figures.emplace_back(figure, value.is_number() ? value.get<double>() : std::nan(""));
  return figures;
}

}  // namespace prism
