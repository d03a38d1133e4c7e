// SPDX-License-Identifier: Apache-2.0
// The few PTX instructions of the dialect, one function each. The emulator's CUDA shim has a header of the same name.
#pragma once

// Allows the launches that depend on this one to start.
FN void ptx_grid_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Waits until the preceding launches have ended and their writes are visible.
FN void ptx_grid_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

FN uint ptx_shared_address(const void* p) {
  return (uint)__cvta_generic_to_shared(p);
}

// Loads four 8x8 matrices of 16-bit elements; lane i passes the address of row i % 8 of matrix i / 8.
FN void ptx_ldmatrix(uint* r, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(ptx_shared_address(row))
               : "memory");
}
FN void ptx_ldmatrix_trans(uint* r, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(ptx_shared_address(row))
               : "memory");
}

// c[16, 8] += a[16, 16] b[16, 8].
FN void ptx_mma(float& c0, float& c1, float& c2, float& c3, const uint* a, uint b0, uint b1, half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FN void ptx_mma(float& c0, float& c1, float& c2, float& c3, const uint* a, uint b0, uint b1, bfloat) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

FN void ptx_copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(ptx_shared_address(to)), "l"(from) : "memory");
}
FN void ptx_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
FN void ptx_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
