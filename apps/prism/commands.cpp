#include "commands.h"

namespace prism::cli {

const std::vector<CommandEntry>& commands() {
  static const std::vector<CommandEntry> list = {
      // name, summary, example, factory
  };
  return list;
}

}  // namespace prism::cli
