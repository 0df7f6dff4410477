#include "arguments.h"

#include <sstream>

namespace prism {

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << '[';
  const auto sizes = tensor.sym_sizes();
  for (size_t i = 0; i < sizes.size(); ++i) text << (i ? "," : "") << sizes[i];
  text << ']';
  return text.str();
}

std::string ArgumentCheck::shapes() const {
  std::string text;
  for (const auto& [name, tensor] : seen_)
    text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", name, shape_text(*tensor));
  return text.empty() ? text : text + ")";
}

void ArgumentCheck::tensor(const char* name, const at::Tensor& tensor, int64_t dims, const char* layout) {
  if (!tensor.defined()) fail_with("{} is undefined", name);
  seen_.emplace_back(name, &tensor);
  if (tensor.dim() != dims) fail_with("{} has {} dimensions, expected {}", name, tensor.dim(), layout);
  const at::Tensor& first = *seen_.front().second;
  if (tensor.device() != first.device())
    fail_with("{} is on {}, {} on {}", name, tensor.device().str(), seen_.front().first,
              first.device().str());
}

void ArgumentCheck::dtype(const char* name, const at::Tensor& tensor, at::ScalarType expected,
                          const std::string& reason) const {
  if (tensor.scalar_type() != expected)
    fail_with("{} is {}, expected {} {}", name, c10::toString(tensor.scalar_type()), c10::toString(expected),
              reason);
}

void ArgumentCheck::size(const char* name, const at::Tensor& tensor, int64_t dim, const char* what,
                         const c10::SymInt& expected, const char* expected_by) const {
  const c10::SymInt found = tensor.sym_size(dim);
  if (found == expected) return;
  std::ostringstream text;
  text << name << " has " << found << ' ' << what << " but " << expected_by << ' ' << expected;
  fail_with("{}", text.str());
}

}  // namespace prism
