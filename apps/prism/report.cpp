// Hands over to the Python program that draws the report: pictures need a plotting library.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "commands.h"
#include "prism/compare/comparison.h"
#include "prism/core/error.h"
#include "prism/train/run_folder.h"
#include "python_script.h"

namespace prism::cli {
namespace {

class ReportCommand : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("RUN", run_, "run folder of prism train, or folder of prism compare")->required();
    app.add_option("--python", python_, "Python with matplotlib (default: $PRISM_PYTHON, else python3)");
  }

  int run(const Globals& globals) override {
    const bool comparison = std::filesystem::exists(CompareFolder(run_).summary());
    if (!comparison) RunFolder::open(run_);
    const std::string python = python_program(python_);
    const std::string script = python_script(comparison ? "compare.py" : "report.py");
    std::fflush(nullptr);
    ::execlp(python.c_str(), python.c_str(), script.c_str(), run_.c_str(), globals.json ? "--json" : nullptr,
             nullptr);
    fail("report: cannot start {}: {}; --python names another", python, std::strerror(errno));
  }

 private:
  std::string run_, python_;
};

}  // namespace

std::unique_ptr<Command> make_report() { return std::make_unique<ReportCommand>(); }

}  // namespace prism::cli
