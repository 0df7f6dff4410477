#pragma once
#include <string>
#include <vector>

namespace prism {

/// Texts on which tokenisers like to differ.
inline const std::vector<std::string>& hard_texts() {
  static const std::vector<std::string> texts = {
      "",
      " ",
      "a",
      "Hello, world!",
      "  two  blanks,\ttabs\t\t and\n\nlines \n \r\n end   ",
      "I'll say we've DON'T it's 'S 's",
      "for (int i = 0; i < 10; ++i) { x[i] += 1e-3; }  // code",
      "naïve café coöperate, e\xCC\x81 combining",
      "Größe Ünïcødé straße \xE1\xBA\x9E \xC5\xBF\xC5\xBF's\xC5\xBF",
      "日本語のテキストと中文文本，한국어 텍스트。",
      "Привет, мир! مرحبا بالعالم שלום עולם",
      "हिन्दी पाठ ภาษาไทย",
      "🙂👩‍👩‍👧‍👦🏳️‍🌈 emoji 🇩🇪",
      "12345678901234567890 1,234.5678 ½ ² ٣٤٥",
      "\xC2\xA0nbsp\xE2\x80\x83"
      "em\xE1\xA0\x8E"
      "mvs\xE2\x80\xA8line\xC2\x85nel",
      std::string("nul\0byte", 8),
      "before<|endoftext|>after <|endoftext|>",
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
      "a",
  };
  return texts;
}

/// Enough text to learn some merges from.
inline std::string training_text() {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text +=
        "The quick brown fox jumps over the lazy dog; the dog sleeps. 12345 naïve café\n"
        "Größe und Länge, 日本語のテキスト, Привет мир, 🙂🙂 emoji\n  indented "
        "code(); "
        "// "
        "here\n";
  return text;
}

}  // namespace prism
