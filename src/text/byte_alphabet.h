#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace prism {

/// GPT-2 writes the 256 bytes as 256 printable characters: those that print stand for themselves, the others
/// (in order) for U+0100, U+0101, ...

/// UTF-8 of the characters that stand for `bytes`.
std::string bytes_to_alphabet(std::string_view bytes);
/// The bytes that a text over the alphabet stands for; nothing where it has another character.
std::optional<std::string> alphabet_to_bytes(std::string_view text);

}  // namespace prism
