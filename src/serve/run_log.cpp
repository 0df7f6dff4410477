#include "prism/serve/run_log.h"

#include <filesystem>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/core/text.h"
#include "prism/data/reader.h"

namespace prism {
namespace {

bool same_names(const Vocabulary& a, const Vocabulary& b) {
  if (a.size() != b.size()) return false;
  for (int64_t i = 0; i < a.size(); ++i)
    if (a.name(i) != b.name(i)) return false;
  return true;
}

Vocabulary copy_of(const Vocabulary& names) {
  Vocabulary copy;
  for (int64_t i = 0; i < names.size(); ++i) copy.add(names.name(i));
  return copy;
}

}  // namespace

RunLog align_items(const Vocabulary& known, Interactions log) {
  if (same_names(known, log.items)) return {.log = std::move(log), .file = ""};
  RunLog result{.log = {}, .file = ""};
  std::vector<int32_t> index;
  for (int64_t item = 0; item < log.items.size(); ++item) {
    index.push_back(static_cast<int32_t>(known.find(log.items.name(item))));
    result.unknown_items += index.back() < 0;
  }
  Interactions& out = result.log;
  for (int64_t user = 0; user < log.users.size(); ++user) {
    for (int64_t i = log.offset(user); i < log.offset(user + 1); ++i) {
      const auto row = static_cast<size_t>(i);
      const int32_t item = index[static_cast<size_t>(log.item[row])];
      if (item < 0) continue;
      out.item.push_back(item);
      if (!log.time.empty()) out.time.push_back(log.time[row]);
    }
    out.offsets.push_back(out.size());
  }
  result.dropped_rows = log.size() - out.size();
  out.users = std::move(log.users);
  out.items = copy_of(known);
  out.time_decimals = log.time_decimals;
  return result;
}

RunLog read_run_log(const Run& run, const std::string& file) {
  DataConfig config = run.recipe->data;
  if (!file.empty()) config.file = file;
  if (!std::filesystem::exists(config.file)) {
    check(!file.empty(),
          "{}: the run was trained on this file, which is not there; name its place with --data FILE",
          config.file);
    fail("{}: no such file", config.file);
  }
  ReadReport report;
  RunLog result = align_items(run.items, read_interactions(config, report));
  result.file = config.file;
  check(!run.recipe->model.model.time_gaps || !result.log.time.empty() || result.log.item.empty(),
        "{}: the run uses time gaps, but this log has no timestamps", config.file);
  if (result.dropped_rows > 0)
    warn("{}: {} interactions with {} items that the run does not know are left out", config.file,
         with_commas(result.dropped_rows), with_commas(result.unknown_items));
  return result;
}

}  // namespace prism
