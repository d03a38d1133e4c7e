// SPDX-License-Identifier: Apache-2.0
// Makes one source of a GGUF file or of the parts of a split set.
#include "weights/gguf.h"

#include <charconv>
#include <cstdio>
#include <utility>

#include "base/file.h"
#include "weights/file_sniff.h"
#include "weights/ggml_types.h"
#include "weights/gguf_parse.h"

namespace quire::weights {
namespace {

constexpr int64_t kMaxSplits = 9999;

// The number of parts of this file's set; 1 if it is not split.
Result<int64_t> split_count(const GgufMetadata& metadata) {
  // Some writers use 0 for "not split".
  QUIRE_ASSIGN(const int64_t count, metadata.get_int_or("split.count", 1, 0, kMaxSplits));
  return count == 0 ? 1 : count;
}

// The expected file name of a part, from the name of any part and the number of this one.
std::string part_name(const std::filesystem::path& file, int64_t number, int64_t count) {
  auto name = parse_gguf_split_name(file.filename().string());
  if (!name) return "...-00001-of-" + std::to_string(count) + ".gguf";
  name->number = static_cast<int>(number);
  return gguf_split_name(*name);
}

}  // namespace

std::string_view ggml_type_name(uint32_t type) {
  const auto row = ggml_type(type);
  return row ? row->name : std::string_view();
}

std::optional<GgufSplitName> parse_gguf_split_name(std::string_view file_name) {
  // stem + "-00001-of-00005.gguf"
  constexpr size_t kTail = 20;
  if (file_name.size() <= kTail) return std::nullopt;
  const std::string_view tail = file_name.substr(file_name.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf") return std::nullopt;
  GgufSplitName out;
  const auto number = [](std::string_view digits, int& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() && digits[0] != '-';
  };
  if (!number(tail.substr(1, 5), out.number) || !number(tail.substr(10, 5), out.count)) return std::nullopt;
  if (out.number < 1 || out.number > out.count) return std::nullopt;
  out.stem = file_name.substr(0, file_name.size() - kTail);
  return out;
}

std::string gguf_split_name(const GgufSplitName& part) {
  char tail[48];
  std::snprintf(tail, sizeof tail, "-%05d-of-%05d.gguf", part.number, part.count);
  return part.stem + tail;
}

Result<GgufMetadata> GgufSource::add_file(std::span<const std::byte> bytes, const std::string& file,
                                          const std::shared_ptr<const void>& owner) {
  QUIRE_ASSIGN(GgufContents contents, parse_gguf(bytes, file));
  for (GgufTensorInfo& tensor : contents.tensors) {
    const std::string tensor_name = tensor.name;
    bool fresh = false;
    if (const auto type = dtype_of_ggml(tensor.type)) {
      fresh = add(TensorRef{std::move(tensor.name), *type, std::move(tensor.shape), tensor.data, owner});
    } else {
      fresh = add(UnsupportedTensor{
          std::move(tensor.name),
          std::string(ggml_type_name(tensor.type)) + " (ggml type " + std::to_string(tensor.type) + ")",
          std::move(tensor.shape), static_cast<int64_t>(tensor.data.size())});
    }
    if (!fresh) return corrupt_file(file, "tensor " + in_quotes(tensor_name) + " is in another part of the set, too");
  }
  if (files_ == 0) version_ = contents.version;
  ++files_;
  return std::move(contents.metadata);
}

Result<std::shared_ptr<const GgufSource>> GgufSource::parse(std::span<const std::byte> bytes, std::string name,
                                                            std::shared_ptr<const void> owner) {
  std::shared_ptr<GgufSource> source(new GgufSource());
  source->name_ = std::move(name);
  source->owner_ = owner;
  QUIRE_ASSIGN(source->metadata_, source->add_file(bytes, source->name_, owner));
  QUIRE_ASSIGN(const int64_t count, split_count(source->metadata_));
  if (count > 1) {
    return corrupt_file(source->name_,
                        "it is a part of a set of " + std::to_string(count) + " files: open the set by its first file");
  }
  return std::shared_ptr<const GgufSource>(std::move(source));
}

Result<std::shared_ptr<const GgufSource>> GgufSource::open(const std::filesystem::path& file) {
  QUIRE_ASSIGN(std::shared_ptr<const MappedFile> map, MappedFile::open(file));
  std::shared_ptr<GgufSource> source(new GgufSource());
  source->name_ = file.string();
  QUIRE_ASSIGN(source->metadata_, source->add_file(map->bytes(), source->name_, map));
  source->maps_.push_back(std::move(map));
  QUIRE_ASSIGN(const int64_t count, split_count(source->metadata_));
  if (count > 1) QUIRE_TRY(source->add_rest_of_split(file, count));
  return std::shared_ptr<const GgufSource>(std::move(source));
}

Status GgufSource::add_rest_of_split(const std::filesystem::path& first, int64_t count) {
  QUIRE_ASSIGN(const int64_t number, metadata_.get_int("split.no", 0, count - 1));
  const auto name = parse_gguf_split_name(first.filename().string());
  if (number != 0) {
    return invalid_argument({in_quotes(first.string()), " is part ", number + 1, " of a set of ", count,
                             " files: give the first one, '", part_name(first, 1, count), "'"});
  }
  if (!name || name->number != 1 || name->count != count) {
    return corrupt_file(first.string(), "it is the first of a set of " + std::to_string(count) +
                                            " files, which must keep their names (NAME-00001-of-" +
                                            gguf_split_name({"", 1, static_cast<int>(count)}).substr(10) +
                                            ", ...): the other parts cannot be found");
  }
  for (int64_t i = 1; i < count; ++i) {
    const std::filesystem::path path = first.parent_path() / part_name(first, i + 1, count);
    auto map = MappedFile::open(path);
    if (!map.ok()) {
      return Error{map.error().code, map.error().message + " (part " + std::to_string(i + 1) + " of " +
                                         std::to_string(count) + " of " + in_quotes(first.string()) +
                                         "; the download is incomplete)"};
    }
    QUIRE_ASSIGN(const GgufMetadata part, add_file((*map)->bytes(), path.string(), *map));
    QUIRE_ASSIGN(const int64_t part_count, part.get_int("split.count", 1, kMaxSplits));
    QUIRE_ASSIGN(const int64_t part_number, part.get_int("split.no", 0, kMaxSplits));
    if (part_count != count || part_number != i) {
      return corrupt_file(path.string(), "its metadata says part " + std::to_string(part_number + 1) + " of " +
                                             std::to_string(part_count) + " where part " + std::to_string(i + 1) +
                                             " of " + std::to_string(count) + " is needed");
    }
    maps_.push_back(std::move(map).value());
  }
  const auto all = static_cast<int64_t>(size());
  QUIRE_ASSIGN(const int64_t listed, metadata_.get_int_or("split.tensors.count", all, 0, INT64_MAX));
  if (listed != all) {
    return corrupt_file(first.string(), "the set has " + std::to_string(all) +
                                            " tensors where 'split.tensors.count' is " + std::to_string(listed));
  }
  return {};
}

std::string GgufSource::describe() const {
  return "GGUF v" + std::to_string(version_) + " '" + name_ + "', " + std::to_string(files_) +
         (files_ == 1 ? " file, " : " files, ") + describe_tensors();
}

}  // namespace quire::weights
