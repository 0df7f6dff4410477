#include "train/run_logs.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "train/event_records.h"

namespace prism {
namespace {

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

RunLogs::RunLogs(const RunFolder& folder, int64_t metrics_bytes, int64_t events_bytes)
    : metrics_(folder.metrics(), metrics_bytes), events_(folder.events(), events_bytes) {
  if (events_.size() == 0) events_.append(event_file_header(unix_seconds()));
}

void RunLogs::add(const StepRow& row) {
  nlohmann::ordered_json json{{"kind", "step"},
                              {"epoch", row.epoch},
                              {"step", row.step},
                              {"loss", row.loss},
                              {"learning_rate", row.learning_rate},
                              {"gradient_norm", row.gradient_norm}};
  if (row.skipped) json["skipped"] = true;
  metrics_.append(json.dump() + "\n");
  const Scalar scalars[] = {{"step/loss", row.loss},
                            {"step/learning_rate", row.learning_rate},
                            {"step/gradient_norm", row.gradient_norm}};
  events_.append(scalar_event(unix_seconds(), row.step, scalars));
}

void RunLogs::add(const EpochRow& row) {
  nlohmann::ordered_json json{{"kind", "epoch"},
                              {"epoch", row.epoch},
                              {"step", row.step},
                              {"loss", row.loss},
                              {"learning_rate", row.learning_rate},
                              {"seconds", row.seconds},
                              {"positions_per_second", row.positions_per_second}};
  std::vector<Scalar> scalars = {{"epoch/loss", row.loss},
                                 {"epoch/positions_per_second", row.positions_per_second}};
  if (!row.valid.empty()) {
    json["valid"] = row.valid;
    json["best"] = row.best;
    for (const auto& [name, value] : row.valid) scalars.emplace_back("valid/" + name, value);
  }
  metrics_.append(json.dump() + "\n");
  events_.append(scalar_event(unix_seconds(), row.step, scalars));
}

void RunLogs::sync() {
  metrics_.sync();
  events_.sync();
}

}  // namespace prism
