#pragma once
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

namespace prism {

/// Hash of an id: eight bytes at a time, multiply and fold.
uint32_t hash_name(std::string_view name);

/// Distinct names with dense indices 0, 1, ... in the order in which they were added. Bytes lie in an arena;
/// about 32 bytes a name beside its own.
class Vocabulary {
 public:
  int64_t size() const { return static_cast<int64_t>(names_.size()); }
  /// The name at `index`; the view stays valid while the vocabulary lives, also when it is moved.
  std::string_view name(int64_t index) const {
    const Entry& entry = names_[static_cast<size_t>(index)];
    return {entry.bytes, entry.length};
  }
  /// The index of `name`; -1 when it is unknown.
  int64_t find(std::string_view name) const;
  /// The index of `name`, which is added when it is new.
  int64_t add(std::string_view name) { return add(name, hash_name(name)); }
  /// The same with `hash` = hash_name(name) already known.
  int64_t add(std::string_view name, uint32_t hash);
  /// Fetches into the cache what add(name, hash) will touch: its slot (stage 0), the entry found there (1),
  /// the entry's bytes (2). Each stage needs the one before; a few rows apart they hide the latency.
  /// Always inline: GCC takes a function that only prefetches for one without effect and drops the call.
  [[gnu::always_inline]] inline void prefetch(uint32_t hash, int stage) const {
    if (slots_.empty()) return;
    const Slot& slot = slots_[hash & (slots_.size() - 1)];
    if (stage == 0)
      __builtin_prefetch(&slot);
    else if (slot.index >= 0 && stage == 1)
      __builtin_prefetch(&names_[static_cast<size_t>(slot.index)]);
    else if (slot.index >= 0)
      __builtin_prefetch(names_[static_cast<size_t>(slot.index)].bytes);
  }

  /// One name a line; backslash, CR and LF within a name are written \\, \r and \n.
  void save(const std::filesystem::path& path) const;
  /// Throws Error when a line occurs twice.
  static Vocabulary load(const std::filesystem::path& path);

 private:
  struct Entry {
    const char* bytes;
    uint32_t length, hash;
  };
  struct Slot {
    uint32_t hash;
    int32_t index = -1;  ///< -1: free
  };
  size_t slot_of(std::string_view name, uint32_t hash) const;
  const char* store(std::string_view name);
  void grow();

  std::vector<Entry> names_;
  std::vector<Slot> slots_;  ///< open addressing, a power of two, at most half full
  std::vector<std::unique_ptr<char[]>> arena_;
  size_t arena_left_ = 0;
  char* arena_next_ = nullptr;
};

}  // namespace prism
