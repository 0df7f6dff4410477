#include "prism/data/vocabulary.h"

#include <algorithm>
#include <limits>
#include <string>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/text.h"

namespace prism {
namespace {

constexpr size_t kArenaBlock = size_t{1} << 18;

__extension__ typedef unsigned __int128 uint128;

uint64_t fold(uint64_t a, uint64_t b) {
  const uint128 product = static_cast<uint128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

void append_escaped(std::string& out, std::string_view name) {
  for (const char c : name) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else
      out += c;
  }
  out += '\n';
}

std::string unescaped(std::string_view line) {
  std::string name;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      name += line[i];
      continue;
    }
    const char code = line[++i];
    name += code == 'n' ? '\n' : code == 'r' ? '\r' : code;
  }
  return name;
}

}  // namespace

uint32_t hash_name(std::string_view name) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio
  uint64_t hash = name.size() * kMultiplier;
  const char* bytes = name.data();
  size_t left = name.size();
  for (; left >= 8; bytes += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = fold(hash ^ word, kMultiplier);
  }
  uint64_t tail = 0;
  if (left > 0) std::memcpy(&tail, bytes, left);
  hash = fold(hash ^ tail, kMultiplier);
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

size_t Vocabulary::slot_of(std::string_view name, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash & mask;
  while (slots_[slot].index >= 0) {
    if (slots_[slot].hash == hash && this->name(slots_[slot].index) == name) break;
    slot = (slot + 1) & mask;
  }
  return slot;
}

int64_t Vocabulary::find(std::string_view name) const {
  return slots_.empty() ? -1 : slots_[slot_of(name, hash_name(name))].index;
}

int64_t Vocabulary::add(std::string_view name, uint32_t hash) {
  if (2 * names_.size() >= slots_.size()) grow();
  Slot& slot = slots_[slot_of(name, hash)];
  if (slot.index >= 0) return slot.index;
  check(names_.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()),
        "vocabulary: more than {} distinct ids", with_commas(std::numeric_limits<int32_t>::max()));
  slot = {hash, static_cast<int32_t>(names_.size())};
  names_.push_back({store(name), static_cast<uint32_t>(name.size()), hash});
  return slot.index;
}

const char* Vocabulary::store(std::string_view name) {
  if (name.size() > arena_left_) {
    arena_left_ = std::max(kArenaBlock, name.size());
    arena_.push_back(std::make_unique_for_overwrite<char[]>(arena_left_));
    arena_next_ = arena_.back().get();
  }
  char* bytes = arena_next_;
  std::copy(name.begin(), name.end(), bytes);
  arena_next_ += name.size();
  arena_left_ -= name.size();
  return bytes;
}

void Vocabulary::grow() {
  slots_.assign(std::max<size_t>(64, 2 * slots_.size()), Slot{});
  const size_t mask = slots_.size() - 1;
  for (size_t i = 0; i < names_.size(); ++i) {
    size_t slot = names_[i].hash & mask;
    while (slots_[slot].index >= 0) slot = (slot + 1) & mask;
    slots_[slot] = {names_[i].hash, static_cast<int32_t>(i)};
  }
}

void Vocabulary::save(const std::filesystem::path& path) const {
  AtomicFile file(path);
  std::string lines;
  for (int64_t i = 0; i < size(); ++i) {
    append_escaped(lines, name(i));
    if (lines.size() >= kArenaBlock) {
      file.write(lines);
      lines.clear();
    }
  }
  file.write(lines);
  file.commit();
}

Vocabulary Vocabulary::load(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  Vocabulary vocabulary;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const int64_t line = vocabulary.size();
    std::string_view line_text = std::string_view(text).substr(begin, end - begin);
    if (line_text.ends_with('\r')) line_text.remove_suffix(1);  // files of other programs; save() escapes it
    const std::string name = unescaped(line_text);
    check(vocabulary.add(name) == line, "{} line {}: \"{}\" occurs twice", path.string(),
          with_commas(line + 1), shortened(name));
    begin = end + 1;
  }
  return vocabulary;
}

}  // namespace prism
