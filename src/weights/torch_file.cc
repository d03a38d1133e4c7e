// SPDX-License-Identifier: Apache-2.0
// A zip archive of stored entries: data.pkl says which tensors there are, data/0, data/1, ... are their bytes.
#include "weights/torch_file.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/file.h"

namespace quire::weights {
namespace {

constexpr size_t kMaxPickleBytes = size_t{1} << 20;
constexpr size_t kMaxTorchDims = 8;

Failure wrong_torch_file(const std::string& what) {
  return corrupt({what, "; save it as safetensors instead"});
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A little-endian number of `size` bytes. REQUIRES: it is inside.
uint64_t number_at(std::string_view bytes, size_t at, size_t size) {
  uint64_t out = 0;
  for (size_t i = 0; i < size; ++i) out |= uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return out;
}

// The entries of a zip archive by the part of their names behind the folder that all share. None may be compressed.
using ZipEntries = std::map<std::string, std::string_view, std::less<>>;

// One entry of the central directory, which begins at `at`; `at` moves behind it.
Status read_zip_entry(std::string_view bytes, size_t& at, ZipEntries& out) {
  constexpr size_t kHead = 46, kLocalHead = 30;
  if (bytes.size() - at < kHead || bytes.substr(at, 4) != "PK\1\2") {
    return wrong_torch_file("its zip directory is damaged");
  }
  const size_t size = number_at(bytes, at + 20, 4), whole = number_at(bytes, at + 24, 4);
  const size_t name_size = number_at(bytes, at + 28, 2);
  const size_t rest = name_size + number_at(bytes, at + 30, 2) + number_at(bytes, at + 32, 2);
  const size_t local = number_at(bytes, at + 42, 4);
  if (number_at(bytes, at + 10, 2) != 0 || size != whole) return wrong_torch_file("an entry of it is compressed");
  if (bytes.size() - at - kHead < rest || local > bytes.size() || bytes.size() - local < kLocalHead ||
      bytes.substr(local, 4) != "PK\3\4") {
    return wrong_torch_file("its zip directory is damaged");
  }
  const size_t begin = local + kLocalHead + number_at(bytes, local + 26, 2) + number_at(bytes, local + 28, 2);
  if (begin > bytes.size() || bytes.size() - begin < size) {
    return wrong_torch_file("an entry of it is outside of the file");
  }
  std::string_view name = bytes.substr(at + kHead, name_size);
  name.remove_prefix(std::min(name.find('/') + 1, name.size()));
  if (!out.emplace(name, bytes.substr(begin, size)).second) return wrong_torch_file("it has two entries of one name");
  at += kHead + rest;
  return {};
}

Result<ZipEntries> read_zip(std::string_view bytes) {
  constexpr size_t kEnd = 22;
  const size_t end = bytes.rfind("PK\5\6");
  if (end == std::string_view::npos || bytes.size() - end < kEnd) {
    return unsupported("it is no zip archive as torch.save writes it since version 1.6; save it as safetensors");
  }
  const size_t count = number_at(bytes, end + 10, 2);
  size_t at = number_at(bytes, end + 16, 4);
  if (at > end) return wrong_torch_file("its zip directory is damaged");
  ZipEntries out;
  for (size_t i = 0; i < count; ++i) QUIRE_TRY(read_zip_entry(bytes.substr(0, end), at, out));
  return out;
}

// A value of the pickle. Values refer to others by their numbers, so a pickle that contains itself is no cycle.
struct PickleValue {
  enum class Kind : uint8_t { kPlain, kNumber, kText, kName, kTuple, kDict, kStorage, kTensor };
  Kind kind = Kind::kPlain;
  int64_t number = 0;           // kNumber; the offset of a kTensor
  std::string text = {};        // kText; the dotted name of a kName; the type of a kStorage
  std::vector<uint32_t> items;  // of a tuple; the keys and values of a dict; of a tensor: storage, shape, strides
};
using PickleKind = PickleValue::Kind;

// Runs the instructions of a pickle over notes.
class PickleReader {
 public:
  explicit PickleReader(std::string_view code) : code_(code) {}

  // The number of the last value.
  Result<uint32_t> run() {
    for (bool stop = false; !stop;) {
      if (at_ >= code_.size()) return wrong_torch_file("its pickle has no end");
      const auto op = static_cast<unsigned char>(code_[at_++]);
      stop = op == '.';
      if (!stop) QUIRE_TRY(step(op));
    }
    return pop();
  }
  const PickleValue& value(uint32_t number) const { return values_[number]; }

 private:
  static constexpr uint32_t kMark = UINT32_MAX;

  void push(PickleValue value) {
    stack_.push_back(static_cast<uint32_t>(values_.size()));
    values_.push_back(std::move(value));
  }
  void push_number(int64_t number) { push({PickleKind::kNumber, number, {}, {}}); }

  Result<std::string_view> take(size_t size) {
    if (code_.size() - at_ < size) return wrong_torch_file("its pickle is truncated");
    at_ += size;
    return code_.substr(at_ - size, size);
  }
  Result<uint64_t> take_number(size_t size) {
    QUIRE_ASSIGN(const std::string_view bytes, take(size));
    return number_at(bytes, 0, size);
  }
  Result<std::string> take_line() {
    const size_t end = code_.find('\n', at_);
    if (end == std::string_view::npos) return wrong_torch_file("its pickle is truncated");
    std::string out(code_.substr(at_, end - at_));
    at_ = end + 1;
    return out;
  }
  Result<uint32_t> pop() {
    if (stack_.empty() || stack_.back() == kMark) return wrong_torch_file("its pickle takes a value that is not there");
    const uint32_t out = stack_.back();
    stack_.pop_back();
    return out;
  }
  // The values above the last mark.
  Result<std::vector<uint32_t>> pop_marked() {
    const auto mark = std::find(stack_.rbegin(), stack_.rend(), kMark);
    if (mark == stack_.rend()) return wrong_torch_file("its pickle takes a value that is not there");
    std::vector<uint32_t> out(mark.base(), stack_.end());
    stack_.resize(stack_.size() - out.size() - 1);
    return out;
  }
  Status push_tuple(size_t size) {
    PickleValue tuple{PickleKind::kTuple, 0, {}, std::vector<uint32_t>(size)};
    for (size_t i = size; i-- > 0;) {
      QUIRE_ASSIGN(tuple.items[i], pop());
    }
    push(std::move(tuple));
    return {};
  }
  Status push_text(size_t length_bytes) {
    QUIRE_ASSIGN(const uint64_t size, take_number(length_bytes));
    QUIRE_ASSIGN(const std::string_view text, take(size));
    push({PickleKind::kText, 0, std::string(text), {}});
    return {};
  }
  Status store(uint64_t slot) {
    if (stack_.empty() || stack_.back() == kMark) return wrong_torch_file("its pickle takes a value that is not there");
    memo_[slot] = stack_.back();
    return {};
  }
  Status load(uint64_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) return wrong_torch_file("its pickle takes a value that is not there");
    stack_.push_back(found->second);
    return {};
  }

  // Names of classes and functions. Only those of plain tensors may be called.
  Status push_name(const std::string& module, const std::string& name) {
    constexpr size_t kLongest = 200;
    if (module.size() + name.size() > kLongest) return wrong_torch_file("its pickle has a name that is too long");
    push({PickleKind::kName, 0, module + "." + name, {}});
    return {};
  }
  Status set_items(const std::vector<uint32_t>& items) {
    if (stack_.empty() || stack_.back() == kMark || items.size() % 2 != 0 ||
        value(stack_.back()).kind != PickleKind::kDict) {
      return wrong_torch_file("its pickle sets an item of something that is no dict");
    }
    auto& to = values_[stack_.back()].items;
    to.insert(to.end(), items.begin(), items.end());
    return {};
  }
  // ("storage", torch.FloatStorage, "0", "cpu", 4): the bytes are in data/0.
  Status push_storage() {
    QUIRE_ASSIGN(const uint32_t number, pop());
    const PickleValue& from = value(number);
    if (from.kind != PickleKind::kTuple || from.items.size() != 5 || value(from.items[0]).text != "storage" ||
        value(from.items[1]).kind != PickleKind::kName || value(from.items[2]).kind != PickleKind::kText) {
      return wrong_torch_file("its pickle names a storage in an unknown way");
    }
    push({PickleKind::kStorage, 0, value(from.items[1]).text, {from.items[2]}});
    return {};
  }
  Status call() {
    QUIRE_ASSIGN(const uint32_t arguments, pop());
    QUIRE_ASSIGN(const uint32_t callee, pop());
    const std::vector<uint32_t>& given = value(arguments).items;
    const std::string& name = value(callee).text;
    const bool is_call = value(callee).kind == PickleKind::kName && value(arguments).kind == PickleKind::kTuple;
    if (is_call && name == "collections.OrderedDict" && given.empty()) {
      push({PickleKind::kDict, 0, {}, {}});
      return {};
    }
    if (is_call && name == "torch._utils._rebuild_parameter" && !given.empty()) {
      stack_.push_back(given[0]);
      return {};
    }
    if (is_call && name == "torch._utils._rebuild_tensor_v2" && given.size() >= 4) {
      if (value(given[0]).kind != PickleKind::kStorage || value(given[1]).kind != PickleKind::kNumber ||
          value(given[2]).kind != PickleKind::kTuple || value(given[3]).kind != PickleKind::kTuple) {
        return wrong_torch_file("a tensor of its pickle is not plain");
      }
      push({PickleKind::kTensor, value(given[1]).number, {}, {given[0], given[2], given[3]}});
      return {};
    }
    return unsupported({"its pickle calls '", name.substr(0, 80),
                        "', which is no part of a plain tensor, and quire runs no pickles; save it as safetensors"});
  }

  Status step(unsigned char op) {
    switch (op) {
      case 0x80:  // PROTO
        return skip(1);
      case 0x95:  // FRAME
        return skip(8);
      case 'c': {  // GLOBAL
        QUIRE_ASSIGN(const std::string module, take_line());
        QUIRE_ASSIGN(const std::string name, take_line());
        return push_name(module, name);
      }
      case 0x93: {  // STACK_GLOBAL
        QUIRE_ASSIGN(const uint32_t name, pop());
        QUIRE_ASSIGN(const uint32_t module, pop());
        return push_name(value(module).text, value(name).text);
      }
      case '(':
        stack_.push_back(kMark);
        return {};
      case ')':
        return push_tuple(0);
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(op - 0x84u);
      case 't': {
        QUIRE_ASSIGN(std::vector<uint32_t> items, pop_marked());
        push({PickleKind::kTuple, 0, {}, std::move(items)});
        return {};
      }
      case '}':
        push({PickleKind::kDict, 0, {}, {}});
        return {};
      case 'X':  // BINUNICODE
        return push_text(4);
      case 0x8c:  // SHORT_BINUNICODE
        return push_text(1);
      case 'J': {  // BININT
        QUIRE_ASSIGN(const uint64_t number, take_number(4));
        push_number(static_cast<int32_t>(static_cast<uint32_t>(number)));
        return {};
      }
      case 'K':
      case 'M': {  // BININT1, BININT2
        QUIRE_ASSIGN(const uint64_t number, take_number(op == 'K' ? 1 : 2));
        push_number(static_cast<int64_t>(number));
        return {};
      }
      case 0x88:
      case 0x89:
        push_number(op == 0x88);
        return {};
      case 'N':
        push({});
        return {};
      default:
        return step_on_stack(op);
    }
  }

  Status step_on_stack(unsigned char op) {
    switch (op) {
      case 'q':
      case 'r': {  // BINPUT, LONG_BINPUT
        QUIRE_ASSIGN(const uint64_t slot, take_number(op == 'q' ? 1 : 4));
        return store(slot);
      }
      case 0x94:  // MEMOIZE
        return store(memo_.size());
      case 'h':
      case 'j': {  // BINGET, LONG_BINGET
        QUIRE_ASSIGN(const uint64_t slot, take_number(op == 'h' ? 1 : 4));
        return load(slot);
      }
      case 'Q':  // BINPERSID
        return push_storage();
      case 'R':   // REDUCE
      case 0x81:  // NEWOBJ
        return call();
      case 'b': {  // BUILD: attributes, such as the versions of modules in a state dict
        QUIRE_ASSIGN([[maybe_unused]] const uint32_t attributes, pop());
        return {};
      }
      case 's': {  // SETITEM
        QUIRE_ASSIGN(const uint32_t item, pop());
        QUIRE_ASSIGN(const uint32_t key, pop());
        return set_items({key, item});
      }
      case 'u': {  // SETITEMS
        QUIRE_ASSIGN(const std::vector<uint32_t> items, pop_marked());
        return set_items(items);
      }
      default:
        return unsupported({"its pickle has the instruction ", op,
                            ", which the state dict of plain tensors does not need; save it as safetensors"});
    }
  }
  Status skip(size_t size) {
    QUIRE_ASSIGN([[maybe_unused]] const std::string_view bytes, take(size));
    return {};
  }

  std::string_view code_;
  size_t at_ = 0;
  std::deque<PickleValue> values_;  // references stay valid
  std::vector<uint32_t> stack_;
  std::map<uint64_t, uint32_t> memo_;
};

std::optional<DType> storage_type(std::string_view name) {
  if (name == "torch.FloatStorage") return DType::kF32;
  if (name == "torch.HalfStorage") return DType::kF16;
  if (name == "torch.BFloat16Storage") return DType::kBF16;
  return std::nullopt;
}

// A tensor that the pickle describes: rows one after another in its storage.
Result<TensorRef> read_tensor(const PickleReader& pickle, const PickleValue& from, const ZipEntries& entries) {
  const PickleValue& storage = pickle.value(from.items[0]);
  const std::vector<uint32_t>& shape = pickle.value(from.items[1]).items;
  const std::vector<uint32_t>& strides = pickle.value(from.items[2]).items;
  TensorRef out;
  const std::optional<DType> type = storage_type(storage.text);
  if (!type) {
    return unsupported(
        {"a tensor of it has the type ", storage.text.substr(0, 40), "; quire reads float32, float16 and bfloat16"});
  }
  out.dtype = *type;
  if (shape.size() != strides.size() || shape.size() > kMaxTorchDims) {
    return wrong_torch_file("a tensor of it has a wrong shape");
  }
  int64_t elements = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    const PickleValue& size = pickle.value(shape[i]);
    const PickleValue& stride = pickle.value(strides[i]);
    if (size.kind != PickleKind::kNumber || size.number < 1 || stride.kind != PickleKind::kNumber ||
        (size.number > 1 && stride.number != elements) || __builtin_mul_overflow(elements, size.number, &elements) ||
        elements > int64_t{1} << 40) {
      return wrong_torch_file("a tensor of it is empty, or its rows are not one after another");
    }
    out.shape.insert(out.shape.begin(), size.number);
  }
  const auto entry = entries.find("data/" + pickle.value(storage.items[0]).text);
  const int64_t bytes = elements * info(out.dtype).block_bytes;
  const int64_t begin = from.number;
  if (entry == entries.end() || begin < 0 || begin > int64_t{1} << 40 ||
      begin * info(out.dtype).block_bytes + bytes > static_cast<int64_t>(entry->second.size())) {
    return wrong_torch_file("the bytes of a tensor of it are missing");
  }
  const auto* data = reinterpret_cast<const std::byte*>(entry->second.data()) + begin * info(out.dtype).block_bytes;
  out.data = {data, static_cast<size_t>(bytes)};
  return out;
}

}  // namespace

