#include "train/event_records.h"

#include <array>
#include <bit>
#include <cstring>

namespace prism {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82F63B78U : 0U);
    table[i] = value;
  }
  return table;
}

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// Protocol buffers: a field is (number << 3 | wire type), then 0: varint, 1: 8 bytes, 2: length and bytes,
// 5: 4 bytes.
std::string double_field(int number, double value) { return varint(number << 3 | 1) + raw(value); }
std::string float_field(int number, float value) { return varint(number << 3 | 5) + raw(value); }
std::string integer_field(int number, int64_t value) {
  return varint(number << 3) + varint(static_cast<uint64_t>(value));
}
std::string bytes_field(int number, const std::string& value) {
  return varint(number << 3 | 2) + varint(value.size()) + value;
}

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U; }

std::string record(const std::string& data) {
  const std::string length = raw(static_cast<uint64_t>(data.size()));
  return length + raw(masked(crc32c(length))) + data + raw(masked(crc32c(data)));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  uint32_t crc = ~0U;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

std::string event_file_header(double wall_time) {
  return record(double_field(1, wall_time) + bytes_field(3, "brain.Event:2"));
}

std::string scalar_event(double wall_time, int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
  return record(double_field(1, wall_time) + integer_field(2, step) + bytes_field(5, summary));
}

}  // namespace prism
