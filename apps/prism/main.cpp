// The CLI: finds the command, parses its flags, runs it, and turns exceptions into one line and an exit
// status (0 done, 1 bad data or failed run, 2 wrong usage, 3 internal failure).
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "commands.h"
#include "help_formatter.h"
#include "prism/core/error.h"
#include "prism/core/log.h"
#include "prism/core/memory.h"
#include "prism/core/out_of_memory.h"
#include "prism/core/text.h"
#include "prism/core/version.h"

namespace prism::cli {
namespace {

/// All commands, or those of a family ("lm ").
void print_command_list(const std::string& family = "") {
  fmt::print(
      "prism: next-item recommenders and language models on exact parallel recurrences\n\n"
      "usage: prism {}COMMAND [FLAGS]\n\n",
      family);
  for (const CommandEntry& entry : commands())
    if (entry.name.starts_with(family)) fmt::print("  {:<12} {}\n", entry.name, entry.summary);
  fmt::print("\nprism COMMAND --help explains a command; prism --version prints the build's facts.\n");
}

void add_global_flags(CLI::App& app, Globals& globals) {
  const auto add = [](CLI::Option* option) { return option->group("Every command"); };
  add(app.add_flag("--json", globals.json, "results as JSON on stdout"));
  add(app.add_flag("--quiet", globals.quiet, "no messages but warnings and errors"));
  add(app.add_option("--threads", globals.threads, "threads of the CPU (default: all)")
          ->check(CLI::Range(1, 1024)));
  add(app.add_option("--seed", globals.seed, "seed of every random number")
          ->check(CLI::NonNegativeNumber)
          ->capture_default_str());
  add(app.add_option("--device", globals.device, "cpu, cuda or cuda:N")->capture_default_str());
}

/// Takes the first word that is no flag out of the words; "" where there is none. Global flags may stand
/// before it.
std::string take_word(std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--threads" || words[i] == "--seed" || words[i] == "--device") {
      ++i;  // its value
    } else if (!words[i].starts_with("-")) {
      std::string word = words[i];
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
      return word;
    }
  }
  return "";
}

/// Whether commands of two words share this first one.
bool is_family(const std::string& name) {
  return std::any_of(commands().begin(), commands().end(),
                     [&](const CommandEntry& entry) { return entry.name.starts_with(name + " "); });
}

/// The command's name: one word, or two where commands share the first ("lm train").
std::string take_command_name(std::vector<std::string>& words) {
  std::string name = take_word(words);
  if (!is_family(name)) return name;
  const std::string second = take_word(words);
  return second.empty() ? name : name + " " + second;
}

const CommandEntry& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const CommandEntry& entry : commands()) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  usage_error("unknown command \"{}\"{}; prism lists the commands", shortened(name),
              did_you_mean(name, names));
}

std::string unknown_flag_message(const CLI::App& app, const CLI::ParseError& error) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  for (const std::string& word : app.remaining()) {
    if (!word.starts_with("-")) continue;
    const size_t start = word.find_first_not_of('-'), end = word.find('=');
    const std::string nearest =
        start < end ? nearest_name(word.substr(start, end == word.npos ? end : end - start), names) : "";
    return fmt::format("unknown flag {}{}", word,
                       nearest.empty() ? "" : fmt::format(" (did you mean \"--{}\"?)", nearest));
  }
  return error.what();
}

/// --learning_rate is --learning-rate: settings may be spelled as in TOML.
void dash_flags(std::vector<std::string>& words) {
  for (std::string& word : words)
    if (word.starts_with("--"))
      std::replace(word.begin(),
                   word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size())), '_',
                   '-');
}

int run_command(const std::string& name, std::vector<std::string> words) {
  dash_flags(words);
  const CommandEntry& entry = find_command(name);
  CLI::App app(entry.summary, "prism " + name);
  app.footer("Example: " + entry.example);
  app.formatter(std::make_shared<HelpFormatter>());
  Globals globals;
  add_global_flags(app, globals);
  const std::unique_ptr<Command> command = entry.make();
  command->declare(app, words);
  try {
    std::reverse(words.begin(), words.end());  // CLI11 takes them last word first
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    usage_error("{}: {} (prism {} --help)", name, unknown_flag_message(app, error), name);
  }
  if (globals.quiet) set_log_level(LogLevel::kQuiet);
  if (globals.threads > 0) at::set_num_threads(static_cast<int>(globals.threads));
  return command->run(globals);
}

int run_main(std::vector<std::string> words) {
  if (words.empty() || words == std::vector<std::string>{"--help"} ||
      words == std::vector<std::string>{"-h"}) {
    print_command_list();
    return 0;
  }
  if (std::find(words.begin(), words.end(), "--version") != words.end()) {
    const bool json = std::find(words.begin(), words.end(), "--json") != words.end();
    fmt::print("{}\n", json ? build_facts_json() : build_facts());
    return 0;
  }
  const std::string name = take_command_name(words);
  if (name.empty()) usage_error("no command given; prism lists the commands");
  if (is_family(name)) {
    print_command_list(name + " ");
    return 0;
  }
  return run_command(name, std::move(words));
}

int report(const char* message, int status) {
  std::fflush(stdout);
  std::fprintf(stderr, "prism: error: %s\n", message);
  return status;
}

}  // namespace
}  // namespace prism::cli

int main(int argc, char** argv) {
  using prism::cli::report;
  prism::tune_allocator();
  try {
    const int status = prism::cli::run_main({argv + 1, argv + argc});
    if (std::fflush(stdout) != 0) return report("cannot write to the standard output", 1);
    return status;
  } catch (const prism::Error& error) {
    return report(error.what(), static_cast<int>(error.kind()));
  } catch (const std::bad_alloc&) {
    return report("out of memory", 1);
  } catch (const c10::Error& error) {
    if (prism::is_out_of_memory(error)) return report("out of memory", 1);
    return report(error.what_without_backtrace(), 3);
  } catch (const std::exception& error) {
    return report(error.what(), 3);
  }
}