Result<std::shared_ptr<const TorchSource>> TorchSource::parse(std::span<const std::byte> bytes, std::string name,
                                                              std::shared_ptr<const void> owner) {
  std::shared_ptr<TorchSource> out(new TorchSource());
  out->name_ = std::move(name);
  const auto fill = [&]() -> Status {
    QUIRE_ASSIGN(const ZipEntries entries, read_zip(text_of(bytes)));
    const auto code = entries.find("data.pkl");
    if (code == entries.end()) return wrong_torch_file("it has no data.pkl");
    if (code->second.size() > kMaxPickleBytes) return wrong_torch_file("its pickle has more than a megabyte");
    if (const auto order = entries.find("byteorder"); order != entries.end() && order->second != "little") {
      return quire::unsupported("its numbers are not little-endian; save it as safetensors");
    }
    PickleReader pickle(code->second);
    QUIRE_ASSIGN(const uint32_t root, pickle.run());
    const PickleValue& dict = pickle.value(root);
    if (dict.kind != PickleKind::kDict)
      return quire::unsupported("it holds no dict of tensors; save it as safetensors");
    size_t total = 0;
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickleValue& key = pickle.value(dict.items[i]);
      const PickleValue& value = pickle.value(dict.items[i + 1]);
      if (key.kind != PickleKind::kText || value.kind != PickleKind::kTensor) {
        return quire::unsupported("it holds more than tensors; save it as safetensors");
      }
      QUIRE_ASSIGN(TensorRef tensor, read_tensor(pickle, value, entries));
      tensor.name = key.text;
      tensor.owner = owner;
      total += tensor.data.size();
      if (total > bytes.size()) return wrong_torch_file("its tensors share their bytes");
      if (!out->add(std::move(tensor))) return wrong_torch_file("it has two tensors of one name");
    }
    return {};
  };
  if (const Status status = fill(); !status.ok()) {
    return Error{status.error().code, "'" + out->name_ + "': " + status.error().message};
  }
  return std::shared_ptr<const TorchSource>(std::move(out));
}

Result<std::shared_ptr<const TorchSource>> TorchSource::open(const std::filesystem::path& file) {
  constexpr size_t kMaxFileBytes = size_t{1} << 30;
  QUIRE_ASSIGN(std::string text, read_file(file, kMaxFileBytes));
  const auto owner = std::make_shared<const std::string>(std::move(text));
  return parse(std::as_bytes(std::span(*owner)), file.string(), owner);
}

std::string TorchSource::describe() const {
  return "torch file, " + describe_tensors();
}

}  // namespace quire::weights
