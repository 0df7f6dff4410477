#include "commands.h"

namespace prism::cli {

const std::vector<CommandEntry>& commands() {
  static const std::vector<CommandEntry> list = {
      // name, summary, example, factory
      {"data", "what is in an interaction log", "prism data ml-100k.inter --min-user 40 --min-item 5",
       make_data},
      {"baselines", "popularity and item-to-item transitions, fully ranked",
       "prism baselines ml-100k.inter --ks 10,20 --no-filter-seen", make_baselines},
  };
  return list;
}

}  // namespace prism::cli
