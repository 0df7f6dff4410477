#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace prism {

/// Cuts a text at the matches of a Unicode regular expression: every match and everything between two matches
/// is a piece. \s means Unicode's White_Space, as in Hugging Face's tokenizers.
class RegexSplitter {
 public:
  /// Error, opening with `where`, for an expression that PCRE2 does not take.
  RegexSplitter(const std::string& pattern, const std::string& where);

  /// The pieces in order, none empty. Bytes that are not UTF-8 match nothing.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  void split_valid(std::string_view text, const std::function<void(std::string_view)>& piece) const;

  std::shared_ptr<pcre2_real_code_8> code_;
  std::shared_ptr<pcre2_real_match_data_8> match_;
};

}  // namespace prism
