#include <fmt/format.h>

#include "commands.h"
#include "prism/train/run_summary.h"

namespace prism::cli {
namespace {

class InfoCommand : public Command {
 public:
  void declare(CLI::App& app, const std::vector<std::string>&) override {
    app.add_option("RUN", run_, "run folder of prism train")->required();
  }
  int run(const Globals& globals) override {
    fmt::print("{}\n", globals.json ? run_summary_json(run_) : run_summary_text(run_));
    return 0;
  }

 private:
  std::string run_;
};

}  // namespace

std::unique_ptr<Command> make_info() { return std::make_unique<InfoCommand>(); }

}  // namespace prism::cli
