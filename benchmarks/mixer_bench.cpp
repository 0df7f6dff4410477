// Mixers of the scalar-gate family against PRISM with L = 1: forward + backward of the operations at one
// shape, and of whole layers at one model width, in one process and in turns, medians. An operation's result
// is checked against its fp64 one first; a wrong one ends the program.
//   bench_mixer [--batch 128] [--length 200] [--heads 2] [--head-width 32] [--threads N] [--seconds S]
//               [--layers NAME,NAME,...]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "prism/core/error.h"
#include "prism/mixers/linear_attention.h"
#include "prism/mixers/mixer.h"
#include "prism/ops/precondition.h"
#include "prism/ops/prism_chunk.h"
#include "prism/ops/step_size.h"

namespace prism {
namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;

struct Options {
  int64_t batch = 128, length = 200, heads = 2, head_width = 32;
  int threads = 0;
  double seconds = 4;
  std::vector<std::string> layers = {"linear_attention",         "mamba2", "delta_net",
                                     "gated_delta_net",          "efla",   "comba",
                                     "preconditioned_delta_net", "mom"};
};

/// What the members of the family read; leaves that want gradients.
struct Inputs {
  Inputs(const Options& o, at::ScalarType type) {
    at::manual_seed(1);
    const auto leaf = [&](const Tensor& x) { return x.to(type).requires_grad_(); };
    const std::vector<int64_t> heads = {o.batch, o.length, o.heads};
    const auto wide = [&] { return at::randn({o.batch, o.length, o.heads, o.head_width}); };
    const auto unit = [](const Tensor& x) { return x / x.norm(2, -1, true); };
    q = leaf(unit(wide())), k = leaf(unit(wide())), p = leaf(unit(wide())), v = leaf(wide());
    positive_q = leaf(q.detach().abs()), positive_k = leaf(k.detach().abs());
    b = leaf(at::rand(heads)), g = leaf(-0.1 * at::rand(heads));
    curvature_b = leaf(at::rand(heads)), curvature_g = leaf(-0.1 * at::rand(heads));
    scale = leaf(at::full({o.heads}, -0.2));
    up = wide().to(type);
  }
  std::vector<Tensor> leaves() const {
    return {q, k, positive_q, positive_k, p, v, b, g, curvature_b, curvature_g, scale};
  }
  Tensor q, k, positive_q, positive_k, p, v, b, g, curvature_b, curvature_g, scale, up;
};

Tensor write(const Tensor& gate, const Tensor& value) { return (gate.unsqueeze(-1) * value).unsqueeze(2); }

struct Op {
  const char* name;
  Tensor (*run)(const Inputs& in);
};

const std::vector<Op>& operations() {
  static const std::vector<Op> all = {
      {"prism, L = 1",
       [](const Inputs& in) {
         return prism_chunk({.q = in.q, .k = in.k.unsqueeze(2), .w = write(in.b, in.v), .b = in.b, .g = in.g})
             .o;
       }},
      {"linear",
       [](const Inputs& in) {
         const Tensor zero = at::zeros_like(in.b).detach();
         return prism_chunk({.q = in.q, .k = in.k.unsqueeze(2), .w = in.v.unsqueeze(2), .b = zero, .g = zero})
             .o;
       }},
      {"linear_norm",
       [](const Inputs& in) {
         const Tensor zero = at::zeros_like(in.b).detach();
         return normalised(prism_chunk({.q = in.positive_q,
                                        .k = in.positive_k.unsqueeze(2),
                                        .w = with_normaliser_channel(in.v).unsqueeze(2),
                                        .b = zero,
                                        .g = zero})
                               .o);
       }},
      {"mamba2",
       [](const Inputs& in) {
         const Tensor zero = at::zeros_like(in.b).detach();
         return prism_chunk({.q = in.q, .k = in.k.unsqueeze(2), .w = write(in.b, in.v), .b = zero, .g = in.g})
                    .o +
                in.v;
       }},
      {"delta",
       [](const Inputs& in) {
         const Tensor zero = at::zeros_like(in.b).detach();
         return prism_chunk({.q = in.q, .k = in.k.unsqueeze(2), .w = write(in.b, in.v), .b = in.b, .g = zero})
             .o;
       }},
      {"efla",
       [](const Inputs& in) {
         const Tensor zero = at::zeros_like(in.b).detach(), b = exact_step_size(in.b, in.k);
         return prism_chunk({.q = in.q, .k = in.k.unsqueeze(2), .w = write(b, in.v), .b = b, .g = zero}).o;
       }},
      {"comba",
       [](const Inputs& in) {
         return prism_chunk({.q = in.q,
                             .k = in.k.unsqueeze(2),
                             .w = write(in.b, in.v),
                             .b = in.b * at::exp(-in.g),
                             .g = in.g,
                             .erase_read = in.p})
             .o;
       }},
      {"pgdn",
       [](const Inputs& in) {
         const Tensor key =
             precondition(in.k, in.curvature_b, in.curvature_g, in.scale, Packing::rows()).write_key;
         return prism_chunk({.q = in.q,
                             .k = key.unsqueeze(2),
                             .w = write(in.b, in.v),
                             .b = in.b,
                             .g = in.g,
                             .erase_read = in.k})
             .o;
       }},
  };
  return all;
}

std::vector<Tensor> train(const Op& op, const Inputs& in) {
  const Tensor o = op.run(in);
  auto all = torch::autograd::grad({o}, in.leaves(), {in.up}, false, false, /*allow_unused=*/true);
  all.push_back(o.detach());
  return all;
}

/// One row of the batch in fp32 against fp64.
void check_result(const Op& op, const Options& options) {
  Options small = options;
  small.batch = 1;
  const auto found = train(op, Inputs(small, at::kFloat)), exact = train(op, Inputs(small, at::kDouble));
  for (size_t i = 0; i < found.size(); ++i) {
    if (!exact[i].defined()) continue;
    const double error = ((found[i].to(at::kDouble) - exact[i]).norm() / exact[i].norm()).item<double>();
    check(error < 3e-5, "bench mixer: {}, tensor {} is off by {:.1e}", op.name, i, error);
  }
}

struct Side {
  std::string name;
  std::function<void()> action;
  std::vector<double> times = {};
  double median() {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }
};

/// Runs the sides in turns for `seconds` (at least five turns) after one to warm up; the first is the
/// measure.
void race(std::vector<Side> sides, double seconds) {
  for (Side& side : sides) side.action();
  const auto start = Clock::now();
  for (int turn = 0; turn < 5 || Clock::now() - start < std::chrono::duration<double>(seconds); ++turn)
    for (Side& side : sides) {
      const auto before = Clock::now();
      side.action();
      side.times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - before).count());
    }
  const double unit = sides.front().median();
  for (Side& side : sides)
    fmt::print("  {:<28} {:>8.2f} ms  {:>5.2f}\n", side.name, side.median(), side.median() / unit);
}

