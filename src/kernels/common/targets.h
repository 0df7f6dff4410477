#pragma once
// The instruction sets our kernels are compiled for; include before any Highway header. Left out: targets
// that add nothing to these kernels (they only cost compile time), and those whose vectors cannot be array
// elements, which the register tiles need. PRISM_FEW_TARGETS: the baseline and AVX2 alone, for builds under
// sanitizers, whose instrumented kernels take minutes a target.
#if defined(PRISM_FEW_TARGETS)
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#elif !defined(HWY_DISABLED_TARGETS)
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif

// Register tiles are arrays whose loops must be unrolled, which -O2 alone does not do.
#ifdef __clang__
#define PRISM_UNROLL _Pragma("unroll")
#else
#define PRISM_UNROLL _Pragma("GCC unroll 16")
#endif
