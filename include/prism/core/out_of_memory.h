#pragma once
#include <c10/util/Exception.h>

#include <functional>
#include <new>
#include <string>

#include "prism/core/error.h"

namespace prism {

/// Whether LibTorch's error says that memory, of the machine or of a GPU, ran out.
inline bool is_out_of_memory(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) ||
         message.find("allocate memory") != std::string::npos ||
         message.find("not enough memory") != std::string::npos;
}

/// Calls `action`. Where memory runs out in it, Error "TASK: out of memory in WHERE; ADVICE" with the text of
/// `message`, which is asked for only then.
template <class Action>
auto with_memory_error(const std::function<std::string()>& message, const Action& action) {
  try {
    return action();
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
  } catch (const std::bad_alloc&) {
  }
  throw Error(message());
}

}  // namespace prism