void race_operations(const Options& options) {
  fmt::print("operations, forward + backward, fp32, (B,T,H,K=V) = ({},{},{},{}), {} threads\n", options.batch,
             options.length, options.heads, options.head_width, at::get_num_threads());
  const Inputs in(options, at::kFloat);
  std::vector<Side> sides;
  for (const Op& op : operations()) {
    check_result(op, options);
    sides.push_back({op.name, [&in, &op] { train(op, in); }});
  }
  race(std::move(sides), options.seconds);
}

std::shared_ptr<Mixer> make_layer(const std::string& name, const Options& options) {
  const auto spec = make_mixer_spec(name);
  Settings settings;
  spec->bind(settings, "mixer");
  settings.set("heads", options.heads, "bench");
  if (name == "prism") settings.set("steps", int64_t{1}, "bench");
  if (name == "mamba2") {  // the same state: N = P = the head width
    settings.set("expand", int64_t{1}, "bench");
    settings.set("state_width", options.head_width, "bench");
  }
  return spec->build(options.heads * options.head_width, options.length);
}

void race_layers(const Options& options) {
  const int64_t width = options.heads * options.head_width;
  fmt::print("layers at model width {}, forward + backward, fp32\n", width);
  const Tensor x = at::randn({options.batch, options.length, width}).requires_grad_(),
               up = at::randn_like(x).detach();
  std::vector<std::string> names{"prism"};
  names.insert(names.end(), options.layers.begin(), options.layers.end());
  std::vector<Side> sides;
  sides.reserve(names.size());
  for (const std::string& name : names)
    sides.push_back({name == "prism" ? "prism, L = 1" : name, [&x, &up, layer = make_layer(name, options)] {
                       layer->forward(x, Packing::rows()).backward(up);
                       layer->zero_grad();
                       x.mutable_grad() = Tensor();
                     }});
  race(std::move(sides), options.seconds);
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Mixers of the scalar-gate family against PRISM with L = 1", "bench_mixer");
  app.add_option("--batch", options.batch);
  app.add_option("--length", options.length);
  app.add_option("--heads", options.heads);
  app.add_option("--head-width", options.head_width);
  app.add_option("--threads", options.threads, "0: as many as cores");
  app.add_option("--seconds", options.seconds, "of each race");
  app.add_option("--layers", options.layers)->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  if (options.threads > 0) at::set_num_threads(options.threads);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // as docs/op.md advises: no page faults in every step
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  race_operations(options);
  race_layers(options);
  return 0;
}

}  // namespace
}  // namespace prism

int main(int argc, char** argv) {
  try {
    return prism::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
