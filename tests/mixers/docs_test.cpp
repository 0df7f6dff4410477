// docs/mixers.md lists every mixer with its settings as the program knows them.
#include <gtest/gtest.h>

#include <filesystem>

#include "prism/core/config.h"
#include "prism/core/files.h"
#include "prism/mixers/mixer.h"

namespace prism {
namespace {

std::string settings_table(const std::string& mixer) {
  const auto spec = make_mixer_spec(mixer);
  Settings settings;
  spec->bind(settings, "mixer");
  std::string table = "| setting | default | values | meaning |\n|---|---|---|---|\n";
  for (const Setting& s : settings.all()) {
    std::string values = s.range_text();
    for (size_t bar = values.find('|'); bar != std::string::npos; bar = values.find('|', bar + 2))
      values.replace(bar, 1, "\\|");
    if (values.empty()) values = s.type;
    table += "| `" + s.name + "` | " + to_text(s.default_value) + " | " + values +
             (s.unit.empty() ? "" : " " + s.unit) + " | " + s.help + " |\n";
  }
  return table;
}

TEST(MixerDocs, ListEveryMixerAndItsSettings) {
  const auto path = std::filesystem::path(PRISM_SOURCE_DIR) / "docs" / "mixers.md";
  const std::string page = read_file(path);
  for (const std::string& name : mixer_names()) {
    EXPECT_NE(page.find("## " + name + "\n"), std::string::npos) << "docs/mixers.md has no section " << name;
    const std::string table = settings_table(name);
    EXPECT_NE(page.find(table), std::string::npos) << "docs/mixers.md, section " << name << ", needs\n"
                                                   << table;
  }
}

}  // namespace
}  // namespace prism
