#include <fmt/format.h>

#include "prism/core/version.h"

int main() { fmt::print("{}", prism::build_facts()); }
