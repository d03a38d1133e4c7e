// SPDX-License-Identifier: Apache-2.0
// Calling cuBLASLt. It has column-major matrices, so quire's rows are its columns.
#include "backend/cuda/library.h"

#include <algorithm>
#include <cstdlib>

#include "base/env.h"

namespace quire::cuda {
namespace {

constexpr uint32_t kAlignment = 16;  // bytes, of every address and row that the library gets
constexpr int kMostCandidates = 64;

int type_of(DType type) {
  QUIRE_CHECK(type == DType::kF32 || type == DType::kF16 || type == DType::kBF16);
  return type == DType::kF32 ? kLtTypeF32 : type == DType::kF16 ? kLtTypeF16 : kLtTypeBF16;
}

bool aligned(const void* address, int64_t stride, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(address) % kAlignment == 0 && stride * element_bytes % kAlignment == 0;
}

std::vector<std::string> places() {
  if (const auto path = env("QUIRE_LIBCUBLASLT")) return {*path};
  std::vector<std::string> out = {"libcublasLt.so.13", "libcublasLt.so.12"};
  const std::string folder = env("CUDA_HOME").value_or("/usr/local/cuda");
  for (const char* inside : {"/lib64/", "/lib/"}) {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) out.push_back(folder + inside + name);
  }
  return out;
}

Failure failed(const char* call, int status) {
  return unavailable({call, " failed with status ", status, " of cuBLASLt; QUIRE_CUDA_LIBRARY=0 does without it"});
}

}  // namespace

bool library_knows(const ProductShape& shape) {
  return (shape.type == DType::kBF16 || shape.type == DType::kF16) && shape.n > 0 && shape.k > 0 && shape.n % 8 == 0 &&
         shape.k % 8 == 0;
}

int library_split() {
  const auto forced = env("QUIRE_CUDA_SPLIT_K");
  return forced ? std::max(1, std::atoi(forced->c_str())) : 1;
}

int64_t most_rows(const ProductShape& shape) {
  constexpr int64_t kLongOutput = 32768;
  return shape.n <= kLongOutput ? kRowSteps.back() : 1024;
}

