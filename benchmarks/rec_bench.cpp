// Training speed of the recommender on real logs: ./run bench rec [--ml-1m ml-1m.txt.gz]
//
// Whole training steps (batch, forward, full softmax, backward, clipping, AdamW) over the windows of an
// epoch, width 64, 2 blocks, fp32. The number of windows a step is chosen so that a step has the same number
// of positions at every T. Each figure is the median of several passes; the first step of a pass warms up.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/core/memory.h"
#include "prism/core/text.h"
#include "prism/data/reader.h"
#include "prism/train/trainer.h"

namespace prism {
namespace {

constexpr int64_t kPositionsAStep = 6400;

struct Options {
  std::string small = ".cache/ml-100k/ml-100k.inter", large;
  int64_t threads = 2, passes = 3, steps = 30;
  std::vector<int64_t> lengths = {50, 200, 500};
};

struct Measurement {
  double seconds = 0;  ///< of an epoch, median
  int64_t positions = 0;
};

Measurement measure(const std::string& mixer, int64_t length, const Interactions& log, const Split& split,
                    const Options& options) {
  Recipe recipe(mixer);
  recipe.settings.set("model.max_length", length, "bench");
  recipe.settings.set("train.batch_size", std::max<int64_t>(kPositionsAStep / length, 1), "bench");
  if (mixer == "prism") recipe.settings.set("mixer.steps", int64_t{2}, "bench");
  const auto model = std::make_shared<Recommender>(recipe.model, log.items.size(), 1);
  const RunFolder folder("");
  Trainer trainer(recipe, log, split, folder, model, c10::Device(c10::kCPU));
  std::vector<double> seconds;
  for (int64_t pass = 0; pass < options.passes; ++pass)
    seconds.push_back(trainer.measure_epoch(options.steps));
  std::sort(seconds.begin(), seconds.end());
  return {.seconds = seconds[seconds.size() / 2], .positions = split.train_size() - log.users.size()};
}

void bench_log(const std::string& file, const Options& options) {
  DataConfig config;
  config.file = file;
  ReadReport report;
  const Interactions log = read_interactions(config, report);
  const Split split(log, config);
  std::printf("\n%s: %s training interactions, %s items\n", file.c_str(),
              with_commas(split.train_size()).c_str(), with_commas(log.items.size()).c_str());
  std::printf("%6s %14s %14s %12s %8s\n", "T", "mixer", "positions/s", "s an epoch", "ratio");
  for (const int64_t length : options.lengths) {
    double prism_seconds = 0;
    for (const std::string mixer : {"prism", "sasrec_block"}) {
      const Measurement m = measure(mixer, length, log, split, options);
      if (mixer == "prism") prism_seconds = m.seconds;
      std::printf("%6ld %14s %14s %12.2f %8s\n", static_cast<long>(length), mixer.c_str(),
                  with_commas(static_cast<int64_t>(static_cast<double>(m.positions) / m.seconds)).c_str(),
                  m.seconds,
                  mixer == "prism" ? "" : fmt::format("{:.2f}", prism_seconds / m.seconds).c_str());
      std::fflush(stdout);
    }
  }
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Training speed of the recommender");
  app.add_option("log", options.small, "ml-100k.inter")->capture_default_str();
  app.add_option("--ml-1m", options.large, "ml-1m.txt.gz, measured too when given");
  app.add_option("--threads", options.threads, "threads")->capture_default_str();
  app.add_option("--passes", options.passes, "passes a figure")->capture_default_str();
  app.add_option("--steps", options.steps, "steps of a pass at most")->capture_default_str();
  app.add_option("--lengths", options.lengths, "T")->delimiter(',')->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  tune_allocator();
  set_log_level(LogLevel::kQuiet);
  at::set_num_threads(static_cast<int>(options.threads));
  std::printf(
      "%ld threads, PRISM with L = 2, %ld positions a step, median of %ld passes of at most %ld steps;\n"
      "ratio: time of PRISM over that of the SASRec block\n",
      static_cast<long>(options.threads), static_cast<long>(kPositionsAStep),
      static_cast<long>(options.passes), static_cast<long>(options.steps));
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
