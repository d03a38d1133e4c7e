// SPDX-License-Identifier: Apache-2.0
// Library: cuBLASLt, loaded at run time; products whose order of sums is fixed for each (n, k).
#pragma once

#include <array>
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/driver.h"
#include "backend/cuda/library_api.h"
#include "backend/gpu/device.h"

namespace quire::cuda {

// A weight [n, k] of F16 or BF16, to be multiplied by any number of rows of its type.
struct ProductShape {
  DType type = DType::kBF16;
  int64_t n = 0, k = 0;
  auto operator<=>(const ProductShape&) const = default;
};

// Computes a product on the device that it was made for.
using ProductFn = std::function<Status(const gpu::LibraryProduct&)>;

// Whether the library can multiply it at all: its rows must be multiples of 16 bytes.
bool library_knows(const ProductShape& shape);

// The number of parts that K is split into, for any number of rows: each number of parts has its own bits. It is one,
// because quire's kernels for few rows add up K in one chain. More parts would be faster for few rows and a long K.
// QUIRE_CUDA_SPLIT_K sets another number, for measurements.
int library_split();

// An algorithm is chosen for each range of row counts, which ends with one of these; more rows are multiplied in
// pieces. The ranges are short where a partly filled tile is a large part of the cost.
inline constexpr std::array<int64_t, 17> kRowSteps = {64,  96,  128, 192,  256,  320,  384,  448, 512,
                                                      640, 768, 896, 1024, 1536, 2048, 3072, 4096};
// The most rows of one piece: fewer for a weight of many outputs, so that the check needs little memory.
int64_t most_rows(const ProductShape& shape);

// One cuBLASLt handle, used by one thread at a time. Owned by the device, whose stream and workspace it uses.
class Library {
 public:
  // Loads libcublasLt.so.13 or .12 (or what QUIRE_LIBCUBLASLT names).
  static Result<std::unique_ptr<Library>> load();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void use(void* workspace, size_t workspace_bytes, Stream stream);
  std::string version() const;  // "cuBLASLt 13.1.0"

  // The algorithms with exactly this split of K (0: any, for measurements) that the library proposes for so many rows,
  // its first choice first.
  std::vector<LtAlgo> candidates(const ProductShape& shape, DType out_type, int64_t rows, int split);
  // Whether the library has the algorithm for so many rows.
  bool has(const ProductShape& shape, DType out_type, int64_t rows, const LtAlgo& algorithm);
  // The algorithm that serves up to `rows` (a step) from now on.
  void choose(const ProductShape& shape, DType out_type, int64_t rows, const LtAlgo& algorithm);

  // Whether the library serves a shape; nothing if that is not decided yet.
  std::optional<bool> served(const ProductShape& shape) const;
  void decide(const ProductShape& shape, bool served) { decisions_[shape] = served; }

  // Queue a product: with one algorithm for all rows at once, or with the chosen ones.
  Status run(const gpu::LibraryProduct& product, const LtAlgo& algorithm);
  Status product(const gpu::LibraryProduct& product);

 private:
  struct Plan;  // the library's descriptions of one (shape, output type), and the algorithms by row step
  using PlanKey = std::pair<ProductShape, DType>;

  explicit Library(SharedLibrary library);
  Plan* plan(const ProductShape& shape, DType out_type);
  // What the library proposes for the plan's number of rows; `reductions` restricts how parts of K may be summed.
  std::vector<LtHeuristic> proposals(Plan& plan, const uint32_t* reductions);
  bool has(const Plan& plan, const LtAlgo& algorithm);

  SharedLibrary library_;
  LibraryApi api_;
  void* handle_ = nullptr;
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  Stream stream_ = nullptr;
  std::map<PlanKey, std::unique_ptr<Plan>> plans_;
  std::map<ProductShape, bool> decisions_;
};

}  // namespace quire::cuda
