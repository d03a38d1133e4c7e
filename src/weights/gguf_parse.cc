// SPDX-License-Identifier: Apache-2.0
// The GGUF parser: a cursor that cannot leave the file, and limits on everything that the file can make us store.
#include "weights/gguf_parse.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/math.h"
#include "base/utf8.h"
#include "weights/file_sniff.h"
#include "weights/ggml_types.h"

namespace quire::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "the readers map little-endian files");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxPairs = 65'536;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxNameBytes = 65'535;   // the format's limit for keys
constexpr uint64_t kMaxStrings = 1 << 24;    // in all arrays of a file; each takes 16 bytes of memory
constexpr uint64_t kMaxNestedArrays = 4096;  // in all of a file
constexpr int kMaxArrayDepth = 4;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
// The smallest pair (key length, one character, kind, one byte) and tensor (name length, one character, no dimension,
// type, offset): counts are checked against the rest of the file before anything is stored.
constexpr uint64_t kLeastPairBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kLeastTensorBytes = 8 + 1 + 4 + 4 + 8;
class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  Result<GgufContents> run() {
    GgufContents out;
    out.metadata.set_file(file_);
    QUIRE_ASSIGN(out.version, read_version());
    QUIRE_ASSIGN(const uint64_t tensors, read<uint64_t>("the tensor count"));
    QUIRE_ASSIGN(const uint64_t pairs, read<uint64_t>("the metadata count"));
    if (pairs > kMaxPairs || pairs > left() / kLeastPairBytes) {
      return bad("the metadata count " + std::to_string(pairs) + " is impossible in a file of this size");
    }
    if (tensors > kMaxTensors || tensors > left() / kLeastTensorBytes) {
      return bad("the tensor count " + std::to_string(tensors) + " is impossible in a file of this size");
    }
    for (uint64_t i = 0; i < pairs; ++i) QUIRE_TRY(read_pair(out.metadata, i));
    QUIRE_ASSIGN(const uint64_t alignment, alignment_of(out.metadata));
    QUIRE_TRY(read_tensors(tensors, out.tensors));
    QUIRE_TRY(place_tensors(alignment, out.tensors));
    return out;
  }

 private:
  // A tensor's place in the file's table, before it is checked against the file and the other tensors.
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    size_t tensor = 0;
  };

  uint64_t left() const { return bytes_.size() - pos_; }
  Failure bad(const std::string& what) const { return corrupt_file(file_, what); }
  Failure ends_in(const std::string& what) const {
    return bad("the file ends in the middle of " + what + " (it has " + std::to_string(bytes_.size()) +
               " bytes): " + kFetchAgain);
  }

  template <typename T>
  Result<T> read(const char* what) {
    if (left() < sizeof(T)) return ends_in(what);
    T value;
    std::memcpy(&value, bytes_.data() + pos_, sizeof value);
    pos_ += sizeof value;
    return value;
  }

  Result<std::string_view> read_string(const std::string& what, uint64_t max_bytes) {
    QUIRE_ASSIGN(const uint64_t size, read<uint64_t>(what.c_str()));
    if (size > max_bytes) return bad(what + " has the length " + std::to_string(size) + ", which is too long");
    if (size > left()) return ends_in(what);
    const std::string_view text(reinterpret_cast<const char*>(bytes_.data() + pos_), size);
    pos_ += size;
    return text;
  }

  Result<int> read_version() {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), &kMagic, 4) != 0) {
      if (const auto instead = recognise_wrong_file(bytes_)) return corrupt({in_quotes(file_), " ", *instead});
      return bad("it does not begin with 'GGUF': this is not a GGUF file");
    }
    pos_ = 4;
    QUIRE_ASSIGN(const uint32_t version, read<uint32_t>("the version"));
    if (version == 2 || version == 3) return static_cast<int>(version);
    if (version == 1) {
      return unsupported(
          {in_quotes(file_), ": GGUF version 1 is not supported: convert the model again with newer tools"});
    }
    const uint32_t swapped = __builtin_bswap32(version);
    if (swapped >= 1 && swapped <= 3) {
      return unsupported({in_quotes(file_), ": this is a big-endian GGUF file: use a little-endian one"});
    }
    return unsupported({in_quotes(file_), ": GGUF version ", version, " is not supported (2 and 3 are)"});
  }

  Status read_pair(GgufMetadata& metadata, uint64_t index) {
    const std::string which = "the key of metadata pair " + std::to_string(index);
    QUIRE_ASSIGN(const std::string_view key, read_string(which, kMaxNameBytes));
    if (key.empty() || !utf8::is_valid(key)) return bad(which + " is empty or not UTF-8");
    where_ = "metadata " + in_quotes(key);
    QUIRE_ASSIGN(const GgufKind kind, read_kind());
    GgufValue value;
    value.kind = kind;
    if (kind == GgufKind::kString) {
      QUIRE_ASSIGN(value.text, read_string(where_, bytes_.size()));
    } else if (kind == GgufKind::kArray) {
      auto array = std::make_shared<GgufArray>();
      QUIRE_TRY(read_array(*array, 1));
      value.array = std::move(array);
    } else {
      if (left() < plain_size(kind)) return ends_in(where_);
      value = plain_value(kind, bytes_.data() + pos_);
      if (kind == GgufKind::kBool && value.integer > 1) return bad(where_ + " is a bool that is neither 0 nor 1");
      pos_ += plain_size(kind);
    }
    if (!metadata.add(key, std::move(value))) return bad(where_ + " occurs twice");
    return {};
  }

  Result<GgufKind> read_kind() {
    QUIRE_ASSIGN(const uint32_t number, read<uint32_t>(where_.c_str()));
    if (number > static_cast<uint32_t>(GgufKind::kFloat64)) {
      return bad(where_ + " has the kind " + std::to_string(number) + ", which GGUF does not define");
    }
    return static_cast<GgufKind>(number);
  }

  // The recursion follows the nesting, which kMaxArrayDepth bounds.
  Status read_array(GgufArray& out, int depth) {
    QUIRE_ASSIGN(out.kind, read_kind());
    QUIRE_ASSIGN(const uint64_t size, read<uint64_t>(where_.c_str()));
    if (out.kind == GgufKind::kString) return read_strings(out, size);
    if (out.kind == GgufKind::kArray) {
      if (depth >= kMaxArrayDepth) return bad(where_ + " is nested too deeply");
      if (size > kMaxNestedArrays - nested_arrays_) return bad(where_ + " holds too many arrays");
      nested_arrays_ += size;
      for (uint64_t i = 0; i < size; ++i) QUIRE_TRY(read_array(out.arrays.emplace_back(), depth + 1));
      out.size = size;
      return {};
    }
    const uint64_t element = plain_size(out.kind);
    if (size > left() / element) {
      return bad(where_ + " says it has " + std::to_string(size) +
                 " elements, more than the file has room for: " + kFetchAgain);
    }
    out.size = size;
    out.raw = bytes_.subspan(pos_, size * element);
    pos_ += size * element;
    if (out.kind == GgufKind::kBool) {
      const auto is_bool = [](std::byte b) { return b <= std::byte{1}; };
      if (!std::all_of(out.raw.begin(), out.raw.end(), is_bool)) {
        return bad(where_ + " has a bool that is neither 0 nor 1");
      }
    }
    return {};
  }

  Status read_strings(GgufArray& out, uint64_t size) {
    if (size > left() / sizeof(uint64_t) || size > kMaxStrings - strings_) {
      return bad(where_ + " says it has " + std::to_string(size) +
                 " strings, more than the file has room for: " + kFetchAgain);
    }
    strings_ += size;
    out.strings.reserve(size);
    for (uint64_t i = 0; i < size; ++i) {
      // Not read_string(), which would build its message 150,000 times.
      uint64_t length = 0;
      if (left() < sizeof length) return ends_in(where_);
      std::memcpy(&length, bytes_.data() + pos_, sizeof length);
      pos_ += sizeof length;
      if (length > left()) return ends_in("string " + std::to_string(i) + " of " + where_);
      out.strings.emplace_back(reinterpret_cast<const char*>(bytes_.data() + pos_), length);
      pos_ += length;
    }
    out.size = size;
    return {};
  }

  Result<uint64_t> alignment_of(const GgufMetadata& metadata) const {
    QUIRE_ASSIGN(const int64_t alignment,
                 metadata.get_int_or("general.alignment", kDefaultAlignment, 8, static_cast<int64_t>(kMaxAlignment)));
    if (!std::has_single_bit(static_cast<uint64_t>(alignment))) {
      return bad("metadata 'general.alignment' is " + std::to_string(alignment) + ", which is not a power of two");
    }
    return static_cast<uint64_t>(alignment);
  }

  Status read_tensors(uint64_t count, std::vector<GgufTensorInfo>& tensors) {
    std::unordered_set<std::string_view> seen;
    for (uint64_t i = 0; i < count; ++i) {
      const std::string which = "the name of tensor " + std::to_string(i);
      QUIRE_ASSIGN(const std::string_view name, read_string(which, kMaxNameBytes));
      if (name.empty() || !utf8::is_valid(name)) return bad(which + " is empty or not UTF-8");
      where_ = "tensor " + in_quotes(name);
      if (!seen.insert(name).second) return bad(where_ + " occurs twice");
      GgufTensorInfo& tensor = tensors.emplace_back();
      tensor.name = name;
      QUIRE_TRY(read_tensor(tensor));
    }
    return {};
  }

  // Reads dimensions, type and offset of one tensor and computes its size.
  Status read_tensor(GgufTensorInfo& tensor) {
    QUIRE_ASSIGN(const uint32_t dims, read<uint32_t>(where_.c_str()));
    if (dims > kMaxDims) return bad(where_ + " has " + std::to_string(dims) + " dimensions; GGUF has at most 4");
    int64_t elements = 1;
    for (uint32_t i = 0; i < dims; ++i) {
      QUIRE_ASSIGN(const uint64_t dim, read<uint64_t>(where_.c_str()));
      if (dim == 0 || dim > static_cast<uint64_t>(INT64_MAX) ||
          __builtin_mul_overflow(elements, static_cast<int64_t>(dim), &elements)) {
        return bad(where_ + ": dimension " + std::to_string(i) + " is " + std::to_string(dim) +
                   ", which is zero or too large");
      }
      tensor.shape.insert(tensor.shape.begin(),
                          static_cast<int64_t>(dim));  // the file has the innermost dimension first
    }
    QUIRE_ASSIGN(tensor.type, read<uint32_t>(where_.c_str()));
    const auto type = ggml_type(tensor.type);
    if (!type) {
      return unsupported({in_quotes(file_), ": ", where_, " has the type number ", tensor.type,
                          ", which is not a current tensor type of GGUF: convert the model again with newer tools"});
    }
    const int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (columns % type->block_elems != 0) {
      return bad(where_ + " has rows of " + std::to_string(columns) + " elements, not a multiple of the " +
                 std::to_string(type->block_elems) + " in a block of " + type->name);
    }
    int64_t size = 0;
    if (__builtin_mul_overflow(elements / type->block_elems, type->block_bytes, &size)) {
      return bad(where_ + ": the shape " + shape_string(tensor.shape) + " is too large");
    }
    QUIRE_ASSIGN(const uint64_t offset, read<uint64_t>(where_.c_str()));
    places_.push_back({offset, static_cast<uint64_t>(size), places_.size()});
    return {};
  }

  // Each tensor must start at the first aligned place after the one before it, and the last one must end the file.
  Status place_tensors(uint64_t alignment, std::vector<GgufTensorInfo>& tensors) {
    const uint64_t begin = std::min<uint64_t>(round_up(pos_, alignment), bytes_.size());
    const uint64_t room = bytes_.size() - begin;
    std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) {
      return std::pair(a.offset, a.tensor) < std::pair(b.offset, b.tensor);
    });
    uint64_t at = 0;  // the end of the previous tensor
    std::string before;
    for (const Place& place : places_) {
      const std::string which = "tensor " + in_quotes(tensors[place.tensor].name);
      if (place.offset % alignment != 0) {
        return bad(which + " has the offset " + std::to_string(place.offset) + ", which is not a multiple of the " +
                   "alignment " + std::to_string(alignment));
      }
      if (place.offset > room || place.bytes > room - place.offset) {
        return bad(which + " needs " + std::to_string(place.bytes) + " bytes at byte " + std::to_string(place.offset) +
                   " of the data, which has only " + std::to_string(room) + " bytes: " + kFetchAgain);
      }
      if (place.offset < at)
        return bad("tensors " + before + " and " + in_quotes(tensors[place.tensor].name) + " overlap");
      if (place.offset != round_up(at, alignment)) {
        return bad("bytes " + std::to_string(at) + " to " + std::to_string(place.offset) + " of the data, before " +
                   which + ", belong to no tensor");
      }
      tensors[place.tensor].data = bytes_.subspan(begin + place.offset, place.bytes);
      at = place.offset + place.bytes;
      before = in_quotes(tensors[place.tensor].name);
    }
    if (room - at >= alignment) {
      return bad("there are " + std::to_string(room - at) + " bytes after the last tensor: the file does not " +
                 "match its header");
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
  uint64_t pos_ = 0;
  std::string where_;  // the pair or tensor being read, for messages
  uint64_t strings_ = 0;
  uint64_t nested_arrays_ = 0;
  std::vector<Place> places_;
};

}  // namespace

Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, const std::string& file) {
  return Parser(bytes, file).run();
}

}  // namespace quire::weights
