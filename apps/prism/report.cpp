// Hands over to the Python program that draws the report: pictures need a plotting library.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "commands.h"
#include "prism/core/error.h"
#include "prism/train/run_folder.h"

namespace prism::cli {
namespace {

namespace fs = std::filesystem;

/// report.py of an installation (share/prism beside bin) or of a source tree (build/<preset>/bin/prism).
fs::path find_script() {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  for (const char* relative : {"../share/prism/report.py", "../../../python/prism/report.py"})
    if (fs::exists(program / relative)) return fs::canonical(program / relative);
  fail("report: report.py is neither in ../share/prism nor in the source tree of {}", program.string());
}

class ReportCommand : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("RUN", run_, "run folder of prism train")->required();
    app.add_option("--python", python_, "Python with matplotlib (default: $PRISM_PYTHON, else python3)");
  }

  int run(const Globals& globals) override {
    RunFolder::open(run_);
    const char* variable = std::getenv("PRISM_PYTHON");
    if (python_.empty()) python_ = variable ? variable : "python3";
    const std::string script = find_script().string();
    std::fflush(nullptr);
    ::execlp(python_.c_str(), python_.c_str(), script.c_str(), run_.c_str(),
             globals.json ? "--json" : nullptr, nullptr);
    fail("report: cannot start {}: {}; --python names another", python_, std::strerror(errno));
  }

 private:
  std::string run_, python_;
};

}  // namespace

std::unique_ptr<Command> make_report() { return std::make_unique<ReportCommand>(); }

}  // namespace prism::cli
