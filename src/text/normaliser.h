#pragma once
#include <string>
#include <string_view>

namespace prism {

/// Unicode's Normalization Form C of the valid parts of `text`; other bytes stay.
std::string to_nfc(std::string_view text);

}  // namespace prism
