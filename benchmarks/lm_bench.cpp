// Training speed of language models: ./run bench lm [--device cuda]
//
// Whole steps as `prism lm train` takes them: token ids from the host, forward, softmax over the vocabulary,
// backward, clipping, fused AdamW. Random tokens in rows without a document's border. Every figure is the
// median of passes of several steps, after steps that warm up; the loss is checked to fall first.
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "kernel_times.h"
#include "model_row.h"
#include "prism/core/clock.h"
#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/core/memory.h"
#include "prism/core/text.h"
#include "prism/ops/device.h"
#include "prism/ops/softmax_loss.h"
#include "prism/train/language_model_recipe.h"
#include "train/train_task.h"
#include "train/updater.h"

namespace prism {
namespace {

constexpr double kPeakFlops = 989e12;  // bf16 without sparsity, of an H200

struct Options {
  std::string device = "cpu", precision, size, json;
  std::vector<std::string> models, shapes;
  int64_t vocabulary = 50257, passes = 3, steps = 10, threads = 2;
  bool profile = false, eager = false, checkpointing = false;
};

struct Shape {
  int64_t batch = 0, length = 0;
  std::string text() const { return fmt::format("{}x{}", batch, length); }
};

Shape parse_shape(const std::string& text) {
  Shape shape;
  char end = 0;
  if (std::sscanf(text.c_str(), "%ldx%ld%c", &shape.batch, &shape.length, &end) != 2 || shape.batch < 1 ||
      shape.length < 1)
    usage_error("--shapes {}: expected BATCHxLENGTH, such as 8x2048", text);
  return shape;
}

/// Rows of random tokens; a step takes all of them.
class SyntheticText final : public TrainTask {
 public:
  SyntheticText(std::shared_ptr<LanguageModel> model, Shape shape, c10::Device device)
      : model_(std::move(model)), shape_(shape) {
    host_ = at::randint(model_->vocabulary(), {shape.batch, shape.length + 1}, at::kLong);
    tokens_ = host_.narrow(1, 0, shape.length).to(device).contiguous();
    targets_ = host_.narrow(1, 1, shape.length).to(device).flatten().contiguous();
    if (device.is_cuda()) host_ = host_.pin_memory();
  }
  torch::nn::Module& model() override { return *model_; }
  int64_t rounds() const override { return 1; }
  int64_t units(int64_t) const override { return shape_.batch; }
  void open_round(int64_t) override {}
  int64_t positions(int64_t, int64_t count) const override { return count * shape_.length; }
  bool stage(std::span<const StepPart>) override {
    tokens_.copy_(host_.narrow(1, 0, shape_.length), /*non_blocking=*/true);
    targets_.copy_(host_.narrow(1, 1, shape_.length).flatten(), /*non_blocking=*/true);
    return true;
  }
  TaskLoss loss(const StepPart&) override {
    const at::Tensor h = model_->forward(tokens_, Packing::rows()).flatten(0, 1);
    return {.mean = full_softmax_loss(h, model_->embedding(), targets_),
            .auxiliary = model_->auxiliary_loss()};
  }
  bool validates_after(int64_t) const override { return false; }
  MetricMap validate() override { return {}; }
  void tell(const EpochRow&) override {}
  std::string label(int64_t) const override { return ""; }
  std::string divergence_advice() const override { return ""; }
  std::string memory_advice() const override { return "take a smaller shape"; }

