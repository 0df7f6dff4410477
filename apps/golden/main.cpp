// prism_golden DIR: checks every vector file of DIR whose operation exists, in fp64, fp32 and bf16.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>

#include "golden.h"
#include "prism/core/error.h"
#include "prism/ops/device.h"

namespace prism::golden {
namespace {

namespace fs = std::filesystem;

constexpr at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16};
constexpr const char* kTypeNames[] = {"fp64", "fp32", "bf16"};

/// The largest error of a tensor over an operation's files, as a share of what that file allows.
struct Worst {
  double error = 0, allowed = 0;
  void add(double e, double limit) {
    if (allowed == 0 || e / limit > error / allowed) error = e, allowed = limit;
  }
  bool over() const { return !(error <= allowed); }
};

struct Report {
  int files = 0;
  std::map<std::string, std::array<Worst, 3>> tensors;
};

std::vector<fs::path> vector_files(const fs::path& folder) {
  check(fs::is_directory(folder), "golden: {} is not a folder", folder.string());
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  check(!files.empty(), "golden: {} holds no .safetensors file", folder.string());
  return files;
}

void add_file(const Safetensors& file, const Mixer& mixer, const fs::path& path, const Setting& setting,
              Report& report) {
  ++report.files;
  for (int t = 0; t < 3; ++t) {
    try {
      for (const auto& [name, error] : check_file(file, mixer, kTypes[t], setting))
        report.tensors[name][t].add(error, tolerance(file, mixer, name, kTypes[t]));
    } catch (const std::exception& problem) {
      fail("{} in {}: {}", path.filename().string(), kTypeNames[t], problem.what());
    }
  }
}

/// Prints an operation's rows; the number of tensors over their tolerance.
int print(const std::string& name, const Report& report) {
  int over = 0;
  for (const auto& [tensor, worst] : report.tensors) {
    fmt::print("{:<14}{:>5}  {:<16}", name, report.files, tensor);
    for (const Worst& w : worst) {
      fmt::print("  {:>8.1e} /{:>7.0e}{}", w.error, w.allowed, w.over() ? " OVER" : "     ");
      over += w.over();
    }
    fmt::print("\n");
  }
  return over;
}

int run(const fs::path& folder, const std::string& only, const Setting& setting) {
  std::map<std::string, Report> reports;
  std::map<std::string, int> skipped;
  for (const fs::path& path : vector_files(folder)) {
    const Safetensors file = read_safetensors(path);
    const auto name = file.metadata.find("mixer");
    check(name != file.metadata.end(), "{}: no \"mixer\" in the metadata", path.string());
    if (!only.empty() && name->second != only) continue;
    if (const Mixer* mixer = find_mixer(name->second))
      add_file(file, *mixer, path, setting, reports[name->second]);
    else
      ++skipped[name->second];
  }
  int over = 0, files = 0;
  fmt::print("{:<14}{:>5}  {:<16}  {:<22}  {:<22}  {:<22}\n", "op", "files", "tensor", "fp64 error / allowed",
             "fp32", "bf16");
  for (const Mixer& mixer : mixers()) {
    const auto report = reports.find(mixer.name);
    if (report == reports.end()) continue;
    over += print(mixer.name, report->second);
    files += report->second.files;
  }
  if (!skipped.empty()) {
    fmt::print("skipped, no such op yet:");
    for (const auto& [name, count] : skipped) fmt::print(" {} ({})", name, count);
    fmt::print("\n");
  }
  check(files > 0, "golden: nothing was checked");
  fmt::print("{} files checked, {}\n", files,
             over ? fmt::format("{} errors over their tolerance", over) : "all within");
  return over ? 1 : 0;
}

}  // namespace
}  // namespace prism::golden

int main(int argc, char** argv) {
  CLI::App app("Checks the operations against golden vectors, in fp64, fp32 and bf16", "prism_golden");
  std::string folder, only, device = "cpu";
  prism::golden::Setting setting;
  app.add_option("DIR", folder, "folder of .safetensors files")->required();
  app.add_option("--op", only, "this operation alone");
  app.add_option("--device", device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--widths", setting.widths, "fill head widths of recurrences up to a multiple of this");
  CLI11_PARSE(app, argc, argv);
  try {
    setting.device = prism::require_device(device);
    return prism::golden::run(folder, only, setting);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
