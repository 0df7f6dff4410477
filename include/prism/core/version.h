#pragma once
#include <string>

namespace prism {

/// "0.1.0"
std::string version();

/// The facts that `prism --version` prints: version, commit, compiler, LibTorch, SIMD of this machine,
/// threads.
std::string build_facts();

/// The same as a JSON object: version, commit, build, compiler, torch, torch_folder, threads.
std::string build_facts_json();

}  // namespace prism