 private:
  std::shared_ptr<LanguageModel> model_;
  Shape shape_;
  at::Tensor host_, tokens_, targets_;
};

/// A model and its training.
class Bench {
 public:
  Bench(const ModelRow& row, Shape shape, const Options& options)
      : shape_(shape), device_(require_device(options.device)), recipe_(row.mixer) {
    recipe_.settings.set("model.size", options.size, "bench");
    recipe_.settings.set("model.max_length", shape.length, "bench");
    recipe_.settings.set("train.precision", options.precision, "bench");
    if (row.steps) recipe_.settings.set("mixer.steps", *row.steps, "bench");
    recipe_.model.fit_to_size(recipe_.settings);
    model_ = std::make_shared<LanguageModel>(recipe_.model, options.vocabulary, 1);
    model_->set_activation_checkpointing(options.checkpointing);
    model_->to(device_);
    model_->train();
    task_ = std::make_unique<SyntheticText>(model_, shape, device_);
    updater_ = std::make_unique<Updater>(*task_,
                                         UpdateOptions{.optimiser = {.beta2 = 0.95, .weight_decay = 0.1},
                                                       .precision = recipe_.train.precision,
                                                       .record = !options.eager,
                                                       .rate = [](int64_t) { return 1e-3; }},
                                         device_);
  }

  /// Waits for the device; the losses of the steps.
  std::vector<double> take(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) updater_->step(0, shape_.batch, step_++);
    std::vector<double> losses;
    for (const StepFigures& figures : updater_->take_figures()) losses.push_back(figures.loss);
    return losses;
  }
  int64_t parameters() const { return parameter_count(*model_); }
  int64_t tokens() const { return shape_.batch * shape_.length; }
  bool on_gpu() const { return device_.is_cuda(); }

