#include "prism/train/run.h"

#include <c10/core/GradMode.h>

#include <nlohmann/json.hpp>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/core/text.h"

namespace prism {
namespace {

namespace fs = std::filesystem;

std::string escaped(std::string_view text) {
  std::string line;
  for (const char c : text) line += (c == '\n' || c == '\r') ? ' ' : c;
  return line;
}

std::vector<std::string> read_titles(const fs::path& path) {
  std::vector<std::string> titles;
  if (!fs::exists(path)) return titles;
  const std::string text = read_file(path);
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    titles.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return titles;
}

template <class T>
uint32_t crc_of(const std::vector<T>& values, uint32_t crc) {
  return crc32_of(values.data(), values.size() * sizeof(T), crc);
}

uint32_t crc_of(const Vocabulary& names, uint32_t crc) {
  for (int64_t i = 0; i < names.size(); ++i) {
    const std::string_view name = names.name(i);
    const auto length = static_cast<int64_t>(name.size());
    crc = crc32_of(&length, sizeof length, crc);
    crc = crc32_of(name.data(), name.size(), crc);
  }
  return crc;
}

at::Tensor tensor_of(const Checkpoint& checkpoint, const std::string& name, const fs::path& file) {
  const auto found = checkpoint.tensors.find(name);
  check(found != checkpoint.tensors.end(), "{}: has no tensor {}", file.string(), name);
  return found->second;
}

}  // namespace

Run open_run(const fs::path& root, c10::Device device) {
  Run run{.folder = RunFolder::open(root)};
  const bool validated = fs::exists(run.folder.best());
  const fs::path file = validated ? run.folder.best() : run.folder.last();
  if (!validated && !fs::exists(file))
    fail("{} has no checkpoint yet; train it with: prism train --resume {}", root.string(), root.string());
  if (!validated) warn("{} has not been validated yet; using its last checkpoint", root.string());
  const Checkpoint checkpoint = read_checkpoint(file);
  run.recipe = Recipe::parse_json(checkpoint.settings, file.string());
  run.items = Vocabulary::load(run.folder.items());
  run.titles = read_titles(run.folder.titles());
  run.item_counts = tensor_of(checkpoint, "item_counts", file);
  run.state = checkpoint.state;
  check(run.item_counts.size(0) == run.items.size(), "{}: {} items, but {} names {}", file.string(),
        run.item_counts.size(0), run.folder.items().string(), run.items.size());
  check(run.titles.empty() || static_cast<int64_t>(run.titles.size()) == run.items.size(),
        "{}: {} titles for {} items", run.folder.titles().string(), run.titles.size(), run.items.size());
  check(checkpoint.items.empty() || checkpoint.items == checksum_of_names(run.items),
        "{}: is not the list of items that {} was trained with", run.folder.items().string(), file.string());
  run.model = std::make_shared<Recommender>(run.recipe->model, run.items.size(),
                                            static_cast<uint64_t>(run.recipe->run.seed));
  if (const auto found = checkpoint.tensors.find("model.item_features"); found != checkpoint.tensors.end())
    run.model->set_item_features(found->second);
  restore_tensors(checkpoint, "model.", model_tensors(*run.model), file.string());
  run.model->to(device);
  run.model->eval();
  return run;
}

void write_dataset(const RunFolder& folder, const Interactions& log, const std::vector<std::string>& titles,
                   const std::string& summary) {
  log.items.save(folder.items());
  log.users.save(folder.users());
  if (!titles.empty()) {
    std::string text;
    for (const std::string& title : titles) text += escaped(title) + "\n";
    write_file(folder.titles(), text);
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(summary);
  json["fingerprint"] = log_fingerprint(log);
  write_file(folder.dataset(), json.dump(2) + "\n");
}

std::string log_fingerprint(const Interactions& log) {
  uint32_t crc = crc_of(log.users, crc_of(log.items, 0));
  crc = crc_of(log.time, crc_of(log.item, crc_of(log.offsets, crc)));
  return fmt::format("crc32:{:08x}", crc);
}

void check_same_log(const RunFolder& folder, const Interactions& log) {
  const auto json = nlohmann::json::parse(read_file(folder.dataset()), nullptr, false);
  check(json.is_object() && json.contains("fingerprint"), "{}: has no fingerprint of the log",
        folder.dataset().string());
  check(json["fingerprint"] == log_fingerprint(log),
        "train: the log is not the one that {} was started with; continue on a newer log with --from {}",
        folder.root().string(), folder.root().string());
}

std::string checksum_of_names(const Vocabulary& names) {
  return fmt::format("crc32:{:08x}", crc_of(names, 0));
}

int64_t adopt_items(const Vocabulary& known, Interactions& log) {
  Vocabulary all;
  for (int64_t i = 0; i < known.size(); ++i) all.add(known.name(i));
  std::vector<int32_t> index;
  for (int64_t i = 0; i < log.items.size(); ++i)
    index.push_back(static_cast<int32_t>(all.add(log.items.name(i))));
  for (int32_t& item : log.item) item = index[static_cast<size_t>(item)];
  log.items = std::move(all);
  return log.items.size() - known.size();
}

void adopt_weights(const Recommender& from, Recommender& into) {
  const c10::NoGradGuard no_grad;
  const auto sources = from.named_parameters();
  for (auto& item : into.named_parameters()) {
    const at::Tensor* source = sources.find(item.key());
    check(source != nullptr, "train: the run to continue from has no weight {}", item.key());
    at::Tensor target = item.value();
    if (item.key() == "item_embedding") target = target.narrow(0, 0, source->size(0));
    check(source->sizes() == target.sizes(), "train: weight {} has another shape in the run to continue from",
          item.key());
    target.copy_(*source);
  }
}

}  // namespace prism
