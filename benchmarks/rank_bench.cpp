// Full ranking at the sizes the project promises: time, share of the fused multiply-add rate, peak memory.
//   bench_rank [users items width]
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>
#include <omp.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "prism/core/random.h"
#include "prism/kernels/ranking.h"

namespace {

using namespace prism;

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::vector<float> random_vectors(int64_t count, const char* stream) {
  RandomStream random(1, stream);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random.uniform() - 0.5);
  return values;
}

/// LibTorch's matrix product on as many threads, in GFLOP/s.
double sgemm_rate() {
  const at::Tensor a = at::empty({1024, 512}).fill_(0.5), b = at::empty({512, 1024}).fill_(0.25);
  double best = 1e9;
  for (int i = 0; i < 20; ++i) best = std::min(best, seconds_of([&] { at::mm(a, b); }));
  return 2.0 * 1024 * 512 * 1024 / best / 1e9;
}

void report(const char* name, double seconds, double users, double flops, double sgemm) {
  fmt::print("{:<28} {:8.2f} s {:10.0f} users/s {:7.1f} GFLOP/s ({:.0f} % of sgemm)  peak {:.0f} MiB\n", name,
             seconds, users / seconds, flops / seconds / 1e9, 100 * flops / seconds / 1e9 / sgemm,
             peak_mib());
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t users = argc > 3 ? std::atoll(argv[1]) : 20000,
                items = argc > 3 ? std::atoll(argv[2]) : 1000000, width = argc > 3 ? std::atoll(argv[3]) : 64,
                k = 10, seen_each = 50;
  const double sgemm = sgemm_rate(),
               flops = 2.0 * static_cast<double>(users * width) * static_cast<double>(items);
  const std::vector<float> table = random_vectors(items * width, "items"),
                           hidden = random_vectors(users * width, "users");
  fmt::print(
      "{} users x {} items, width {}, {} threads; sgemm {:.0f} GFLOP/s; item table {:.0f} MiB, peak so far "
      "{:.0f} MiB\n",
      users, items, width, omp_get_max_threads(), sgemm,
      static_cast<double>(items * width) * sizeof(float) / (1 << 20), peak_mib());
  kernels::ItemPanels panels;
  const double packing = seconds_of([&] { panels = kernels::ItemPanels(table.data(), items, width); });
  fmt::print("{:<28} {:8.2f} s\n", "packing", packing);

  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> seen, targets;
  RandomStream random(1, "targets");
  for (int64_t u = 0; u < users; ++u) {
    for (int64_t i = 0; i < seen_each; ++i) seen.push_back(static_cast<int32_t>(items * i / seen_each));
    offsets.push_back(static_cast<int64_t>(seen.size()));
    targets.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(items))));
  }
  const kernels::RankUsers rank_users{.vectors = hidden.data(),
                                      .count = users,
                                      .seen_offsets = offsets.data(),
                                      .seen = seen.data(),
                                      .allowed = nullptr};
  std::vector<kernels::RankCounts> counts(static_cast<size_t>(users));
  report("rank_targets", seconds_of([&] { rank_targets(panels, rank_users, targets.data(), counts.data()); }),
         static_cast<double>(users), flops, sgemm);

  std::vector<int32_t> top(static_cast<size_t>(users * k));
  std::vector<float> scores(top.size());
  std::vector<int64_t> found(static_cast<size_t>(users));
  report("top_items, k = 10",
         seconds_of([&] { top_items(panels, rank_users, k, top.data(), scores.data(), found.data()); }),
         static_cast<double>(users), flops, sgemm);

  double auc = 0;
  for (const auto& c : counts) auc += static_cast<double>(c.lower()) / static_cast<double>(c.candidates - 1);
  auc /= static_cast<double>(users);
  fmt::print("mean AUC of random targets {:.3f}\n", auc);
  return auc > 0.45 && auc < 0.55 ? 0 : 1;
}
