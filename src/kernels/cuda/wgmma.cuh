#pragma once
// wgmma: D[64,N] (fp32, registers of one warpgroup) += A[64,16] B[16,N], A from shared memory or registers, B
// from shared memory. Lane t + 4 g of warp w holds D[16 w + g + 8 r][8 n + 2 t + c] in d[4 n + 2 r + c], and
// of an A operand in registers A[16 w + g + 8 r][2 t + 8 s + {0, 1}] in a[r + 2 s]: two neighbouring n of an
// accumulator, rounded pair by pair, are the A operand of 16 columns (`operand_of` in hopper.cuh).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace prism::kernels::cuda {

/// How an operand lies in shared memory: contiguous along the contraction, or along its rows (of A: M, of B:
/// N).
enum class Major { kContraction, kRows };

/// `ss`: A and B by descriptor. `rs`: A in registers. `accumulate` = 0 overwrites d.
template <int N>
struct Wgmma;

// The instruction's type is part of its text, so it is the one thing left to a macro.
#define PRISM_WGMMA_TYPED(CALL)                     \
  if constexpr (std::is_same_v<T, __nv_bfloat16>) { \
    CALL("bf16.bf16");                              \
  } else {                                          \
    CALL("f16.f16");                                \
  }

#define PRISM_CALL(TYPE)                                                                               \
  asm volatile(                                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"                                                     \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE                                               \
      " {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, %11, %12;\n}\n"                             \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) \
      : "l"(a), "l"(b), "r"(accumulate), "n"(kA == Major::kRows), "n"(kB == Major::kRows))

template <>
struct Wgmma<16> {
  template <class T, Major kA = Major::kContraction, Major kB = Major::kContraction>
  __device__ static void ss(float (&d)[8], uint64_t a, uint64_t b, int accumulate) {
    PRISM_WGMMA_TYPED(PRISM_CALL)
  }
};
#undef PRISM_CALL

#define PRISM_WGMMA_32(TYPE, PREDICATE, OPERANDS, ...)                                                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " PREDICATE                                             \
               ", 0;\n"                                                                                  \
               "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE                                        \
               " "                                                                                       \
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, " OPERANDS       \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),     \
                 "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), \
                 "+f"(d[14]), "+f"(d[15])                                                                \
               : __VA_ARGS__)

template <>
struct Wgmma<32> {
  template <class T, Major kA = Major::kContraction, Major kB = Major::kContraction>
  __device__ static void ss(float (&d)[16], uint64_t a, uint64_t b, int accumulate) {
#define PRISM_CALL(TYPE)                                                                            \
  PRISM_WGMMA_32(TYPE, "%18", "%16, %17, p, 1, 1, %19, %20;\n}\n", "l"(a), "l"(b), "r"(accumulate), \
                 "n"(kA == Major::kRows), "n"(kB == Major::kRows))
    PRISM_WGMMA_TYPED(PRISM_CALL)
#undef PRISM_CALL
  }
  template <class T, Major kB = Major::kContraction>
  __device__ static void rs(float (&d)[16], const uint32_t (&a)[4], uint64_t b, int accumulate) {
#define PRISM_CALL(TYPE)                                                                             \
  PRISM_WGMMA_32(TYPE, "%21", "{%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}\n", "r"(a[0]), "r"(a[1]), \
                 "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kB == Major::kRows))
    PRISM_WGMMA_TYPED(PRISM_CALL)
#undef PRISM_CALL
  }
};
#undef PRISM_WGMMA_32

#define PRISM_WGMMA_64(TYPE, PREDICATE, OPERANDS, ...)                                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " PREDICATE                                                \
               ", 0;\n"                                                                                     \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE                                           \
               " "                                                                                          \
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                    \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " OPERANDS \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
                 "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
                 "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
                 "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
                 "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                         \
               : __VA_ARGS__)

template <>
struct Wgmma<64> {
  template <class T, Major kA = Major::kContraction, Major kB = Major::kContraction>
  __device__ static void ss(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
#define PRISM_CALL(TYPE)                                                                            \
  PRISM_WGMMA_64(TYPE, "%34", "%32, %33, p, 1, 1, %35, %36;\n}\n", "l"(a), "l"(b), "r"(accumulate), \
                 "n"(kA == Major::kRows), "n"(kB == Major::kRows))
    PRISM_WGMMA_TYPED(PRISM_CALL)
#undef PRISM_CALL
  }
  template <class T, Major kB = Major::kContraction>
  __device__ static void rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
#define PRISM_CALL(TYPE)                                                                             \
  PRISM_WGMMA_64(TYPE, "%37", "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n", "r"(a[0]), "r"(a[1]), \
                 "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kB == Major::kRows))
    PRISM_WGMMA_TYPED(PRISM_CALL)
#undef PRISM_CALL
  }
};
#undef PRISM_WGMMA_64

#define PRISM_WGMMA_128(TYPE, PREDICATE, OPERANDS, ...)                                                     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " PREDICATE                                                \
               ", 0;\n"                                                                                     \
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE                                          \
               " "                                                                                          \
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                    \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, " OPERANDS \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
                 "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
                 "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
                 "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
                 "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), \
                 "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
                 "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), \
                 "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), \
                 "+f"(d[63])                                                                                \
               : __VA_ARGS__)

template <>
struct Wgmma<128> {
  template <class T, Major kA = Major::kContraction, Major kB = Major::kContraction>
  __device__ static void ss(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
#define PRISM_CALL(TYPE)                                                                             \
  PRISM_WGMMA_128(TYPE, "%66", "%64, %65, p, 1, 1, %67, %68;\n}\n", "l"(a), "l"(b), "r"(accumulate), \
                  "n"(kA == Major::kRows), "n"(kB == Major::kRows))
    PRISM_WGMMA_TYPED(PRISM_CALL)
#undef PRISM_CALL
  }
  template <class T, Major kB = Major::kContraction>
  __device__ static void rs(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int accumulate) {
#define PRISM_CALL(TYPE)                                                                              \
  PRISM_WGMMA_128(TYPE, "%69", "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n", "r"(a[0]), "r"(a[1]), \
                  "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kB == Major::kRows))
    PRISM_WGMMA_TYPED(PRISM_CALL)
#undef PRISM_CALL
  }
};
#undef PRISM_WGMMA_128
#undef PRISM_WGMMA_TYPED

}  // namespace prism::kernels::cuda
