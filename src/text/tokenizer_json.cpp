#include "text/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "prism/core/error.h"
#include "prism/core/text.h"
#include "text/byte_alphabet.h"

namespace prism {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMostTokens = 10'000'000;

/// Reads one document; every complaint names the file.
class Parser {
 public:
  Parser(const std::string& text, const std::string& file) : file_(file) {
    document_ = json::parse(text, nullptr, false);
    check(document_.is_object(), "{}: is not a JSON object", file);
  }

  TokenizerJson parse() try {
    const json& model = document_.at("model");
    const std::string type = model.value("type", "BPE");
    require(type == "BPE", "model type", type, "BPE");
    read_model(model);
    read_normaliser(part("normalizer"));
    read_pre_tokenizer(part("pre_tokenizer"));
    read_added(part("added_tokens"));
    return std::move(out_);
  } catch (const json::exception& error) {
    fail("{}: is not a tokenizer.json: {}", file_, error.what());
  }

 private:
  void require(bool good, const char* what, const std::string& found, const char* expected) const {
    check(good, "{}: {} {} is not supported; this program reads {}", file_, what, shortened(found), expected);
  }

  const json& part(const char* name) const {
    static const json kNone;
    const auto found = document_.find(name);
    return found == document_.end() ? kNone : *found;
  }

  static bool set(const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && !found->is_null() && *found != json("") && *found != json(false);
  }

  void put(int64_t id, std::string bytes) {
    check(id >= 0 && id < kMostTokens, "{}: token id {} is outside 0..{}", file_, id, kMostTokens - 1);
    if (static_cast<size_t>(id) >= out_.tokens.size()) out_.tokens.resize(static_cast<size_t>(id) + 1);
    out_.tokens[static_cast<size_t>(id)] = std::move(bytes);
  }

  void read_model(const json& model) {
    for (const char* key : {"byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout"})
      require(!set(model, key), "the model's", key, "byte-level BPE without it");
    out_.ignore_merges = model.value("ignore_merges", false);
    for (const auto& [text, id] : model.at("vocab").items()) {
      std::string bytes = alphabet_to_bytes(text).value_or(text);
      out_.words.emplace_back(bytes, id.get<int32_t>());
      put(id.get<int64_t>(), std::move(bytes));
    }
    for (const json& merge : model.at("merges")) read_merge(merge);
  }

  /// "left right" or ["left", "right"].
  void read_merge(const json& merge) {
    std::string left, right;
    if (merge.is_array()) {
      left = merge.at(0).get<std::string>(), right = merge.at(1).get<std::string>();
    } else {
      const auto text = merge.get<std::string>();
      const size_t space = text.find(' ');
      check(space != std::string::npos, "{}: the merge \"{}\" has one side", file_, shortened(text));
      left = text.substr(0, space), right = text.substr(space + 1);
    }
    const auto left_bytes = alphabet_to_bytes(left), right_bytes = alphabet_to_bytes(right);
    check(left_bytes && right_bytes,
          "{}: the merge \"{}\" \"{}\" is not over the byte alphabet; this program reads byte-level BPE",
          file_, shortened(left), shortened(right));
    out_.merges.emplace_back(*left_bytes, *right_bytes);
  }

  void read_normaliser(const json& normaliser) {
    if (normaliser.is_null()) return;
    const auto type = normaliser.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const json& own : normaliser.at("normalizers")) read_normaliser(own);
      return;
    }
    require(type == "NFC", "normalizer", type, "NFC or none");
    out_.nfc = true;
  }

  void read_pre_tokenizer(const json& pre) {
    if (pre.is_null()) return;
    const auto type = pre.at("type").get<std::string>();
    if (type == "Sequence")
      for (const json& own : pre.at("pretokenizers")) read_pre_tokenizer(own);
    else if (type == "ByteLevel")
      read_byte_level(pre);
    else if (type == "Split")
      read_split(pre);
    else
      require(false, "pre_tokenizer", type, "ByteLevel and Split by a regular expression");
  }

  void read_byte_level(const json& pre) {
    require(!set(pre, "add_prefix_space"), "pre_tokenizer ByteLevel with", "add_prefix_space", "it without");
    if (pre.value("use_regex", true)) out_.patterns.emplace_back(kGpt2Pattern);
  }

  void read_split(const json& pre) {
    const auto behaviour = pre.at("behavior").get<std::string>();
    require(behaviour == "Isolated", "pre_tokenizer Split with behavior", behaviour, "Isolated");
    require(!set(pre, "invert"), "pre_tokenizer Split with", "invert", "it without");
    require(pre.at("pattern").contains("Regex"), "pre_tokenizer Split by", pre.at("pattern").dump(),
            "a Regex");
    out_.patterns.push_back(pre.at("pattern").at("Regex").get<std::string>());
  }

  void read_added(const json& added) {
    for (const json& token : added) {
      const auto content = token.at("content").get<std::string>();
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        check(!set(token, key), "{}: the added token {} has {}, which is not supported", file_,
              shortened(content), key);
      out_.added.push_back({.content = content,
                            .id = token.at("id").get<int32_t>(),
                            .normalised = token.value("normalized", false)});
      put(token.at("id").get<int64_t>(), content);
    }
  }

  std::string file_;
  json document_;
  TokenizerJson out_;
};

}  // namespace

TokenizerJson parse_tokenizer_json(const std::string& text, const std::string& file) {
  return Parser(text, file).parse();
}

std::string make_tokenizer_json(const std::vector<std::string>& tokens,
                                const std::vector<std::pair<std::string, std::string>>& merges,
                                const std::string& end) {
  const ordered_json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  ordered_json vocabulary = ordered_json::object(), rules = ordered_json::array();
  for (size_t id = 0; id < tokens.size(); ++id) vocabulary.emplace(bytes_to_alphabet(tokens[id]), id);
  for (const auto& [left, right] : merges)
    rules.push_back({bytes_to_alphabet(left), bytes_to_alphabet(right)});
  const ordered_json added{{"id", tokens.size()}, {"content", end},  {"single_word", false},
                           {"lstrip", false},     {"rstrip", false}, {"normalized", false},
                           {"special", true}};
  const ordered_json document{{"version", "1.0"},
                              {"truncation", nullptr},
                              {"padding", nullptr},
                              {"added_tokens", ordered_json::array({added})},
                              {"normalizer", nullptr},
                              {"pre_tokenizer", byte_level},
                              {"post_processor", nullptr},
                              {"decoder", byte_level},
                              {"model",
                               {{"type", "BPE"},
                                {"dropout", nullptr},
                                {"unk_token", nullptr},
                                {"continuing_subword_prefix", nullptr},
                                {"end_of_word_suffix", nullptr},
                                {"fuse_unk", false},
                                {"byte_fallback", false},
                                {"ignore_merges", false},
                                {"vocab", std::move(vocabulary)},
                                {"merges", std::move(rules)}}}};
  return document.dump(1) + "\n";
}

}  // namespace prism