struct Library::Plan {
  Plan(const LibraryApi& api, const ProductShape& shape, DType out_type) : api_(api) {
    const int type = type_of(shape.type);
    const auto n = static_cast<uint64_t>(shape.n), k = static_cast<uint64_t>(shape.k);
    ok = api.cublasLtMatmulDescCreate(&desc, kLtCompute32F, kLtTypeF32) == 0 &&
         api.cublasLtMatmulDescSetAttribute(desc, kLtDescTransA, &kLtOpT, sizeof kLtOpT) == 0 &&
         api.cublasLtMatrixLayoutCreate(&w, type, k, n, shape.k) == 0 &&
         api.cublasLtMatrixLayoutCreate(&x, type, k, 1, shape.k) == 0 &&
         api.cublasLtMatrixLayoutCreate(&y, type_of(out_type), n, 1, shape.n) == 0;
  }
  ~Plan() {
    if (desc != nullptr) api_.cublasLtMatmulDescDestroy(desc);
    for (void* layout : {w, x, y}) {
      if (layout != nullptr) api_.cublasLtMatrixLayoutDestroy(layout);
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool set_rows(int64_t rows, int64_t x_stride, int64_t y_stride) {
    const auto cols = static_cast<uint64_t>(rows);
    return api_.cublasLtMatrixLayoutSetAttribute(x, kLtLayoutCols, &cols, sizeof cols) == 0 &&
           api_.cublasLtMatrixLayoutSetAttribute(x, kLtLayoutLd, &x_stride, sizeof x_stride) == 0 &&
           api_.cublasLtMatrixLayoutSetAttribute(y, kLtLayoutCols, &cols, sizeof cols) == 0 &&
           api_.cublasLtMatrixLayoutSetAttribute(y, kLtLayoutLd, &y_stride, sizeof y_stride) == 0;
  }

  void* desc = nullptr;
  void *w = nullptr, *x = nullptr, *y = nullptr;
  bool ok = false;
  std::map<int64_t, LtAlgo> algorithms;  // by the step of rows

 private:
  const LibraryApi& api_;
};

Library::Library(SharedLibrary library) : library_(std::move(library)) {}

Library::~Library() {
  plans_.clear();
  if (handle_ != nullptr) api_.cublasLtDestroy(handle_);
}

Result<std::unique_ptr<Library>> Library::load() {
  for (const std::string& place : places()) {
    SharedLibrary library(place);
    if (!library) continue;
    std::unique_ptr<Library> out(new Library(std::move(library)));
    const char* missing = nullptr;
#define QUIRE_CUBLASLT_NEED(name, result, parameters)                                   \
  out->api_.name = reinterpret_cast<result(*) parameters>(out->library_.symbol(#name)); \
  if (out->api_.name == nullptr) missing = #name;
    QUIRE_CUBLASLT_FUNCTIONS(QUIRE_CUBLASLT_NEED)
#undef QUIRE_CUBLASLT_NEED
    if (missing != nullptr) return unavailable({place, " has no ", missing, ", so it is not used"});
    if (const int status = out->api_.cublasLtCreate(&out->handle_)) return failed("cublasLtCreate", status);
    return out;
  }
  return unavailable("cuBLASLt (libcublasLt.so.13 or .12) was not found");
}

void Library::use(void* workspace, size_t workspace_bytes, Stream stream) {
  workspace_ = workspace;
  workspace_bytes_ = workspace_bytes;
  stream_ = stream;
}

std::string Library::version() const {
  const size_t v = api_.cublasLtGetVersion();
  return "cuBLASLt " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

std::optional<bool> Library::served(const ProductShape& shape) const {
  const auto found = decisions_.find(shape);
  return found == decisions_.end() ? std::nullopt : std::optional<bool>(found->second);
}

Library::Plan* Library::plan(const ProductShape& shape, DType out_type) {
  auto& place = plans_[{shape, out_type}];
  if (place == nullptr) place = std::make_unique<Plan>(api_, shape, out_type);
  return place->ok ? place.get() : nullptr;
}

std::vector<LtHeuristic> Library::proposals(Plan& plan, const uint32_t* reductions) {
  void* preference = nullptr;
  if (api_.cublasLtMatmulPreferenceCreate(&preference) != 0) return {};
  const uint64_t workspace = workspace_bytes_;
  api_.cublasLtMatmulPreferenceSetAttribute(preference, kLtPrefWorkspaceBytes, &workspace, sizeof workspace);
  if (reductions != nullptr) {
    api_.cublasLtMatmulPreferenceSetAttribute(preference, kLtPrefReductionMask, reductions, sizeof *reductions);
  }
  for (const int operand : {kLtPrefAlignmentA, kLtPrefAlignmentB, kLtPrefAlignmentC, kLtPrefAlignmentD}) {
    api_.cublasLtMatmulPreferenceSetAttribute(preference, operand, &kAlignment, sizeof kAlignment);
  }
  std::vector<LtHeuristic> found(kMostCandidates);
  int count = 0;
  const int status = api_.cublasLtMatmulAlgoGetHeuristic(handle_, plan.desc, plan.w, plan.x, plan.y, plan.y, preference,
                                                         kMostCandidates, found.data(), &count);
  api_.cublasLtMatmulPreferenceDestroy(preference);
  found.resize(static_cast<size_t>(status == 0 ? count : 0));
  std::erase_if(found, [](const LtHeuristic& one) { return one.state != 0; });
  return found;
}

std::vector<LtAlgo> Library::candidates(const ProductShape& shape, DType out_type, int64_t rows, int split) {
  std::vector<LtAlgo> out, configured;
  Plan* plan = this->plan(shape, out_type);
  if (plan == nullptr || !plan->set_rows(rows, shape.k, shape.n)) return out;
  const uint32_t reduction = split == 1 ? kLtReductionNone : kLtReductionCompute;
  // Asked for a reduction, the library leaves out some algorithms that have it anyway. So it is asked with and without,
  // and the best of both lists come first.
  const std::vector<LtHeuristic> free = proposals(*plan, nullptr);
  const std::vector<LtHeuristic> bound = split > 0 ? proposals(*plan, &reduction) : std::vector<LtHeuristic>();
  std::vector<LtHeuristic> found;
  const auto add = [&](const std::vector<LtHeuristic>& from, size_t i) {
    if (i >= from.size()) return;
    const auto same = [&](const LtHeuristic& other) { return other.algo == from[i].algo; };
    if (std::none_of(found.begin(), found.end(), same)) found.push_back(from[i]);
  };
  for (size_t i = 0; i < std::max(free.size(), bound.size()); ++i) {
    add(bound, i);
    add(free, i);
  }
  const auto value_of = [&](const LtAlgo& algo, int attribute) {
    uint32_t value = 0;
    size_t written = 0;
    const int status = api_.cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof value, &written);
    return status == 0 ? value : ~0u;
  };
  // Algorithms with the wanted split come first, then those that can be configured to have it.
  for (const LtHeuristic& one : found) {
    LtAlgo algo = one.algo;
    const uint32_t parts = value_of(algo, kLtAlgoSplitK);
    const bool wanted = split == 1
                            ? parts <= 1
                            : parts == static_cast<uint32_t>(split) && value_of(algo, kLtAlgoReduction) == reduction;
    if (split == 0 || wanted) {
      out.push_back(algo);
      continue;
    }
    if (api_.cublasLtMatmulAlgoConfigSetAttribute(&algo, kLtAlgoSplitK, &split, sizeof split) == 0 &&
        api_.cublasLtMatmulAlgoConfigSetAttribute(&algo, kLtAlgoReduction, &reduction, sizeof reduction) == 0 &&
        has(*plan, algo)) {
      configured.push_back(algo);
    }
  }
  out.insert(out.end(), configured.begin(), configured.end());
  return out;
}

bool Library::has(const Plan& plan, const LtAlgo& algorithm) {
  LtHeuristic result = {};
  return api_.cublasLtMatmulAlgoCheck(handle_, plan.desc, plan.w, plan.x, plan.y, plan.y, &algorithm, &result) == 0 &&
         result.workspace_bytes <= workspace_bytes_;
}

bool Library::has(const ProductShape& shape, DType out_type, int64_t rows, const LtAlgo& algorithm) {
  Plan* plan = this->plan(shape, out_type);
  return plan != nullptr && plan->set_rows(rows, shape.k, shape.n) && has(*plan, algorithm);
}

void Library::choose(const ProductShape& shape, DType out_type, int64_t rows, const LtAlgo& algorithm) {
  Plan* plan = this->plan(shape, out_type);
  QUIRE_CHECK(plan != nullptr);
  plan->algorithms[rows] = algorithm;
}

Status Library::run(const gpu::LibraryProduct& p, const LtAlgo& algorithm) {
  const int64_t in_bytes = info(p.type).block_bytes, out_bytes = info(p.out_type).block_bytes;
  QUIRE_CHECK(aligned(p.x, p.x_stride, in_bytes) && aligned(p.w, p.k, in_bytes) && aligned(p.y, p.y_stride, out_bytes),
              "cuBLASLt wants addresses and rows of 16 bytes");
  Plan* plan = this->plan({p.type, p.n, p.k}, p.out_type);
  if (plan == nullptr || !plan->set_rows(p.m, p.x_stride, p.y_stride)) return failed("cublasLtMatrixLayoutCreate", -1);
  const float one = 1, zero = 0;
  const int status = api_.cublasLtMatmul(handle_, plan->desc, &one, p.w, plan->w, p.x, plan->x, &zero, p.y, plan->y,
                                         p.y, plan->y, &algorithm, workspace_, workspace_bytes_, stream_);
  if (status != 0) return failed("cublasLtMatmul", status);
  return {};
}

Status Library::product(const gpu::LibraryProduct& product) {
  const ProductShape shape = {product.type, product.n, product.k};
  const Plan* plan = this->plan(shape, product.out_type);
  QUIRE_CHECK(plan != nullptr && !plan->algorithms.empty(), "no algorithm was chosen for this product");
  const int64_t most = plan->algorithms.rbegin()->first;
  for (int64_t at = 0; at < product.m; at += most) {
    gpu::LibraryProduct piece = product;
    piece.m = std::min(most, product.m - at);
    piece.x = static_cast<const std::byte*>(product.x) + at * product.x_stride * info(product.type).block_bytes;
    piece.y = static_cast<std::byte*>(product.y) + at * product.y_stride * info(product.out_type).block_bytes;
    QUIRE_TRY(run(piece, plan->algorithms.lower_bound(piece.m)->second));
  }
  return {};
}

}  // namespace quire::cuda
