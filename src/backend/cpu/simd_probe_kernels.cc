// SPDX-License-Identifier: Apache-2.0
// The probe of one ISA level; compiled once a level, as the kernels are.
#include "backend/cpu/simd_math.h"
#include "backend/cpu/simd_probe.h"

namespace quire::cpu::QUIRE_ISA_NS {
namespace {

F32x16 apply(ProbeOp op, F32x16 a, F32x16 b, F32x16 c) {
  switch (op) {
    case ProbeOp::kAdd:
      return a + b;
    case ProbeOp::kSub:
      return a - b;
    case ProbeOp::kMul:
      return a * b;
    case ProbeOp::kDiv:
      return a / b;
    case ProbeOp::kFma:
      return fma(a, b, c);
    case ProbeOp::kNeg:
      return neg(a);
    case ProbeOp::kAbs:
      return abs(a);
    case ProbeOp::kSqrt:
      return sqrt(a);
    case ProbeOp::kMax:
      return max(a, b);
    case ProbeOp::kMin:
      return min(a, b);
    case ProbeOp::kSelectLt:
      return select(lt(a, b), a, c);
    case ProbeOp::kSelectLe:
      return select(le(a, b), a, c);
    case ProbeOp::kSelectGt:
      return select(gt(a, b), a, c);
    case ProbeOp::kSelectGe:
      return select(ge(a, b), a, c);
    case ProbeOp::kSelectEq:
      return select(eq(a, b), a, c);
    case ProbeOp::kReduceAdd:
      return select(first_lanes(1), splat(reduce_add(a)), zero());
    case ProbeOp::kReduceMax:
      return select(first_lanes(1), splat(reduce_max(a)), zero());
    case ProbeOp::kExp:
      return exp(a);
    case ProbeOp::kExp2Clamped:
      return exp2_clamped(a);
    case ProbeOp::kSigmoid:
      return sigmoid(a);
    case ProbeOp::kSoftplus:
      return softplus(a);
    case ProbeOp::kTanh:
      return tanh(a);
    case ProbeOp::kErf:
      return erf(a);
    case ProbeOp::kDeinterleave:
    case ProbeOp::kInterleave:
      break;
  }
  return zero();
}

void map(ProbeOp op, const float* a, const float* b, const float* c, float* out, int64_t n) {
  if (op == ProbeOp::kDeinterleave || op == ProbeOp::kInterleave) {
    for (int64_t i = 0; i + 2 * kLanes <= n; i += 2 * kLanes) {
      F32x16 x = load(a + i), y = load(a + i + kLanes);
      if (op == ProbeOp::kInterleave) {
        interleave(x, y, &x, &y);
      } else {
        deinterleave(x, y, &x, &y);
      }
      store(out + i, x);
      store(out + i + kLanes, y);
    }
    return;
  }
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, apply(op, load(a + i), load(b + i), load(c + i)));
  const int64_t rest = n - i;
  store_n(out + i, apply(op, load_n(a + i, rest), load_n(b + i, rest), load_n(c + i, rest)), rest);
}

template <typename T>
void widen(const typename T::Type* x, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, T::get(x + i));
  store_n(out + i, T::get_n(x + i, n - i), n - i);
}
template <typename T>
void narrow(const float* x, typename T::Type* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) T::put(out + i, load(x + i));
  T::put_n(out + i, load_n(x + i, n - i), n - i);
}

}  // namespace

extern const SimdProbe kProbe;
const SimdProbe kProbe = {map, narrow<StoredF16>, widen<StoredF16>, narrow<StoredBF16>, widen<StoredBF16>};

}  // namespace quire::cpu::QUIRE_ISA_NS