 private:
  Shape shape_;
  c10::Device device_;
  LanguageModelRecipe recipe_;
  std::shared_ptr<LanguageModel> model_;
  std::unique_ptr<SyntheticText> task_;
  std::unique_ptr<Updater> updater_;
  int64_t step_ = 0;
};

void check_training(const std::string& label, const std::vector<double>& losses) {
  check(losses.back() < losses.front(), "bench lm: the loss of {} does not fall: {:.4f}, then {:.4f}", label,
        losses.front(), losses.back());
}

double seconds_a_step(Bench& bench, const Options& options) {
  std::vector<double> passes;
  for (int64_t pass = 0; pass < options.passes; ++pass) {
    const double began = steady_seconds();
    bench.take(options.steps);
    passes.push_back((steady_seconds() - began) / static_cast<double>(options.steps));
  }
  std::sort(passes.begin(), passes.end());
  return passes[passes.size() / 2];
}

double peak_gib(const Bench& bench) {
  if (!bench.on_gpu()) return static_cast<double>(peak_memory()) / 0x1p30;
  const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(0);
  return static_cast<double>(stats.allocated_bytes[0].peak) / 0x1p30;
}

/// Where the time of a step goes on the GPU.
nlohmann::ordered_json print_profile(Bench& bench, const Options& options) {
  const auto times = kernel_times([&] { bench.take(options.steps); });
  std::map<std::string, double> parts;
  double all = 0;
  for (const KernelTime& time : times) {
    parts[part_of_step(time.name)] += time.milliseconds;
    all += time.milliseconds;
  }
  nlohmann::ordered_json json;
  for (const auto& [part, milliseconds] : parts) {
    std::printf("    %-30s %7.2f ms a step  %5.1f %%\n", part.c_str(),
                milliseconds / static_cast<double>(options.steps), 100 * milliseconds / all);
    json[part] = milliseconds / static_cast<double>(options.steps);
  }
  constexpr size_t kShown = 30;
  for (size_t i = 0; i < std::min(kShown, times.size()); ++i)
    std::printf(
        "      %8.3f ms %6.1f x  %.150s\n", times[i].milliseconds / static_cast<double>(options.steps),
        static_cast<double>(times[i].launches) / static_cast<double>(options.steps), times[i].name.c_str());
  return json;
}

nlohmann::ordered_json measure(const ModelRow& row, Shape shape, const Options& options) {
  if (options.device != "cpu") {
    at::empty({1}, at::device(require_device(options.device)));  // the allocator starts with its first tensor
    at::getDeviceAllocator(at::kCUDA)->emptyCache();
    at::getDeviceAllocator(at::kCUDA)->resetPeakStats(0);
  }
  Bench bench(row, shape, options);
  constexpr int64_t kWarmUp = 6;  // three of them before the step is recorded
  check_training(row.label, bench.take(kWarmUp));
  const double seconds = seconds_a_step(bench, options);
  const double rate = static_cast<double>(bench.tokens()) / seconds;
  const double mfu = 6 * static_cast<double>(bench.parameters()) * rate / kPeakFlops;
  std::printf("%-24s %-10s %8.1f M %10.1f K %9.2f %8.1f %6.1f %%\n", row.label.c_str(), shape.text().c_str(),
              static_cast<double>(bench.parameters()) * 1e-6, rate * 1e-3, seconds * 1e3, peak_gib(bench),
              100 * mfu);
  std::fflush(stdout);
  nlohmann::ordered_json json{{"model", row.label},          {"shape", shape.text()},
                              {"tokens_per_second", rate},   {"milliseconds", seconds * 1e3},
                              {"peak_gib", peak_gib(bench)}, {"mfu", mfu}};
  if (options.profile) json["profile"] = print_profile(bench, options);
  return json;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Training speed of language models");
  app.add_option("--device", options.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--precision", options.precision, "fp32 or bf16; default: fp32 on the CPU, bf16 on a GPU");
  app.add_option("--size", options.size, "tiny, 130m, 340m or 1.3b; default: tiny on the CPU, 130m on a GPU");
  app.add_option("--models", options.models, "mixers, PRISM with :L")->delimiter(',');
  app.add_option("--shapes", options.shapes, "BATCHxLENGTH")->delimiter(',');
  app.add_option("--vocabulary", options.vocabulary, "tokens")->capture_default_str();
  app.add_option("--passes", options.passes, "passes a figure")->capture_default_str();
  app.add_option("--steps", options.steps, "steps of a pass")->capture_default_str();
  app.add_option("--threads", options.threads, "threads of the CPU")->capture_default_str();
  app.add_flag("--profile", options.profile, "on a GPU: the time of every kernel");
  app.add_flag("--activation-checkpointing", options.checkpointing, "keep only the inputs of blocks");
  app.add_flag("--eager", options.eager, "on a GPU: without recording the step as a graph");
  app.add_option("--json", options.json, "file to write the figures to");
  CLI11_PARSE(app, argc, argv);
  const bool cpu = options.device == "cpu";
  if (options.precision.empty()) options.precision = cpu ? "fp32" : "bf16";
  if (options.size.empty()) options.size = cpu ? "tiny" : "130m";
  if (options.models.empty()) options.models = {"prism:2", "prism:1", "gated_delta_net", "softmax_attention"};
  if (options.shapes.empty())
    options.shapes = cpu ? std::vector<std::string>{"8x128"}
                         : std::vector<std::string>{"8x2048", "16x2048", "4x4096", "1x16384"};
  tune_allocator();
  set_log_level(LogLevel::kQuiet);
  at::set_num_threads(static_cast<int>(options.threads));
  std::printf(
      "%s, %s, size %s, vocabulary %s; median of %ld passes of %ld steps; MFU: 6 x parameters x tokens "
      "/ s over %.0f TFLOP/s\n",
      options.device.c_str(), options.precision.c_str(), options.size.c_str(),
      with_commas(options.vocabulary).c_str(), static_cast<long>(options.passes),
      static_cast<long>(options.steps), kPeakFlops * 1e-12);
  std::printf("%-24s %-10s %10s %12s %9s %8s %8s\n", "model", "shape", "params", "tokens/s", "ms/step", "GiB",
              "MFU");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const std::string& shape : options.shapes)
    for (const std::string& model : options.models)
      rows.push_back(measure(parse_model(model), parse_shape(shape), options));
  if (!options.json.empty()) write_file(options.json, rows.dump(2) + "\n");
  return 0;
}

}  // namespace
}  // namespace prism

int main(int argc, char** argv) try { return prism::run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "bench_lm: %s\n", error.what());
  return 1;
}
