#pragma once
#include <cstdint>

namespace prism {

/// Settings of the C allocator for programs with large temporaries: without them half the time of a training
/// step goes to page faults of freshly mapped memory. Also lets LibTorch throw where memory runs out: in
/// programs other than Python it would abort. Call once when a program starts.
void tune_allocator();

/// Bytes that this process may still take without swapping, within the machine's and its control group's
/// limits; 0 when unknown.
int64_t free_memory();

/// Largest resident size of this process so far, in bytes; 0 when unknown.
int64_t peak_memory();

}  // namespace prism
