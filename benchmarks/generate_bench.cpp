// Speed of generation: ./run bench generate [--device cuda]
//
// Decoding as `prism lm generate` does it: a step of the model, logits, the likeliest token, which goes back
// through the host. The weights are random. Steps after a prefill are first compared with the forward pass
// over the same tokens. A context is read for one sequence and its state copied for the batch. Every figure
// is the median of passes; the share is of the time that the bytes a step cannot avoid (weights, state,
// cache) take at the speed of a large copy in the same run.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "model_row.h"
#include "prism/core/clock.h"
#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/core/memory.h"
#include "prism/core/out_of_memory.h"
#include "prism/core/random.h"
#include "prism/core/text.h"
#include "prism/models/sampler.h"
#include "prism/ops/device.h"
#include "prism/train/language_model_recipe.h"
#include "serve/decoder.h"

namespace prism {
namespace {

constexpr int64_t kVocabulary = 50257;

struct Options {
  std::string device = "cpu", size = "130m", json;
  std::vector<std::string> models = {"prism:2", "gated_delta_net", "softmax_attention"};
  std::vector<int64_t> batches, contexts = {16, 2048, 16384};
  Precision precision = Precision::kFp32;
  int64_t steps = 20, passes = 3, threads = 2;
  bool eager = false;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void wait(c10::Device device) {
  if (device.is_cuda()) c10::impl::getDeviceGuardImpl(device.type())->synchronizeDevice(device.index());
}

/// Bytes read and written a second by a copy of memory that no cache holds.
double copy_bandwidth(c10::Device device) {
  const int64_t floats = device.is_cuda() ? int64_t{1} << 29 : int64_t{1} << 27;
  const at::Tensor from = at::ones({floats}, at::device(device).dtype(at::kFloat)), to = at::empty_like(from);
  std::vector<double> seconds;
  for (int repeat = 0; repeat < 7; ++repeat) {
    wait(device);
    const double began = steady_seconds();
    to.copy_(from);
    wait(device);
    seconds.push_back(steady_seconds() - began);
  }
  return 2 * 4 * static_cast<double>(floats) / median(seconds);
}

std::shared_ptr<LanguageModel> make_model(const std::string& text, const Options& options,
                                          c10::Device device) {
  const ModelRow row = parse_model(text);
  LanguageModelRecipe recipe(row.mixer);
  recipe.settings.set("model.size", options.size, "bench");
  if (row.steps) recipe.settings.set("mixer.steps", *row.steps, "bench");
  recipe.model.fit_to_size(recipe.settings);
  auto model = std::make_shared<LanguageModel>(recipe.model, kVocabulary, 1);
  model->to(device);
  model->eval();
  return model;
}

at::Tensor random_tokens(int64_t count) {
  RandomStream random(1, "bench tokens");
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  for (int64_t& token : tokens) token = static_cast<int64_t>(random.uniform() * kVocabulary);
  return at::tensor(tokens, at::kLong);
}

/// Takes tokens [1,T] into the state, as TextGenerator::read does.
void prefill(LanguageModel& model, const at::Tensor& tokens, LanguageModelState& state, Precision precision) {
  constexpr int64_t kChunk = 1024;
  const c10::Device device = model.embedding().device();
  const Autocast autocast(device.type(), precision);
  for (const at::Tensor& chunk : tokens.split(kChunk, 1))
    model.prefill(chunk.to(device), Packing::rows(), state);
}

double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

/// Logits [tokens,vocabulary] of the last tokens, from one forward pass.
at::Tensor forward_logits(LanguageModel& model, const at::Tensor& tokens, int64_t last, Precision precision) {
  const c10::Device device = model.embedding().device();
  const Autocast autocast(device.type(), precision);
  const at::Tensor h = model.forward(tokens.to(device), Packing::rows());
  return model.logits(h.narrow(1, tokens.size(1) - last, last)).to(at::kCPU, at::kFloat)[0];
}

/// Greedy steps after a prefill give the logits of a forward pass in fp32: to 1e-4 in fp32, else to one and a
/// half times what the forward pass in the same precision is off by.
void check_decoding(const std::string& label, LanguageModel& model, const Options& options) {
  constexpr int64_t kPrompt = 40, kSteps = 12;
  at::Tensor tokens = random_tokens(kPrompt).unsqueeze(0);
  LanguageModelState state;
  prefill(model, tokens.narrow(1, 0, kPrompt - 1), state, options.precision);
  std::vector<at::Tensor> steps;
  {
    Decoder decoder(model, state, {.precision = options.precision, .record = !options.eager});
    for (int64_t i = 0; i < kSteps; ++i) {
      const at::Tensor logits = decoder.step(tokens.select(1, kPrompt - 1 + i));
      steps.push_back(logits.to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true));
      tokens = at::cat({tokens, likeliest_tokens(logits).to(at::kCPU).unsqueeze(0)}, 1);
    }
  }
  const at::Tensor read = tokens.narrow(1, 0, kPrompt + kSteps - 1);
  const at::Tensor expected = forward_logits(model, read, kSteps, Precision::kFp32);
  double tolerance = 1e-4;
  if (options.precision != Precision::kFp32) {
    const at::Tensor same = forward_logits(model, read, kSteps, options.precision);
    for (int64_t i = 0; i < kSteps; ++i)
      tolerance = std::max(tolerance, 1.5 * relative_error(same[i], expected[i]));
  }
  for (int64_t i = 0; i < kSteps; ++i) {
    const double error = relative_error(steps[static_cast<size_t>(i)][0], expected[i]);
    check(error <= tolerance,
          "bench generate: {}: logits of step {} differ from the forward pass by {:.1e} (at most {:.1e})",
          label, i + 1, error, tolerance);
  }
}

/// The state of one sequence, once for each of `batch`.
LanguageModelState repeated(const LanguageModelState& one, int64_t batch) {
  LanguageModelState all = one;
  for (MixerState& block : all.blocks) {
    block.lengths.assign(static_cast<size_t>(batch), block.lengths.front());
    for (auto& [name, tensor] : block.tensors) {
      std::vector<int64_t> repeats(static_cast<size_t>(tensor.dim()), 1);
      repeats[0] = batch;
      tensor = tensor.repeat(repeats);
    }
  }
  return all;
}

/// What a step of the batch must move: all weights once; a state of fixed size read and written, a cache
/// read.
double bytes_a_step(const LanguageModel& model, const LanguageModelState& state, int64_t batch,
                    int64_t tokens, Precision precision) {
  const double weight = precision == Precision::kBf16 ? 2 : 4;
  double bytes = weight * static_cast<double>(parameter_count(model));
  if (model.state_size(1) != model.state_size(2))
    return bytes + static_cast<double>(batch * model.state_size(tokens)) * weight;
  for (const MixerState& block : state.blocks)
    for (const auto& [name, tensor] : block.tensors) bytes += 2 * static_cast<double>(tensor.nbytes());
  return bytes;
}

/// Seconds a step, the median of passes, without those before the recording.
double seconds_a_step(LanguageModel& model, LanguageModelState& state, int64_t batch,
                      const Options& options) {
  const at::NoGradGuard no_gradient;
  Decoder decoder(model, state, {.precision = options.precision, .record = !options.eager});
  at::Tensor tokens = random_tokens(batch);
  const auto take = [&](int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) tokens = likeliest_tokens(decoder.step(tokens)).to(at::kCPU);
  };
  take(5);
  std::vector<double> passes;
  for (int64_t pass = 0; pass < options.passes; ++pass) {
    const double began = steady_seconds();
    take(options.steps);
    passes.push_back((steady_seconds() - began) / static_cast<double>(options.steps));
  }
  return median(passes);
}

struct Machine {
  c10::Device device;
  double bandwidth;
};

/// A row of the table; nothing where the caches do not fit.
nlohmann::ordered_json measure(const std::string& label, LanguageModel& model, const LanguageModelState& one,
                               int64_t context, int64_t batch, const Machine& machine,
                               const Options& options) {
  std::printf("%-20s %6ld %8ld ", label.c_str(), static_cast<long>(batch), static_cast<long>(context));
  const double needed =
      4 * 2.3 * static_cast<double>(batch * model.state_size(context));  // a copy while it grows
  if (machine.device.is_cpu() && needed > static_cast<double>(free_memory())) {
    std::printf("needs %.1f GiB\n", needed / 0x1p30);
    return nullptr;
  }
  try {
    LanguageModelState state = repeated(one, batch);
    const double seconds = seconds_a_step(model, state, batch, options);
    const double bytes = bytes_a_step(model, state, batch, context, options.precision);
    const double rate = static_cast<double>(batch) / seconds, share = bytes / machine.bandwidth / seconds;
    std::printf("%12.1f %10.3f %12.1f %8.1f %%\n", rate, seconds * 1e3, bytes * 1e-6, 100 * share);
    std::fflush(stdout);
    return {{"model", label},        {"batch", batch}, {"context", context}, {"tokens_per_second", rate},
            {"bytes_a_step", bytes}, {"share", share}};
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
    std::printf("out of memory\n");
    return nullptr;
  }
}

/// Every context, the longer ones by reading on; then how flat.
void measure_model(const std::string& label, const Machine& machine, const Options& options,
                   nlohmann::ordered_json& rows) {
  const at::NoGradGuard no_gradient;
  const auto model = make_model(label, options, machine.device);
  check_decoding(label, *model, options);
  const at::Tensor tokens = random_tokens(options.contexts.back()).unsqueeze(0);
  LanguageModelState state;
  int64_t read = 0;
  std::map<int64_t, std::vector<double>> rates;  // by batch
  for (const int64_t context : options.contexts) {
    prefill(*model, tokens.narrow(1, read, context - read), state, options.precision);
    read = context;
    for (const int64_t batch : options.batches) {
      auto row = measure(label, *model, state, context, batch, machine, options);
      if (row.is_null()) continue;
      rates[batch].push_back(row["tokens_per_second"]);
      rows.push_back(std::move(row));
    }
  }
  for (const auto& [batch, own] : rates)
    std::printf("%-20s %6ld slowest context / fastest: %.3f\n", label.c_str(), static_cast<long>(batch),
                *std::min_element(own.begin(), own.end()) / *std::max_element(own.begin(), own.end()));
}

/// What drawing a token on the host adds, from the logits of a trained model's steepness.
void print_sampler() {
  RandomStream random(1, "bench logits");
  std::vector<float> logits(kVocabulary);
  for (float& logit : logits) logit = static_cast<float>(2.5 * std::log(1 / (1 - random.uniform())));
  const std::pair<const char*, SamplerConfig> cases[] = {
      {"temperature 0, penalty", {.temperature = 0, .repetition_penalty = 1.1}},
      {"temperature 1", {}},
      {"top_k 40", {.top_k = 40}},
      {"top_p 0.9", {.top_p = 0.9}}};
  std::printf("drawing from %s logits:", with_commas(kVocabulary).c_str());
  for (const auto& [name, config] : cases) {
    std::vector<double> seconds;
    for (int i = 0; i < 51; ++i) {
      const double uniform = random.uniform(), began = steady_seconds();
      const int32_t drawn = sample_token(config, logits, {}, uniform);
      seconds.push_back(steady_seconds() - began);
      check(drawn >= 0, "bench generate: drew {}", drawn);
    }
    std::printf("  %s %.2f ms", name, 1e3 * median(seconds));
  }
  std::printf("\n");
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of generation");
  app.add_option("--device", options.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--models", options.models, "mixers, PRISM with :L")->delimiter(',')->capture_default_str();
  app.add_option("--size", options.size, "tiny, 130m, 340m or 1.3b")->capture_default_str();
  app.add_option("--batch", options.batches, "sequences; default: 1,8 on the CPU, 1,256 on a GPU")
      ->delimiter(',');
  app.add_option("--contexts", options.contexts, "tokens read before")->delimiter(',')->capture_default_str();
  app.add_option("--steps", options.steps, "steps of a pass")->capture_default_str();
  app.add_option("--passes", options.passes, "passes a figure")->capture_default_str();
  app.add_option("--threads", options.threads, "threads of the CPU")->capture_default_str();
  app.add_flag("--eager", options.eager, "on a GPU: without recording steps as a graph");
  app.add_option("--json", options.json, "file to write the figures to");
  CLI11_PARSE(app, argc, argv);
  const bool cpu = options.device == "cpu";
  if (options.batches.empty())
    options.batches = cpu ? std::vector<int64_t>{1, 8} : std::vector<int64_t>{1, 256};
  options.precision = cpu ? Precision::kFp32 : Precision::kBf16;
  std::sort(options.contexts.begin(), options.contexts.end());
  tune_allocator();
  at::set_num_threads(static_cast<int>(options.threads));
  const c10::Device device = require_device(options.device);
  const Machine machine{device, copy_bandwidth(device)};
  std::printf("%s, %s, size %s, %ld threads; a large copy reads and writes %.1f GB/s\n",
              options.device.c_str(), std::string(enum_name(options.precision)).c_str(), options.size.c_str(),
              static_cast<long>(options.threads), machine.bandwidth * 1e-9);
  print_sampler();
  std::printf("%-20s %6s %8s %12s %10s %12s %10s\n", "model", "batch", "context", "tokens/s", "ms/step",
              "MB/step", "of limit");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const std::string& label : options.models) measure_model(label, machine, options, rows);
  if (!options.json.empty()) write_file(options.json, rows.dump(2) + "\n");
  return 0;
}

}  // namespace
}  // namespace prism

int main(int argc, char** argv) try { return prism::run(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "bench_generate: %s\n", error.what());
  return 1;
}
