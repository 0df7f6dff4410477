#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

namespace prism {

/// a, b, c of one iteration X <- a X + (b A + c A^2) X, A = X X^T.
using NewtonSchulzStep = std::array<double, 3>;

/// Muon's five equal iterations (ATLAS).
const std::vector<NewtonSchulzStep>& muon_steps();
/// The schedule of LaCT's public code.
const std::vector<NewtonSchulzStep>& lact_muon_steps();

/// Pushes the singular values of x [...,rows,columns] towards 1: from X = x / (|x|_F + 1e-7), the iterations
/// on X or, where it has more rows than columns, on its transpose. Differentiable once; the backward keeps x
/// alone and recomputes the iterations for a part of the matrices at a time.
at::Tensor newton_schulz(const at::Tensor& x, const std::vector<NewtonSchulzStep>& steps);

}  // namespace prism
