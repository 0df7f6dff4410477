#pragma once
#include <filesystem>
#include <string>

namespace prism {

/// What `prism info` says of a run folder, finished or not: data, model, progress, results, files. Damaged
/// checkpoints are reported as such, not thrown. Usage error for a folder that is no run.
std::string run_summary_text(const std::filesystem::path& root);
/// The same as JSON: {run, mixer, seed, dataset, settings, last, best, results, files}.
std::string run_summary_json(const std::filesystem::path& root);

}  // namespace prism
