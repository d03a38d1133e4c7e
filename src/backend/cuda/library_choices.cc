// SPDX-License-Identifier: Apache-2.0
// The file: {"whose": ..., "shapes": {"4096x1024 BF16": {"F32": {"16": 64 bytes in hex, ...}, "BF16": {...}}}}.
#include "backend/cuda/library_choices.h"

#include <unistd.h>

#include <charconv>
#include <cstring>

#include "base/file.h"
#include "base/log.h"

namespace quire::cuda {
namespace {

constexpr size_t kMostBytes = size_t{16} << 20;

std::string key_of(const ProductShape& shape) {
  return std::to_string(shape.n) + "x" + std::to_string(shape.k) + " " + name(shape.type);
}

std::string hex_of(const LtAlgo& algorithm) {
  std::string out;
  for (const uint64_t word : algorithm.data) out += fmt::format("{:016x}", word);
  return out;
}

std::optional<LtAlgo> algorithm_of(const json::Value& value) {
  LtAlgo out = {};
  constexpr size_t kDigits = 16;
  if (!value.is_string() || value.as_string().size() != kDigits * std::size(out.data)) return std::nullopt;
  const char* at = value.as_string().data();
  for (uint64_t& word : out.data) {
    const auto [end, error] = std::from_chars(at, at + kDigits, word, 16);
    if (error != std::errc() || end != at + kDigits) return std::nullopt;
    at += kDigits;
  }
  return out;
}

uint64_t hash_of(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

ChoiceFile::ChoiceFile(const std::filesystem::path& folder, const std::string& whose) : whose_(whose) {
  if (!folder.empty()) path_ = folder / fmt::format("{:016x}.json", hash_of(whose));
}

json::Value ChoiceFile::read() const {
  json::Value empty{json::Object()};
  empty.set("whose", whose_);
  empty.set("shapes", json::Object());
  std::error_code failed;
  if (path_.empty() || !std::filesystem::exists(path_, failed)) return empty;
  const auto text = read_file(path_, kMostBytes);
  if (!text.ok()) return empty;
  auto parsed = json::parse(*text);
  if (!parsed.ok()) return empty;
  const json::Value* whose = parsed->find("whose");
  const json::Value* shapes = parsed->find("shapes");
  const bool ours = whose != nullptr && *whose == json::Value(whose_) && shapes != nullptr && shapes->is_object();
  return ours ? std::move(parsed).value() : empty;
}

std::optional<Choices> ChoiceFile::find(const ProductShape& shape) const {
  const json::Value all = read();
  const json::Value* kept = all.find("shapes")->find(key_of(shape));
  if (kept == nullptr) return std::nullopt;
  Choices out;
  for (const DType type : {DType::kF32, shape.type}) {
    const json::Value* steps = kept->find(name(type));
    if (steps == nullptr) return std::nullopt;
    for (const int64_t step : kRowSteps) {
      const json::Value* value = steps->find(std::to_string(step));
      if (value == nullptr) continue;  // a shape need not have all steps
      const std::optional<LtAlgo> algorithm = algorithm_of(*value);
      if (!algorithm) return std::nullopt;
      out[{type, step}] = *algorithm;
    }
  }
  return out;
}

// Another process may have written the file since it was read, and may be reading it now.
void ChoiceFile::keep(const ProductShape& shape, const Choices& choices) {
  if (path_.empty()) return;
  json::Value kept{json::Object()};
  for (const DType type : {DType::kF32, shape.type}) {
    json::Value steps{json::Object()};
    for (const auto& [key, algorithm] : choices) {
      if (key.first == type) steps.set(std::to_string(key.second), hex_of(algorithm));
    }
    kept.set(name(type), std::move(steps));
  }
  json::Value all = read();
  json::Value shapes = *all.find("shapes");
  shapes.set(key_of(shape), std::move(kept));
  all.set("shapes", std::move(shapes));

  std::error_code failed;
  std::filesystem::create_directories(path_.parent_path(), failed);
  const std::filesystem::path written = path_.string() + "." + std::to_string(::getpid());
  Status status = write_file(written, json::dump(all, 1) + "\n");
  if (status.ok()) {
    std::filesystem::rename(written, path_, failed);
    if (failed) status = unavailable(failed.message());
  }
  if (!status.ok()) {
    std::filesystem::remove(written, failed);
    log_info("cuda: could not keep the choice of cuBLASLt's algorithms in {}: {}", path_.string(),
             status.error().message);
  }
}

}  // namespace quire::cuda
