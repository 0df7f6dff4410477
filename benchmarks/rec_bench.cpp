// Training speed of the recommender on real logs: ./run bench rec [--ml-1m ml-1m.txt.gz] [--device cuda]
//
// Whole training steps (batch, forward, full softmax, backward, clipping, AdamW) over the windows of an
// epoch, width 64, 2 blocks, fp32. The number of windows a step is chosen so that a step has the same number
// of positions at every T. Each figure is the median of several passes; the first step of a pass warms up. On
// a GPU: bf16, larger steps, and a row for the composed operations in place of the CUDA kernels.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/core/memory.h"
#include "prism/core/text.h"
#include "prism/data/reader.h"
#include "prism/ops/cuda_kernels.h"
#include "prism/ops/device.h"
#include "prism/train/trainer.h"

namespace prism {
namespace {

struct Options {
  std::string small = ".cache/ml-100k/ml-100k.inter", large, device = "cpu", precision;
  int64_t positions = 0;  ///< a step
  int64_t threads = 2, passes = 3, steps = 30;
  std::vector<int64_t> lengths = {50, 200, 500};
};

struct Measurement {
  double seconds = 0;  ///< of an epoch, median
  int64_t positions = 0;
};

/// While it lives the GPU composes the operations from LibTorch's, as if there were no CUDA kernels.
class WithoutKernels {
 public:
  explicit WithoutKernels(bool wanted) {
    if (!wanted || !cuda_kernels()) return;
    kept_ = *cuda_kernels();
    set_cuda_kernels({.current_stream = kept_->current_stream});
  }
  ~WithoutKernels() {
    if (kept_) set_cuda_kernels(*kept_);
  }
  WithoutKernels(const WithoutKernels&) = delete;
  WithoutKernels& operator=(const WithoutKernels&) = delete;

 private:
  std::optional<CudaKernels> kept_;
};

Measurement measure(const std::string& mixer, int64_t length, const Interactions& log, const Split& split,
                    const Options& options) {
  Recipe recipe(mixer);
  recipe.settings.set("model.max_length", length, "bench");
  recipe.settings.set("train.batch_size", std::max<int64_t>(options.positions / length, 1), "bench");
  if (mixer == "prism") recipe.settings.set("mixer.steps", int64_t{2}, "bench");
  recipe.settings.set("train.precision", options.precision, "bench");
  const at::Device device = require_device(options.device);
  const auto model = std::make_shared<Recommender>(recipe.model, log.items.size(), 1);
  model->to(device);
  const RunFolder folder("");
  Trainer trainer(recipe, log, split, folder, model, device);
  std::vector<double> seconds;
  for (int64_t pass = 0; pass < options.passes; ++pass)
    seconds.push_back(trainer.measure_epoch(options.steps));
  std::sort(seconds.begin(), seconds.end());
  return {.seconds = seconds[seconds.size() / 2], .positions = split.train_size() - log.users.size()};
}

struct Row {
  const char *label, *mixer;
  bool composed = false;
};

void bench_log(const std::string& file, const Options& options) {
  DataConfig config;
  config.file = file;
  ReadReport report;
  const Interactions log = read_interactions(config, report);
  const Split split(log, config);
  std::printf("\n%s: %s training interactions, %s items\n", file.c_str(),
              with_commas(split.train_size()).c_str(), with_commas(log.items.size()).c_str());
  std::printf("%6s %14s %14s %12s %8s\n", "T", "mixer", "positions/s", "s an epoch", "ratio");
  std::vector<Row> rows = {{"prism", "prism"}, {"sasrec_block", "sasrec_block"}};
  if (options.device != "cpu") rows.insert(rows.begin() + 1, {"composed prism", "prism", true});
  for (const int64_t length : options.lengths) {
    double prism_seconds = 0;
    for (const Row& row : rows) {
      const WithoutKernels composed(row.composed);
      const Measurement m = measure(row.mixer, length, log, split, options);
      const bool first = &row == &rows.front();
      if (first) prism_seconds = m.seconds;
      std::printf("%6ld %14s %14s %12.2f %8s\n", static_cast<long>(length), row.label,
                  with_commas(static_cast<int64_t>(static_cast<double>(m.positions) / m.seconds)).c_str(),
                  m.seconds, first ? "" : fmt::format("{:.2f}", prism_seconds / m.seconds).c_str());
      std::fflush(stdout);
    }
  }
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Training speed of the recommender");
  app.add_option("log", options.small, "ml-100k.inter")->capture_default_str();
  app.add_option("--ml-1m", options.large, "ml-1m.txt.gz, measured too when given");
  app.add_option("--device", options.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--precision", options.precision, "fp32 or bf16; default: fp32 on the CPU, bf16 on a GPU");
  app.add_option("--positions", options.positions,
                 "positions a step; default: 6400 on the CPU, 51200 on a GPU");
  app.add_option("--threads", options.threads, "threads")->capture_default_str();
  app.add_option("--passes", options.passes, "passes a figure")->capture_default_str();
  app.add_option("--steps", options.steps, "steps of a pass at most")->capture_default_str();
  app.add_option("--lengths", options.lengths, "T")->delimiter(',')->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const bool cpu = options.device == "cpu";
  if (options.positions == 0) options.positions = cpu ? 6400 : 51200;
  if (options.precision.empty()) options.precision = cpu ? "fp32" : "bf16";
  tune_allocator();
  set_log_level(LogLevel::kQuiet);
  at::set_num_threads(static_cast<int>(options.threads));
  std::printf(
      "%s, %s, %ld threads, PRISM with L = 2, %ld positions a step, median of %ld passes of at most %ld "
      "steps;\n"
      "ratio: time of PRISM over that of the row\n",
      options.device.c_str(), options.precision.c_str(), static_cast<long>(options.threads),
      static_cast<long>(options.positions), static_cast<long>(options.passes),
      static_cast<long>(options.steps));
  bench_log(options.small, options);
  if (!options.large.empty()) bench_log(options.large, options);
  return 0;
}

}  // namespace
}  // namespace prism

int main(int argc, char** argv) try { return prism::run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "bench_rec: %s\n", error.what());
  return 1;
}
