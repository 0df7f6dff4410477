#include "prism/data/item_features.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <charconv>
#include <cstring>

#include "prism/core/error.h"
#include "prism/core/files.h"
#include "prism/core/log.h"
#include "prism/core/safetensors.h"
#include "prism/core/text.h"

namespace prism {
namespace {

/// What stands between `before` and the next of `ends` in a .npy header.
std::string header_value(const std::string& header, const std::string& before, const std::string& ends) {
  const size_t begin = header.find(before);
  if (begin == std::string::npos) return "";
  const size_t first = begin + before.size(), last = header.find_first_of(ends, first);
  return last == std::string::npos ? "" : header.substr(first, last - first);
}

int64_t parse_count(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  int64_t count = -1;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return count;
}

at::ScalarType parse_type(const std::string& descr, const std::string& file) {
  if (descr == "<f2") return at::kHalf;
  if (descr == "<f4") return at::kFloat;
  if (descr == "<f8") return at::kDouble;
  fail("{}: has elements of type \"{}\", expected little-endian floats (<f2, <f4 or <f8)", file,
       shortened(descr));
}

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
at::Tensor read_npy(const std::string& file) {
  const std::string bytes = read_file(file);
  check(bytes.size() >= 12 && bytes.starts_with("\x93NUMPY"), "{}: is not a .npy file", file);
  const bool short_header = bytes[6] == 1;
  uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, short_header ? 2 : 4);
  const size_t start = (short_header ? 10 : 12) + static_cast<size_t>(length);
  check(start <= bytes.size(), "{}: ends within its header", file);
  const std::string header = bytes.substr(8, start - 8), shape = header_value(header, "'shape': (", ")");
  const size_t comma = shape.find(',');
  const int64_t rows = parse_count(shape),
                columns = comma == std::string::npos ? -1 : parse_count(shape.substr(comma + 1));
  check(rows >= 1 && columns >= 1, "{}: has shape ({}), expected (items, features)", file, shortened(shape));
  check(header.find("'fortran_order': False") != std::string::npos,
        "{}: is in Fortran order, expected C order", file);
  const auto type = parse_type(header_value(header, "'descr': '", "'"), file);
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  check(rows <= static_cast<int64_t>(bytes.size() - start) / size / columns,
        "{}: ends before its {} x {} elements", file, rows, columns);
  at::Tensor values = at::empty({rows, columns}, type);
  std::memcpy(values.mutable_data_ptr(), bytes.data() + start, values.nbytes());
  return values;
}

at::Tensor read_matrix(const std::string& file) {
  if (file.ends_with(".npy")) return read_npy(file);
  if (!file.ends_with(".safetensors"))
    usage_error("item_features: {} is neither .npy nor .safetensors", file);
  const Safetensors content = read_safetensors(file);
  const auto found = content.tensors.find("features");
  check(found != content.tensors.end() && found->second.dim() == 2, "{}: has no matrix named \"features\"",
        file);
  return found->second;
}

}  // namespace

at::Tensor read_item_features(const DataConfig& config, const Vocabulary& items) {
  const std::string& file = config.item_features;
  if (file.empty()) return {};
  if (config.item_feature_ids.empty())
    usage_error(
        "item_features: the rows of {} need names; --item-feature-ids is a file with one item id a line",
        file);
  const at::Tensor matrix = read_matrix(file).to(at::kFloat);
  const Vocabulary names = Vocabulary::load(config.item_feature_ids);
  check(names.size() == matrix.size(0), "item_features: {} has {} rows, {} names {} items", file,
        matrix.size(0), config.item_feature_ids, names.size());
  check(matrix.isfinite().all().item<bool>(), "item_features: {} holds values that are not finite", file);
  at::Tensor features = at::zeros({items.size(), matrix.size(1)});
  int64_t known = 0;
  for (int64_t item = 0; item < items.size(); ++item) {
    const int64_t row = names.find(items.name(item));
    if (row < 0) continue;
    features[item].copy_(matrix[row].div(matrix[row].norm().clamp_min(1e-12)));
    ++known;
  }
  check(known > 0, "item_features: none of the {} items is named in {}", with_commas(items.size()),
        config.item_feature_ids);
  info("item features: {} values each for {} of {} items", matrix.size(1), with_commas(known),
       with_commas(items.size()));
  return features;
}

}  // namespace prism
