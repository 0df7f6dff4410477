// prism export RUN: vectors and weights for other programs.
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "prism/ops/device.h"
#include "prism/serve/export_run.h"
#include "prism/serve/run_log.h"

namespace prism::cli {
namespace {

class Export : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("RUN", run_, "run folder of prism train")->required();
    app.add_option("--out,-o", out_, "folder for the files; default RUN/export");
    app.add_option("--format", formats_, "of the vectors: tsv,npy,safetensors")
        ->delimiter(',')
        ->check(CLI::IsMember({"tsv", "npy", "safetensors"}))
        ->capture_default_str();
    app.add_flag("--users", users_, "also the vectors of all users of the log");
    app.add_option("--data", data_, "the log, where it is not the file that the run was trained on");
  }

  int run(const Globals& globals) override {
    const auto has = [&](const char* name) {
      return std::find(formats_.begin(), formats_.end(), name) != formats_.end();
    };
    const ExportFiles files{.tsv = has("tsv"), .npy = has("npy"), .safetensors = has("safetensors")};
    const std::filesystem::path folder =
        out_.empty() ? std::filesystem::path(run_) / "export" : std::filesystem::path(out_);
    const Run run = open_run(run_, require_device(globals.device));
    std::vector<std::string> written = export_run(run, folder, files);
    if (users_)
      for (std::string& name : export_users(run, read_run_log(run, data_).log, folder, files))
        written.push_back(std::move(name));
    if (globals.json)
      fmt::print("{}\n", nlohmann::json{{"folder", folder.string()}, {"files", written}}.dump());
    else
      for (const std::string& name : written) fmt::print("{}\n", (folder / name).string());
    return 0;
  }

 private:
  std::string run_, out_, data_;
  std::vector<std::string> formats_ = {"tsv", "npy", "safetensors"};
  bool users_ = false;
};

}  // namespace

std::unique_ptr<Command> make_export() { return std::make_unique<Export>(); }

}  // namespace prism::cli
