#pragma once
#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "prism/core/config.h"
#include "prism/distributed/ranks.h"

namespace prism::cli {

/// Flags that every command takes.
struct Globals {
  bool json = false, quiet = false;
  int64_t threads = 0;  ///< 0: as many as the machine has
  int64_t seed = 42;
  std::string device = "cpu";
};

/// Flags made from a table of settings: `--learning-rate 0.1` for the field learning_rate, `--tied` and
/// `--no-tied` for a true-or-false one. Values given on the command line are applied over defaults and
/// recipe.
class SettingFlags {
 public:
  /// Adds one flag a setting, grouped by section in --help. A flag that `app` has already (--seed) stays.
  void declare(CLI::App& app, const Settings& settings);
  /// Assigns the flags that were given.
  void apply(Settings& settings) const;
  /// "section.name" of the flags that were given.
  std::vector<std::string> given() const;

 private:
  std::map<std::string, std::string> texts_;  // by section.name
  std::map<std::string, bool> switches_;
  std::vector<std::pair<std::string, CLI::Option*>> options_;
};

/// One command: a thin file that parses, calls the library and prints.
class Command {
 public:
  virtual ~Command() = default;
  /// Adds the command's flags. `arguments` are the raw words after the command's name, for commands whose
  /// flags depend on one of them (`train --mixer NAME`).
  virtual void declare(CLI::App& app, const std::vector<std::string>& arguments) = 0;
  /// Does the work; results to stdout. The return value is the exit status.
  virtual int run(const Globals& globals) = 0;
};

/// A line of the command list.
struct CommandEntry {
  std::string name, summary, example;
  std::unique_ptr<Command> (*make)();
};

/// Where a training works.
struct Placement {
  c10::Device device;
  std::shared_ptr<Ranks> ranks;  ///< the processes that torchrun or mpirun started; nullptr: this one alone
  bool leads() const { return !ranks || ranks->leads(); }
};
/// Joins the other processes, if the environment speaks of any. Each has an equal share of the machine's
/// threads, where nothing else says how many, and with --device cuda the GPU of its local rank; ranks but 0
/// write nothing but errors.
Placement place_process(const Globals& globals);

/// The value of `--name VALUE` or `--name=VALUE` among raw words; "" when absent.
std::string peek_argument(const std::vector<std::string>& arguments, const std::string& name);

}  // namespace prism::cli
