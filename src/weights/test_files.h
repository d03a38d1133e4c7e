// SPDX-License-Identifier: Apache-2.0
// For tests: small writers of safetensors and GGUF files, valid or not.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/test_folder.h"
#include "weights/tensor_ref.h"

namespace quire::weights::testing {

template <typename T>
void append(std::string& out, T value) {
  static_assert(std::is_arithmetic_v<T>);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

// A file's bytes in memory of exactly their size, so that AddressSanitizer sees a read past the end.
inline std::shared_ptr<std::vector<std::byte>> exact_copy(std::string_view bytes) {
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return std::make_shared<std::vector<std::byte>>(begin, begin + bytes.size());
}

using quire::TempFolder;

inline std::string bytes_of(const TensorRef& tensor) {
  return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
}

// A safetensors file from a header as text and the data.
inline std::string safetensors_file(std::string_view header, std::string_view data) {
  std::string out;
  append<uint64_t>(out, header.size());
  out += header;
  out += data;
  return out;
}

struct SafetensorsTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data;
};
inline std::string safetensors_file(const std::vector<SafetensorsTensor>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::string data;
  for (const SafetensorsTensor& t : tensors) {
    header += ",\"" + t.name + R"(":{"dtype":")" + t.dtype + R"(","shape":[)";
    for (size_t i = 0; i < t.shape.size(); ++i) header += (i == 0 ? "" : ",") + std::to_string(t.shape[i]);
    header += R"(],"data_offsets":[)" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.data.size()) + "]}";
    data += t.data;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return safetensors_file(header, data);
}

// Writes GGUF; finish() joins the metadata and the tensors. Values are raw bytes, so that a test can write anything.
class GgufWriter {
 public:
  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the padding; a value other than 32 must be in the metadata, too
  int64_t tensor_count_error = 0;
  int64_t pair_count_error = 0;

  static std::string text(std::string_view s) {
    std::string out;
    append<uint64_t>(out, s.size());
    return out.append(s);
  }
  // An array's bytes: element kind, count, elements.
  static std::string array(uint32_t kind, uint64_t count, std::string_view elements) {
    std::string out;
    append<uint32_t>(out, kind);
    append<uint64_t>(out, count);
    return out.append(elements);
  }

  void pair(std::string_view key, uint32_t kind, std::string_view value) {
    pairs_ += text(key);
    append<uint32_t>(pairs_, kind);
    pairs_ += value;
    ++pair_count_;
  }
  template <typename T>
  void number(std::string_view key, uint32_t kind, T value) {
    std::string bytes;
    append<T>(bytes, value);
    pair(key, kind, bytes);
  }
  void string(std::string_view key, std::string_view value) { pair(key, 8, text(value)); }
  void strings(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes;
    for (const std::string& s : values) bytes += text(s);
    pair(key, 9, array(8, values.size(), bytes));
  }

  // Dimensions are innermost first, as in the file. The data follows the previous tensor's at the alignment.
  void tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, std::string_view data) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    tensor_at(name, dims, type, data_.size());
    data_ += data;
  }
  void tensor_at(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    tensors_ += text(name);
    append<uint32_t>(tensors_, static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) append<uint64_t>(tensors_, d);
    append<uint32_t>(tensors_, type);
    append<uint64_t>(tensors_, offset);
    ++tensor_count_;
  }
  void data(std::string_view bytes) { data_ += bytes; }

  std::string finish() const {
    std::string out;
    append<uint32_t>(out, magic);
    append<uint32_t>(out, version);
    append<uint64_t>(out, static_cast<uint64_t>(tensor_count_ + tensor_count_error));
    append<uint64_t>(out, static_cast<uint64_t>(pair_count_ + pair_count_error));
    out += pairs_ + tensors_;
    if (!data_.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data_;
  }

 private:
  std::string pairs_;
  std::string tensors_;
  std::string data_;
  int64_t pair_count_ = 0;
  int64_t tensor_count_ = 0;
};

// Bytes that count up from `first`, which are easy to recognise.
inline std::string counting(size_t size, int first = 1) {
  std::string out(size, '\0');
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<char>(first + static_cast<int>(i));
  return out;
}

}  // namespace quire::weights::testing
