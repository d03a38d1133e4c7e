// SPDX-License-Identifier: Apache-2.0
// Reads safetensors: an 8-byte length, a JSON header, then the bytes of the tensors without gaps.
#include "weights/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "weights/file_sniff.h"

namespace quire::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "the readers map little-endian files");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr size_t kMaxIndexBytes = size_t{256} << 20;
struct TypeRow {
  const char* name;
  int bits;
};
// Every dtype of the format, so that the sizes of tensors that quire does not use are checked, too.
constexpr TypeRow kTypes[] = {
    {"F32", 32},    {"F16", 16}, {"BF16", 16}, {"F64", 64}, {"I64", 64},    {"U64", 64},    {"I32", 32},
    {"U32", 32},    {"I16", 16}, {"U16", 16},  {"I8", 8},   {"U8", 8},      {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"BOOL", 8}, {"C64", 64},  {"F4", 4},   {"F4_E2M1", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

std::optional<DType> usable_type(std::string_view type_name) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (type_name == name(type)) return type;
  }
  return std::nullopt;
}

// One entry of the header, checked by itself but not yet against the other tensors.
struct Entry {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

Result<int> bits_of(const std::string& type, const std::string& where) {
  for (const TypeRow& row : kTypes) {
    if (type == row.name) return row.bits;
  }
  return corrupt({where, "dtype ", in_quotes(type), " is not one of the format's types"});
}

// Reads "shape": the dimensions and their product, which must not overflow.
Result<int64_t> read_shape(const json::Value& entry, const std::string& where, std::vector<int64_t>& shape) {
  const json::Value* list = entry.find("shape");
  if (list == nullptr || !list->is_array()) return corrupt({where, "shape is not an array"});
  int64_t elements = 1;
  bool empty = false;
  for (const json::Value& dim : list->as_array()) {
    if (!dim.is_int() || dim.as_int() < 0) return corrupt({where, "shape has a dimension that is not a whole number"});
    shape.push_back(dim.as_int());
    empty = empty || dim.as_int() == 0;
    if (!empty && __builtin_mul_overflow(elements, dim.as_int(), &elements)) {
      return corrupt({where, "shape ", shape_string(shape), " is too large"});
    }
  }
  return empty ? 0 : elements;
}

Result<Entry> read_entry(const std::string& file, const json::Member& member) {
  Entry out;
  out.name = member.first;
  const std::string where = in_quotes(file) + ": tensor " + in_quotes(out.name) + ": ";
  const json::Value& entry = member.second;
  if (!entry.is_object()) return corrupt({where, "its header entry is not an object"});
  const json::Value* type = entry.find("dtype");
  if (type == nullptr || !type->is_string()) return corrupt({where, "dtype is not a string"});
  out.type = type->as_string();
  QUIRE_ASSIGN(const int bits, bits_of(out.type, where));
  QUIRE_ASSIGN(const int64_t elements, read_shape(entry, where, out.shape));

  const json::Value* offsets = entry.find("data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->as_array().size() != 2 ||
      !offsets->as_array()[0].is_int() || !offsets->as_array()[1].is_int()) {
    return corrupt({where, "data_offsets is not a pair of whole numbers"});
  }
  out.begin = offsets->as_array()[0].as_int();
  out.end = offsets->as_array()[1].as_int();
  if (out.begin < 0 || out.end < out.begin) {
    return corrupt({where, "data_offsets ", out.begin, " to ", out.end, " is not a range"});
  }
  int64_t size_in_bits = 0;
  if (__builtin_mul_overflow(elements, int64_t{bits}, &size_in_bits) || size_in_bits % 8 != 0 ||
      size_in_bits / 8 != out.end - out.begin) {
    return corrupt({where, "shape ", shape_string(out.shape), " of ", out.type, " does not fill the ",
                    out.end - out.begin, " bytes of its data_offsets"});
  }
  return out;
}

// The tensors must cover the data: sorted by place, each begins where the previous one ends.
Status check_cover(const std::string& file, const std::vector<Entry>& entries, int64_t data_bytes) {
  std::vector<const Entry*> sorted;
  for (const Entry& e : entries) sorted.push_back(&e);
  std::sort(sorted.begin(), sorted.end(),
            [](const Entry* a, const Entry* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  int64_t at = 0;
  const Entry* before = nullptr;
  for (const Entry* e : sorted) {
    if (e->end > data_bytes) {
      return corrupt_file(file, "tensor " + in_quotes(e->name) + " ends at byte " + std::to_string(e->end) +
                                    " of the data, which has only " + std::to_string(data_bytes) +
                                    " bytes: " + kFetchAgain);
    }
    if (e->begin < at) {
      return corrupt_file(file, "tensors " + in_quotes(before->name) + " and " + in_quotes(e->name) +
                                    " overlap at byte " + std::to_string(e->begin) + " of the data");
    }
    if (e->begin > at) {
      return corrupt_file(file, "bytes " + std::to_string(at) + " to " + std::to_string(e->begin) +
                                    " of the data, before tensor " + in_quotes(e->name) + ", belong to no tensor");
    }
    at = e->end;
    before = e;
  }
  if (at != data_bytes) {
    return corrupt_file(file,
                        std::to_string(data_bytes - at) +
                            " bytes after the last tensor belong to no tensor: the file does not match its header");
  }
  return {};
}

// The JSON header as text. The rest of the file is the data.
Result<std::string_view> header_text(std::span<const std::byte> bytes, const std::string& file) {
  uint64_t size = 0;
  if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
  if (bytes.size() < sizeof size || size > kMaxHeaderBytes || size < 2 || bytes.size() == sizeof size ||
      bytes[sizeof size] != std::byte{'{'}) {
    if (const auto instead = recognise_wrong_file(bytes)) return corrupt({in_quotes(file), " ", *instead});
  }
  if (bytes.size() < sizeof size) {
    return corrupt_file(
        file, "it has " + std::to_string(bytes.size()) + " bytes, too few for a safetensors file: " + kFetchAgain);
  }
  if (size < 2 || size > kMaxHeaderBytes) {
    return corrupt_file(
        file, "its first 8 bytes give a header of " + std::to_string(size) + " bytes: this is not a safetensors file");
  }
  if (size > bytes.size() - sizeof size) {
    return corrupt_file(file, "its header has " + std::to_string(size) + " bytes, but the file ends after " +
                                  std::to_string(bytes.size() - sizeof size) + ": " + kFetchAgain);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof size, size);
  if (text.front() != '{') return corrupt_file(file, "its header is not a JSON object: this is not a safetensors file");
  return text;
}

Result<json::Value> parse_header(std::string_view text, const std::string& file) {
  json::Limits limits;
  limits.max_depth = 8;
  limits.max_values = 16'000'000;
  limits.refuse_repeats = true;
  auto header = json::parse(text, limits);
  if (!header.ok()) return corrupt_file(file, "its header is " + header.error().message);
  return header;
}

// Whether an index may name this shard: a file in the same folder.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

struct Index {
  std::vector<std::string> files;                       // each once, in order of first mention
  std::vector<std::pair<std::string, size_t>> tensors;  // the name, and the index of its file
};

Result<Index> read_index(const std::filesystem::path& path) {
  const std::string file = path.string();
  QUIRE_ASSIGN(const std::string text, read_file(path, kMaxIndexBytes));
  if (const auto instead = recognise_wrong_file(std::as_bytes(std::span(text)))) {
    return corrupt({in_quotes(file), " ", *instead});
  }
  json::Limits limits;
  limits.refuse_repeats = true;
  const auto root = json::parse(text, limits);
  if (!root.ok()) return corrupt_file(file, root.error().message);
  const json::Value* map = root->find("weight_map");
  if (map == nullptr || !map->is_object()) return corrupt_file(file, "weight_map is not an object");
  if (map->as_object().empty()) return corrupt_file(file, "weight_map is empty");
  Index out;
  std::unordered_map<std::string, size_t> places;
  for (const auto& [tensor, shard] : map->as_object()) {
    if (!shard.is_string() || !is_plain_file_name(shard.as_string())) {
      return corrupt_file(file, "weight_map gives tensor " + in_quotes(tensor) + " the file " +
                                    in_quotes(shard.is_string() ? shard.as_string() : json::dump(shard)) +
                                    ", which is not the plain name of a file in the same folder");
    }
    const auto [it, fresh] = places.emplace(shard.as_string(), out.files.size());
    if (fresh) out.files.push_back(shard.as_string());
    out.tensors.emplace_back(tensor, it->second);
  }
  return out;
}

}  // namespace

Status SafetensorsSource::add_file(std::span<const std::byte> bytes, const std::string& file,
                                   const std::shared_ptr<const void>& owner) {
  QUIRE_ASSIGN(const std::string_view text, header_text(bytes, file));
  QUIRE_ASSIGN(const json::Value header, parse_header(text, file));
  std::vector<Entry> entries;
  for (const json::Member& member : header.as_object()) {
    if (member.first == "__metadata__") {
      if (!member.second.is_object()) return corrupt_file(file, "__metadata__ is not an object");
      for (const auto& [key, value] : member.second.as_object()) {
        if (!value.is_string()) return corrupt_file(file, "__metadata__ " + in_quotes(key) + " is not a string");
        if (files_ == 0) metadata_.emplace_back(key, value.as_string());
      }
      continue;
    }
    QUIRE_ASSIGN(Entry entry, read_entry(file, member));
    entries.push_back(std::move(entry));
  }
  const std::span<const std::byte> data = bytes.subspan(sizeof(uint64_t) + text.size());
  QUIRE_TRY(check_cover(file, entries, static_cast<int64_t>(data.size())));

  for (Entry& e : entries) {
    const std::string tensor_name = e.name;
    bool fresh = false;
    const auto place = data.subspan(static_cast<size_t>(e.begin), static_cast<size_t>(e.end - e.begin));
    if (const auto type = usable_type(e.type)) {
      fresh = add(TensorRef{std::move(e.name), *type, std::move(e.shape), place, owner});
    } else {
      fresh = add(UnsupportedTensor{std::move(e.name), e.type, std::move(e.shape), e.end - e.begin, place, owner});
    }
    if (!fresh) return corrupt_file(file, "tensor " + in_quotes(tensor_name) + " is in another shard, too");
  }
  ++files_;
  return {};
}

Result<std::shared_ptr<const SafetensorsSource>> SafetensorsSource::parse(std::span<const std::byte> bytes,
                                                                          std::string name,
                                                                          std::shared_ptr<const void> owner) {
  std::shared_ptr<SafetensorsSource> source(new SafetensorsSource());
  source->name_ = std::move(name);
  QUIRE_TRY(source->add_file(bytes, source->name_, owner));
  return std::shared_ptr<const SafetensorsSource>(std::move(source));
}

Result<std::shared_ptr<const SafetensorsSource>> SafetensorsSource::open(const std::filesystem::path& file) {
  QUIRE_ASSIGN(std::shared_ptr<const MappedFile> map, MappedFile::open(file));
  std::shared_ptr<SafetensorsSource> source(new SafetensorsSource());
  source->name_ = file.string();
  QUIRE_TRY(source->add_file(map->bytes(), source->name_, map));
  source->maps_.push_back(std::move(map));
  return std::shared_ptr<const SafetensorsSource>(std::move(source));
}

Result<std::shared_ptr<const SafetensorsSource>> SafetensorsSource::open_sharded(const std::filesystem::path& index) {
  QUIRE_ASSIGN(const Index listed, read_index(index));
  std::shared_ptr<SafetensorsSource> source(new SafetensorsSource());
  source->name_ = index.string();
  std::unordered_map<std::string, size_t> found_in;
  for (size_t i = 0; i < listed.files.size(); ++i) {
    const std::filesystem::path path = index.parent_path() / listed.files[i];
    auto map = MappedFile::open(path);
    if (!map.ok()) {
      return Error{map.error().code, map.error().message + " (" + in_quotes(index.string()) +
                                         " lists it as a shard: the download is incomplete)"};
    }
    const size_t before = source->size();
    QUIRE_TRY(source->add_file((*map)->bytes(), path.string(), *map));
    source->maps_.push_back(std::move(map).value());
    for (std::string& name : source->names_from(before)) found_in.emplace(std::move(name), i);
  }
  for (const auto& [tensor, file] : listed.tensors) {
    const auto it = found_in.find(tensor);
    if (it == found_in.end()) {
      return corrupt_file(index.string(), "tensor " + in_quotes(tensor) + " should be in '" + listed.files[file] +
                                              "', which does not have it");
    }
    if (it->second != file) {
      return corrupt_file(index.string(), "tensor " + in_quotes(tensor) + " should be in '" + listed.files[file] +
                                              "' but is in '" + listed.files[it->second] + "'");
    }
  }
  return std::shared_ptr<const SafetensorsSource>(std::move(source));
}

std::string SafetensorsSource::describe() const {
  return "safetensors '" + name_ + "', " + std::to_string(files_) + (files_ == 1 ? " file, " : " files, ") +
         describe_tensors();
}

Result<std::vector<std::string>> safetensors_index_files(const std::filesystem::path& index) {
  QUIRE_ASSIGN(Index listed, read_index(index));
  return std::move(listed.files);
}

}  // namespace quire::weights
