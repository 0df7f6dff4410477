#include "prism/text/documents.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "prism/core/byte_source.h"
#include "prism/core/error.h"
#include "prism/core/text.h"

namespace prism {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;

using OnText = std::function<bool(std::string_view)>;
using OnShare = std::function<void(double)>;

bool is_jsonl(const std::string& file) {
  const std::string name = std::filesystem::path(file).filename().string();
  return name.ends_with(".jsonl") || name.find(".jsonl.") != std::string::npos;
}

/// Feeds the file's bytes to `take` until it returns false.
void read_blocks(const std::string& file, const OnShare& consumed, const OnText& take) {
  ByteSource source(file);
  std::vector<char> block(kReadBytes);
  while (const size_t count = source.read(block.data(), block.size())) {
    if (consumed) consumed(source.consumed());
    if (!take({block.data(), count})) return;
  }
}

void read_whole(const std::string& file, const OnText& document, const OnShare& consumed) {
  std::string text;
  read_blocks(file, consumed, [&](std::string_view block) {
    text += block;
    return true;
  });
  if (!text.empty()) document(text);
}

/// Lines without their ends; the last one may lack one.
void read_lines(const std::string& file, const OnText& line, const OnShare& consumed) {
  std::string rest;
  bool more = true;
  read_blocks(file, consumed, [&](std::string_view block) {
    rest += block;
    size_t begin = 0;
    for (size_t end; more && (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
      more = line(std::string_view(rest).substr(begin, end - begin));
    rest.erase(0, begin);
    return more;
  });
  if (more && !rest.empty()) line(rest);
}

std::string_view without_carriage_return(std::string_view line) {
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

std::string keys_of(const nlohmann::json& object) {
  std::string keys;
  for (const auto& [key, value] : object.items()) keys += (keys.empty() ? "" : ", ") + shortened(key, 20);
  return keys.empty() ? "none" : keys;
}

std::string text_of(std::string_view line, const std::string& field, const std::string& where) {
  const auto object = nlohmann::json::parse(line, nullptr, false);
  check(object.is_object(), "{}: \"{}\" is no JSON object", where, shortened(line));
  const auto found = object.find(field);
  check(found != object.end(), "{}: has no \"{}\"; its keys: {} (--field chooses)", where, field,
        keys_of(object));
  check(found->is_string(), "{}: \"{}\" is {}, not a text", where, field, shortened(found->dump()));
  return found->get<std::string>();
}

}  // namespace

void read_documents(const std::string& file, const DocumentConfig& config, const OnText& document,
                    const OnShare& consumed) {
  const bool jsonl =
      config.format == TextFormat::kJsonl || (config.format == TextFormat::kAuto && is_jsonl(file));
  if (!jsonl && config.format != TextFormat::kLines) return read_whole(file, document, consumed);
  int64_t number = 0;
  const auto on_line = [&](std::string_view raw) {
    ++number;
    const std::string_view line = without_carriage_return(raw);
    if (line.empty()) return true;
    if (!jsonl) return document(line);
    const std::string text =
        text_of(line, config.field, fmt::format("{} line {}", file, with_commas(number)));
    return text.empty() || document(text);
  };
  read_lines(file, on_line, consumed);
}

}  // namespace prism
