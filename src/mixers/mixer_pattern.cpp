#include "prism/mixers/mixer_pattern.h"

#include <algorithm>
#include <charconv>

#include "prism/core/error.h"
#include "prism/core/text.h"

namespace prism {
namespace {

constexpr int64_t kMostBlocks = 1024;

struct PatternEntry {
  std::string name;
  int64_t count = 1;
};

/// "name" or "name*count".
PatternEntry parse_entry(const std::string& text) {
  const size_t star = text.find('*');
  if (star == std::string::npos) return {text};
  const char *first = text.data() + star + 1, *last = text.data() + text.size();
  int64_t count = 0;
  const auto [end, error] = std::from_chars(first, last, count);
  if (error != std::errc() || end != last || count < 1 || count > kMostBlocks)
    usage_error("mixer: \"{}\" is not NAME*COUNT with a count of 1..{}", shortened(text), kMostBlocks);
  return {text.substr(0, star), count};
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const size_t first = std::min(text.find_first_not_of(' ', start), end);
    size_t last = end;
    while (last > first && text[last - 1] == ' ') --last;
    parts.push_back(text.substr(first, last - first));
    start = end + 1;
  }
  return parts;
}

}  // namespace

MixerPattern::MixerPattern(const std::string& text) : text_(text) {
  for (const std::string& part : split_at_commas(text)) {
    const PatternEntry entry = parse_entry(part);
    order_.insert(order_.end(), static_cast<size_t>(entry.count), add(entry.name));
  }
}

/// The place of mixer `name`, which is made where it is new.
size_t MixerPattern::add(const std::string& name) {
  for (size_t i = 0; i < mixers_.size(); ++i)
    if (mixers_[i].first == name) return i;
  mixers_.emplace_back(name, make_mixer_spec(name));
  return mixers_.size() - 1;
}

void MixerPattern::bind(Settings& settings) {
  for (auto& [name, spec] : mixers_) spec->bind(settings, mixers_.size() == 1 ? "mixer" : "mixer." + name);
}

const MixerSpec& MixerPattern::of_block(int64_t index) const {
  return *mixers_[order_[static_cast<size_t>(index % period())]].second;
}

}  // namespace prism
