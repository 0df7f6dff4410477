#pragma once
#include "command.h"

namespace prism::cli {

// One factory a file; a new command adds its line here and in commands.cpp.
std::unique_ptr<Command> make_data();
std::unique_ptr<Command> make_baselines();
std::unique_ptr<Command> make_train();
std::unique_ptr<Command> make_info();
std::unique_ptr<Command> make_report();
std::unique_ptr<Command> make_evaluate();
std::unique_ptr<Command> make_recommend();
std::unique_ptr<Command> make_export();
std::unique_ptr<Command> make_mixers();
std::unique_ptr<Command> make_probe();
std::unique_ptr<Command> make_compare();
std::unique_ptr<Command> make_lm_prepare();
std::unique_ptr<Command> make_lm_tokenizer();
std::unique_ptr<Command> make_lm_train();
std::unique_ptr<Command> make_lm_evaluate();
std::unique_ptr<Command> make_lm_generate();

/// Every command, in the order of the list that `prism` prints.
const std::vector<CommandEntry>& commands();

}  // namespace prism::cli
