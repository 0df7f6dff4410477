#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>

#include "prism/core/config.h"

namespace prism {

enum class TextFormat { kAuto, kFile, kLines, kJsonl };
template <>
struct EnumNames<TextFormat> {
  static constexpr std::array names{"auto", "file", "lines", "jsonl"};
};

/// How files become documents.
struct DocumentConfig {
  TextFormat format = TextFormat::kAuto;
  std::string field = "text";
  static constexpr auto fields = std::tuple{
      Field{"format", &DocumentConfig::format, Any{}, "",
            "what a document is: the file, a line, or a field of a JSON object a line; auto: jsonl for names "
            "with .jsonl, else file"},
      Field{"field", &DocumentConfig::field, Any{}, "", "key of the text in JSON objects"}};
};

/// Calls `document` for each document of a plain, gzip or zstd file; stops early where it returns false.
/// Empty documents are left out. A document is held in memory whole. Error with file and line where a line is
/// no JSON object or has no text under the key. `consumed`, if given, hears the share of the file read so
/// far.
void read_documents(const std::string& file, const DocumentConfig& config,
                    const std::function<bool(std::string_view text)>& document,
                    const std::function<void(double share)>& consumed = {});

}  // namespace prism
