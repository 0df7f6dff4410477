// Training steps of the recommender on synthetic histories: forward, loss, backward and AdamW.
//   bench_rec_step [--mixer prism] [--length 50] [--items 1682] [--batch 6400] [--steps 20] [--key value ...]
// Other keys are settings of the model, the mixer or the loss (width, heads, dropout, ...). Prints the median
// step, its parts, and positions a second.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "prism/core/error.h"
#include "prism/core/random.h"
#include "prism/models/losses.h"
#include "prism/models/recommender.h"
#include "prism/train/optimiser.h"

namespace {

using namespace prism;
using Clock = std::chrono::steady_clock;

/// Item ids with popularities that fall off as 1/rank.
at::Tensor zipf_items(int64_t count, int64_t items, RandomStream& random) {
  at::Tensor ids = at::empty({count}, at::kLong);
  auto* out = ids.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<int64_t>(std::pow(static_cast<double>(items), random.uniform())) % items;
  return ids;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Options {
  std::string mixer = "prism";
  int64_t length = 50, items = 1682, batch = 6400, steps = 20, threads = 2;
  std::map<std::string, std::string> settings;
};

Options parse(int argc, char** argv) {
  Options options;
  std::map<std::string, int64_t*> numbers{{"length", &options.length},
                                          {"items", &options.items},
                                          {"batch", &options.batch},
                                          {"steps-timed", &options.steps},
                                          {"threads", &options.threads}};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = std::string(argv[i]).substr(2);
    if (name == "mixer")
      options.mixer = argv[i + 1];
    else if (numbers.count(name))
      *numbers[name] = std::atoll(argv[i + 1]);
    else
      options.settings[name] = argv[i + 1];
  }
  return options;
}

void run(const Options& options) {
  at::set_num_threads(static_cast<int>(options.threads));
  ModelSpec spec(options.mixer);
  LossConfig loss_config;
  Settings settings;
  spec.bind(settings);
  settings.bind("loss", loss_config);
  settings.set_text("max_length", std::to_string(options.length), "bench");
  for (const auto& [name, value] : options.settings) settings.set_text(name, value, "--" + name);

  Recommender model(spec, options.items, 1);
  NamedTensors parameters;
  for (const auto& own : model.named_parameters()) parameters.emplace_back(own.key(), own.value());
  AdamW optimiser(parameters, {});
  RandomStream random(1, "bench");
  const int64_t rows = std::max<int64_t>(options.batch / options.length, 1),
                positions = rows * options.length;
  Batch batch{zipf_items(positions, options.items, random),
              {},
              Packing::packed(std::vector<int64_t>(rows, options.length))};
  const at::Tensor targets = zipf_items(positions, options.items, random),
                   counts = targets.bincount({}, options.items);

  std::vector<double> forward, loss_time, backward, update, total;
  double last_loss = 0;
  for (int64_t step = 0; step < options.steps + 3; ++step) {
    const auto t0 = Clock::now();
    model.set_dropout_step(step);
    const at::Tensor h = model.forward(batch);
    const auto t1 = Clock::now();
    const at::Tensor loss = next_item_loss(loss_config, h, model.item_vectors(), targets, counts, 1, step);
    const auto t2 = Clock::now();
    loss.backward();
    const auto t3 = Clock::now();
    clip_gradients(parameters, 1.0);
    optimiser.step(1e-3);
    optimiser.zero_grad();
    const auto t4 = Clock::now();
    last_loss = loss.item<double>();
    if (step < 3) continue;
    const auto ms = [](auto a, auto b) { return std::chrono::duration<double, std::milli>(b - a).count(); };
    forward.push_back(ms(t0, t1)), loss_time.push_back(ms(t1, t2)), backward.push_back(ms(t2, t3));
    update.push_back(ms(t3, t4)), total.push_back(ms(t0, t4));
  }
  const double best = *std::min_element(total.begin(), total.end());
  fmt::print(
      "{:<18} T={:<4} items={:<6} positions={:<6} step median {:7.2f} ms (forward {:.2f}, loss {:.2f}, "
      "backward "
      "{:.2f}, update {:.2f}), best {:.2f} ms, {:.0f} positions/s (best {:.0f}), loss {:.4f}\n",
      options.mixer, options.length, options.items, positions, median(total), median(forward),
      median(loss_time), median(backward), median(update), best, 1e3 * positions / median(total),
      1e3 * positions / best, last_loss);
}

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  try {
    run(parse(argc, argv));
  } catch (const prism::Error& error) {
    fmt::print(stderr, "bench_rec_step: {}\n", error.what());
    return 1;
  }
}
