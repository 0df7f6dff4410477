#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace prism {

/// CRC-32C (Castagnoli), the checksum of TensorBoard's records.
uint32_t crc32c(std::string_view bytes);

using Scalar = std::pair<std::string, double>;  ///< tag and value

/// The first record of a TensorBoard event file.
std::string event_file_header(double wall_time);
/// One record with scalars at `step`: TFRecord framing around a hand-encoded tensorflow.Event message.
std::string scalar_event(double wall_time, int64_t step, std::span<const Scalar> scalars);

}  // namespace prism
