#include "prism/core/memory.h"

#include <c10/util/Logging.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace prism {
namespace {

int64_t first_number(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : 0;  // "max" means no limit
}

int64_t machine_free() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;)
    if (int64_t kib = 0; word == "MemAvailable:" && file >> kib) return kib * 1024;
  return 0;
}

}  // namespace

void tune_allocator() {
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  FLAGS_caffe2_use_fatal_for_enforce = false;
}

int64_t free_memory() {
  const int64_t machine = machine_free();
  const int64_t limit = first_number("/sys/fs/cgroup/memory.max");
  if (limit <= 0) return machine;
  const int64_t group = std::max<int64_t>(limit - first_number("/sys/fs/cgroup/memory.current"), 0);
  return machine > 0 ? std::min(machine, group) : group;
}

int64_t peak_memory() {
  rusage usage = {};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? static_cast<int64_t>(usage.ru_maxrss) * 1024 : 0;
}

}  // namespace prism
