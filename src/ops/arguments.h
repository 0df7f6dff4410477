#pragma once
// Shape, dtype and device checks that every operation shares, and their messages.
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "prism/core/error.h"

namespace prism {

/// "[2,128,4,64]"; symbolic sizes print as their expressions.
std::string shape_text(const at::Tensor& tensor);

/// `op: name ...` errors, with every shape seen so far appended: `prism_chunk: k has 3 heads, q has 4 (q
/// [..], k [..])`.
class ArgumentCheck {
 public:
  explicit ArgumentCheck(std::string op) : op_(std::move(op)) {}

  /// Defined, `dims` dimensions written as `layout`, on the device of the first tensor.
  void tensor(const char* name, const at::Tensor& tensor, int64_t dims, const char* layout);
  void dtype(const char* name, const at::Tensor& tensor, at::ScalarType expected,
             const std::string& reason) const;
  /// Size of dimension `dim` (may be negative) of `name` against `expected`; `what` names the dimension in
  /// the plural.
  void size(const char* name, const at::Tensor& tensor, int64_t dim, const char* what,
            const c10::SymInt& expected, const char* expected_by) const;

  template <class... Args>
  [[noreturn]] void fail_with(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(op_ + ": " + fmt::format(format, std::forward<Args>(args)...) + shapes());
  }

  const std::string& op() const { return op_; }

 private:
  std::string shapes() const;

  std::string op_;
  std::vector<std::pair<const char*, const at::Tensor*>> seen_;
};

/// The type of gates and states beside activations of `type`: fp64 with fp64, else fp32.
inline at::ScalarType gate_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

inline const at::Tensor* present(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? &*tensor : nullptr;
}

}  // namespace prism
