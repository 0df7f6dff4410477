#pragma once

namespace prism {

/// Which code computes an operation. kAuto: the fused kernel where the device has one, else the composed
/// operation (logged once). Tests and benchmarks choose explicitly. kReference: the token loop in double,
/// without gradients.
enum class Implementation { kAuto, kFused, kComposed, kReference };

/// "auto", "fused", "composed", "reference": the operators' argument.
constexpr const char* implementation_name(Implementation implementation) {
  constexpr const char* kNames[] = {"auto", "fused", "composed", "reference"};
  return kNames[static_cast<int>(implementation)];
}

}  // namespace prism
