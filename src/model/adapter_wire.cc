// SPDX-License-Identifier: Apache-2.0
// Writes the modules of an adapter one after another.
#include "model/adapter_wire.h"

#include <cstring>
#include <deque>
#include <type_traits>

namespace quire::model {
namespace {

class AdapterWriter {
 public:
  explicit AdapterWriter(std::vector<std::byte>& to) : to_(to) {}

  template <typename T>
  void field(const T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      bytes(&value, sizeof value);
    } else {
      field(static_cast<uint64_t>(value.size()));
      bytes(value.data(), value.size() * sizeof(value[0]));
    }
  }

 private:
  void bytes(const void* from, size_t count) {
    const size_t at = to_.size();
    to_.resize(at + count);
    if (count > 0) std::memcpy(to_.data() + at, from, count);
  }
  std::vector<std::byte>& to_;
};

class AdapterReader {
 public:
  explicit AdapterReader(std::span<const std::byte> from) : left_(from) {}
  bool ok() const { return ok_; }
  bool at_end() const { return left_.empty(); }

  template <typename T>
  void field(T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      bytes(&value, sizeof value);
    } else {
      uint64_t size = 0;
      field(size);
      ok_ = ok_ && size <= left_.size() / sizeof(value[0]);
      if (!ok_) return;
      value.resize(size);
      bytes(value.data(), size * sizeof(value[0]));
    }
  }

 private:
  void bytes(void* to, size_t count) {
    ok_ = ok_ && count <= left_.size();
    if (!ok_ || count == 0) return;
    std::memcpy(to, left_.data(), count);
    left_ = left_.subspan(count);
  }
  std::span<const std::byte> left_;
  bool ok_ = true;
};

// The fields of a module besides its tensors, for both directions.
template <typename Module, typename Wire>
void module_fields(Module& module, Wire& wire) {
  wire.field(module.name);
  wire.field(module.embedding);
  wire.field(module.rank);
  wire.field(module.in);
  wire.field(module.out);
  wire.field(module.scale);
  wire.field(module.a_transposed);
  wire.field(module.b_transposed);
  wire.field(module.of_experts);
  wire.field(module.gate_up_rank);
  wire.field(module.down_rank);
  wire.field(module.gate_up_scale);
  wire.field(module.down_scale);
}

// The memory of a received adapter.
struct ReceivedTensors {
  std::deque<weights::TensorRef> tensors;
  std::deque<std::vector<std::byte>> bytes;
};

// REQUIRES: `tensors` keeps its elements in place.
const weights::TensorRef* read_tensor(AdapterReader& reader, ReceivedTensors& received, bool& whole) {
  weights::TensorRef& tensor = received.tensors.emplace_back();
  std::vector<std::byte>& bytes = received.bytes.emplace_back();
  reader.field(tensor.name);
  reader.field(tensor.dtype);
  reader.field(tensor.shape);
  reader.field(bytes);
  tensor.data = bytes;
  // As a file that rank 0 has checked: a message that differs from it was damaged.
  int64_t rows = 1;
  whole = whole && reader.ok() && static_cast<int>(tensor.dtype) < kNumDTypes && tensor.shape.size() <= 4;
  for (const int64_t size : tensor.shape) {
    whole = whole && size > 0 && size <= (int64_t{1} << 31) && rows <= (int64_t{1} << 40) / size;
    if (whole) rows *= size;
  }
  if (!whole) return &tensor;
  rows /= tensor.columns();
  whole = tensor.columns() % info(tensor.dtype).block_elems == 0 &&
          static_cast<size_t>(rows * row_bytes(tensor.dtype, tensor.columns())) == bytes.size();
  return &tensor;
}

}  // namespace

void write_adapter(const weights::AdapterFiles& files, std::vector<std::byte>& to) {
  AdapterWriter writer(to);
  writer.field(files.path.string());
  writer.field(files.gguf);
  writer.field(files.architecture);
  writer.field(static_cast<uint64_t>(files.modules.size()));
  for (const weights::AdapterModule& module : files.modules) {
    module_fields(module, writer);
    for (const weights::TensorRef* tensor : {module.a, module.b}) {
      writer.field(tensor->name);
      writer.field(tensor->dtype);
      writer.field(tensor->shape);
      writer.field(tensor->data);
    }
  }
}

Result<ReceivedAdapter> read_adapter(std::span<const std::byte> from) {
  AdapterReader reader(from);
  ReceivedAdapter result;
  weights::AdapterFiles& out = result.files;
  std::string path;
  uint64_t modules = 0;
  reader.field(path);
  reader.field(out.gguf);
  reader.field(out.architecture);
  reader.field(modules);
  out.path = path;
  const auto received = std::make_shared<ReceivedTensors>();
  bool whole = reader.ok();
  for (uint64_t i = 0; i < modules && whole; ++i) {
    weights::AdapterModule& module = out.modules.emplace_back();
    module_fields(module, reader);
    module.a = read_tensor(reader, *received, whole);
    module.b = read_tensor(reader, *received, whole);
  }
  if (!whole || !reader.at_end()) return corrupt("an adapter that came from rank 0 is damaged");
  result.memory = received;
  return result;
}

namespace {

template <typename Wire, typename Module>
void adapted_fields(Wire& wire, Module& module) {
  wire.field(module.name);
  wire.field(module.gguf);
  wire.field(module.embedding);
  for (auto* number : {&module.rows, &module.k, &module.experts, &module.hidden, &module.inner, &module.gate_up}) {
    wire.field(*number);
  }
}

}  // namespace

void write_modules(const std::vector<AdaptedModule>& modules, std::vector<std::byte>& to) {
  AdapterWriter writer(to);
  for (const AdaptedModule& module : modules) adapted_fields(writer, module);
}

Result<std::vector<AdaptedModule>> read_modules(std::span<const std::byte> from) {
  std::vector<AdaptedModule> out;
  AdapterReader reader(from);
  while (reader.ok() && !reader.at_end()) adapted_fields(reader, out.emplace_back());
  if (!reader.ok()) return corrupt("a message about another rank's modules is damaged");
  return out;
}

}  // namespace quire::model
