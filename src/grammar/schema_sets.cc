// SPDX-License-Identifier: Apache-2.0
// Intersection, union and complement of sets of JSON values.
#include "grammar/schema_sets.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_set>

namespace quire::grammar::schema {

namespace {

constexpr size_t kMaxShapes = 1000;
constexpr int kMaxProofDepth = 12;
constexpr int64_t kMaxWork = 10'000'000;  // steps of the store, some 0.1 microseconds each
// What is copied takes less fuel than what is looked into. With this, an enum of 100,000 values may be copied 60 times,
// and all copies together stay below some hundred MB.
constexpr size_t kPartsPerStep = 16;
constexpr size_t kBytesPerPart = 64;  // of a long string

// The fuel to copy or go through so many values, names or positions of a list.
int64_t steps_of(size_t parts) {
  return static_cast<int64_t>(parts / kPartsPerStep);
}

bool unconstrained(const ObjectShape& shape) {
  return shape.specs.empty() && shape.required.empty() && shape.exists.empty() && shape.min == 0 && !shape.max &&
         StringSets::is_all(shape.names);
}

void tighten(std::optional<int64_t>& max, const std::optional<int64_t>& other) {
  if (other && (!max || *other < *max)) max = other;
}

template <typename T>
void append(std::vector<T>& out, const std::vector<T>& more) {
  out.insert(out.end(), more.begin(), more.end());
}

size_t parts_of(const std::vector<std::string>& strings) {
  size_t out = strings.size();
  for (const std::string& string : strings) out += string.size() / kBytesPerPart;
  return out;
}

size_t parts_of(const StringSet& set) {
  return parts_of(set.values);
}

size_t parts_of(const NumberSet& set) {
  return set.values.size();
}

size_t parts_of(const ValueSet& set) {
  return parts_of(set.strings) + parts_of(set.numbers);
}

// What the intersection of two sets goes through: the shorter list, if both have one.
template <typename Set>
size_t common_parts(const Set& a, const Set& b) {
  if (a.form != Set::Form::kValues) return parts_of(b);
  if (b.form != Set::Form::kValues) return parts_of(a);
  return parts_of(a.values.size() <= b.values.size() ? a : b);
}

// The union of sets that list their values. To add one after the other would copy the first ones for each.
template <typename Sets, typename Set>
Set merged(Sets& algebra, std::span<const Set* const> sets) {
  if (sets.empty()) return Sets::none();
  if (sets.size() == 1) return *sets[0];
  const size_t half = sets.size() / 2;
  return algebra.either(merged(algebra, sets.first(half)), merged(algebra, sets.subspan(half)));
}

// Appends pointers that are not there yet.
template <typename T>
void append_new(std::vector<std::shared_ptr<const T>>& out, const std::vector<std::shared_ptr<const T>>& more) {
  for (const auto& each : more) {
    if (std::find(out.begin(), out.end(), each) == out.end()) out.push_back(each);
  }
}

// Appends names that are not there yet.
void append_new_names(std::vector<std::string>& out, const std::vector<std::string>& more) {
  if (out.empty()) {
    out = more;
    return;
  }
  const std::unordered_set<std::string> known(out.begin(), out.end());
  std::copy_if(more.begin(), more.end(), std::back_inserter(out),
               [&](const std::string& name) { return !known.contains(name); });
}

Failure too_many_shapes() {
  return unsupported("its combinations of cases are too many");
}

}  // namespace

std::shared_ptr<const PropertySpec> make_spec(PropertySpec spec) {
  auto out = std::make_shared<PropertySpec>(std::move(spec));
  for (size_t i = 0; i < out->properties.size(); ++i) out->index.emplace(out->properties[i].first, i);
  return out;
}

Conjunctions::Conjunctions() {
  all_.push_back({});  // kAny
  all_.push_back({});  // kNever: never looked into
  index_.emplace(std::vector<Literal>{}, kAny);
}

ConjId Conjunctions::intern(std::vector<Literal> literals) {
  const auto [entry, added] = index_.try_emplace(literals, static_cast<ConjId>(all_.size()));
  if (added) all_.push_back(std::move(literals));
  return entry->second;
}

ConjId Conjunctions::both(ConjId a, ConjId b) {
  if (a == b || b == kAny) return a;
  if (a == kAny) return b;
  if (a == kNever || b == kNever) return kNever;
  std::vector<Literal> out;
  std::set_union(all_[a].begin(), all_[a].end(), all_[b].begin(), all_[b].end(), std::back_inserter(out));
  for (size_t i = 0; i + 1 < out.size(); ++i) {
    if (out[i].node == out[i + 1].node) return kNever;  // a schema and its negation
  }
  return intern(std::move(out));
}

SchemaSets::SchemaSets(RegexStore& store, bool strict_integers)
    : store_(store), numbers_(store, strict_integers), strings_(store) {}

Status SchemaSets::spend(int64_t amount) {
  fuel_ -= amount;
  if (fuel_ < 0 || store_.work() > kMaxWork) return unsupported("the schema takes too long to translate");
  if (store_.full()) return unsupported("the regular expressions of the schema need too much memory");
  return {};
}

ValueSet SchemaSets::all() {
  ValueSet out;
  out.has_null = out.has_true = out.has_false = true;
  out.numbers = NumberSets::all();
  out.strings = StringSets::all();
  out.arrays.emplace_back();
  out.objects.emplace_back();
  return out;
}

ObjectShape SchemaSets::shape_of_member(std::string_view name, ConjId value) {
  PropertySpec spec;
  spec.properties.emplace_back(name, value);
  ObjectShape out;
  out.specs.push_back(make_spec(std::move(spec)));
  return out;
}

ConjId SchemaSets::member_of(const PropertySpec& spec, std::string_view name) {
  ConjId out = kAny;
  bool listed = false;
  if (const auto found = spec.index.find(name); found != spec.index.end()) {
    out = spec.properties[found->second].second;
    listed = true;
  }
  for (const auto& [pattern, value] : spec.patterns) {
    if (!store_.matches(pattern, name)) continue;
    out = conjunctions_.both(out, value);
    listed = true;
  }
  return listed || !spec.additional ? out : *spec.additional;
}

ConjId SchemaSets::member_of(const ObjectShape& shape, std::string_view name) {
  ConjId out = kAny;
  for (const auto& spec : shape.specs) out = conjunctions_.both(out, member_of(*spec, name));
  return out;
}

size_t SchemaSets::longest_prefix(const ArrayShape& shape) {
  size_t out = 0;
  for (const auto& spec : shape.specs) out = std::max(out, spec->prefix.size());
  return out;
}

// How many of the first positions that schemas tell apart have an item in every array of this shape.
size_t SchemaSets::required_positions(const ArrayShape& shape) {
  return std::min<size_t>(static_cast<size_t>(shape.min), longest_prefix(shape) + 1);
}

ConjId SchemaSets::item_of(const ArrayShape& shape, size_t position) {
  ConjId out = kAny;
  for (const auto& spec : shape.specs)
    out = conjunctions_.both(out, position < spec->prefix.size() ? spec->prefix[position] : spec->rest);
  return out;
}

// Whether a conjunction certainly has no values. What cannot be evaluated counts as having some.
bool SchemaSets::proven_none(ConjId id) {
  if (id == kNever) return true;
  if (id == kAny) return false;
  if (const auto known = known_none_.find(id); known != known_none_.end()) return known->second;
  if (depth_ >= kMaxProofDepth) return false;
  known_none_[id] = false;  // a schema that contains itself is no proof
  ++depth_;
  const Result<std::shared_ptr<const ValueSet>> set = values(id);
  const bool none = set.ok() && is_none(**set);
  --depth_;
  known_none_[id] = none;
  return none;
}

bool SchemaSets::is_none(const ObjectShape& shape) {
  if (shape.max && (shape.min > *shape.max || static_cast<int64_t>(shape.required.size()) > *shape.max)) return true;
  for (const std::string& name : shape.required) {
    if (!StringSets::is_all(shape.names) && !strings_.has(shape.names, name)) return true;
    const ConjId value = member_of(shape, name);
    if (value == kNever) return true;
    if (shape.specs.size() > 1 && conjunctions_.literals(value).size() > 1 && proven_none(value)) return true;
  }
  return false;
}

bool SchemaSets::is_none(const ArrayShape& shape) {
  if (shape.max && shape.min > *shape.max) return true;
  const size_t positions = required_positions(shape);
  for (size_t i = 0; i < positions; ++i) {
    const ConjId item = item_of(shape, i);
    if (item == kNever) return true;
    if (conjunctions_.literals(item).size() > 1 && proven_none(item)) return true;
  }
  return false;
}

bool SchemaSets::is_none(const ValueSet& a) {
  return !a.has_null && !a.has_true && !a.has_false && a.arrays.empty() && a.objects.empty() &&
         numbers_.is_none(a.numbers) && strings_.is_none(a.strings);
}

Result<std::vector<ObjectShape>> SchemaSets::both(const std::vector<ObjectShape>& a,
                                                  const std::vector<ObjectShape>& b) {
  for (const bool first : {true, false}) {
    const std::vector<ObjectShape>&any = first ? a : b, &other = first ? b : a;
    if (any.size() != 1 || !unconstrained(any[0]) || !any[0].evaluated.empty()) continue;
    for (const ObjectShape& shape : other)
      QUIRE_TRY(spend(steps_of(parts_of(shape.required) + parts_of(shape.names) + shape.specs.size())));
    return other;
  }
  std::vector<ObjectShape> out;
  for (const ObjectShape& left : a) {
    for (const ObjectShape& right : b) {
      QUIRE_TRY(spend(4 + static_cast<int64_t>(left.required.size() + right.required.size() + left.specs.size())));
      QUIRE_TRY(spend(steps_of(common_parts(left.names, right.names))));
      ObjectShape shape = left;
      append_new(shape.specs, right.specs);
      append_new(shape.evaluated, right.evaluated);
      append(shape.exists, right.exists);
      append_new_names(shape.required, right.required);
      shape.names = strings_.both(left.names, right.names);
      shape.min = std::max(left.min, right.min);
      tighten(shape.max, right.max);
      if (is_none(shape)) continue;
      if (out.size() >= kMaxShapes) return too_many_shapes();
      out.push_back(std::move(shape));
    }
  }
  return out;
}

Result<std::vector<ArrayShape>> SchemaSets::both(const std::vector<ArrayShape>& a, const std::vector<ArrayShape>& b) {
  std::vector<ArrayShape> out;
  for (const ArrayShape& left : a) {
    for (const ArrayShape& right : b) {
      QUIRE_TRY(spend(4 + steps_of(left.specs.size() + left.contains.size())));
      ArrayShape shape = left;
      append_new(shape.specs, right.specs);
      append(shape.contains, right.contains);
      shape.min = std::max(left.min, right.min);
      tighten(shape.max, right.max);
      shape.unique |= right.unique;
      shape.evaluated = std::max(left.evaluated, right.evaluated);
      shape.all_evaluated |= right.all_evaluated;
      shape.some_evaluated |= right.some_evaluated;
      // is_none joins the schemas of each position.
      QUIRE_TRY(spend(steps_of(shape.specs.size() * shape.specs.size() * required_positions(shape))));
      if (is_none(shape)) continue;
      if (out.size() >= kMaxShapes) return too_many_shapes();
      out.push_back(std::move(shape));
    }
  }
  return out;
}

Result<ValueSet> SchemaSets::both(const ValueSet& a, const ValueSet& b) {
  ValueSet out;
  out.has_null = a.has_null && b.has_null;
  out.has_true = a.has_true && b.has_true;
  out.has_false = a.has_false && b.has_false;
  QUIRE_TRY(spend(steps_of(common_parts(a.numbers, b.numbers) + common_parts(a.strings, b.strings))));
  out.numbers = numbers_.both(a.numbers, b.numbers);
  out.strings = strings_.both(a.strings, b.strings);
  QUIRE_ASSIGN(out.arrays, both(a.arrays, b.arrays));
  QUIRE_ASSIGN(out.objects, both(a.objects, b.objects));
  return out;
}

Result<ValueSet> SchemaSets::either(const ValueSet& a, const ValueSet& b) {
  ValueSet out;
  out.has_null = a.has_null || b.has_null;
  out.has_true = a.has_true || b.has_true;
  out.has_false = a.has_false || b.has_false;
  QUIRE_TRY(spend(steps_of(parts_of(a) + parts_of(b))));
  out.numbers = numbers_.either(a.numbers, b.numbers);
  out.strings = strings_.either(a.strings, b.strings);
  QUIRE_TRY(spend(static_cast<int64_t>(2 + a.arrays.size() + b.arrays.size() + a.objects.size() + b.objects.size())));
  out.arrays = a.arrays;
  append(out.arrays, b.arrays);
  out.objects = a.objects;
  append(out.objects, b.objects);
  if (out.arrays.size() > kMaxShapes || out.objects.size() > kMaxShapes) return too_many_shapes();
  return out;
}

// All values that the sets list, and what the other sets hold.
template <typename Sets, typename Set>
Result<Set> SchemaSets::union_of(Sets& algebra, const std::vector<const Set*>& sets) {
  std::vector<const Set*> lists;
  Set others = Sets::none();
  for (const Set* set : sets) {
    QUIRE_TRY(spend(steps_of(parts_of(*set))));
    if (set->form == Set::Form::kValues) {
      lists.push_back(set);
    } else {
      others = algebra.either(others, *set);
    }
  }
  return algebra.either(merged(algebra, std::span<const Set* const>(lists)), others);
}

Result<ValueSet> SchemaSets::any_of(const std::vector<std::shared_ptr<const ValueSet>>& sets) {
  ValueSet out;
  std::vector<const NumberSet*> numbers;
  std::vector<const StringSet*> strings;
  for (const auto& set : sets) {
    QUIRE_TRY(spend(static_cast<int64_t>(2 + set->arrays.size() + set->objects.size())));
    out.has_null |= set->has_null;
    out.has_true |= set->has_true;
    out.has_false |= set->has_false;
    numbers.push_back(&set->numbers);
    strings.push_back(&set->strings);
    for (const ObjectShape& shape : set->objects)
      QUIRE_TRY(spend(steps_of(parts_of(shape.required) + parts_of(shape.names) + shape.specs.size())));
    append(out.arrays, set->arrays);
    append(out.objects, set->objects);
    if (out.arrays.size() > kMaxShapes || out.objects.size() > kMaxShapes) return too_many_shapes();
  }
  QUIRE_ASSIGN(out.numbers, union_of(numbers_, numbers));
  QUIRE_ASSIGN(out.strings, union_of(strings_, strings));
  return out;
}

std::vector<ConjId> SchemaSets::negations_of(ConjId id) {
  if (id == kNever) return {kAny};
  const std::vector<Literal> literals = conjunctions_.literals(id);  // a copy: of() may move the originals
  std::vector<ConjId> out;
  for (const Literal literal : literals) out.push_back(conjunctions_.of({literal.node, !literal.negated}));
  return out;
}

// One shape for each way in which an object may fail to be of this one.
Result<std::vector<ObjectShape>> SchemaSets::complement(const ObjectShape& shape) {
  if (!shape.exists.empty()) return unsupported("a negation is nested in another");
  if (shape.required.size() > kMaxShapes) return too_many_shapes();
  std::vector<ObjectShape> out;
  for (const std::string& name : shape.required) out.push_back(shape_of_member(name, kNever));
  if (shape.min > 0) out.emplace_back().max = shape.min - 1;
  if (shape.max) out.emplace_back().min = *shape.max + 1;
  auto some = [&](StringSet names, ConjId value) {
    for (const ConjId negation : negations_of(value)) out.emplace_back().exists.push_back({names, negation});
  };
  if (!StringSets::is_all(shape.names)) some(strings_.complement(shape.names), kNever);
  for (const auto& spec : shape.specs) {
    QUIRE_TRY(spend(static_cast<int64_t>(1 + spec->properties.size() + spec->patterns.size())));
    for (const auto& [name, value] : spec->properties) {
      for (const ConjId negation : negations_of(value)) {
        if (out.size() >= kMaxShapes) return too_many_shapes();
        ObjectShape failing = shape_of_member(name, negation);
        failing.required.push_back(name);
        out.push_back(std::move(failing));
      }
    }
    for (const auto& [pattern, value] : spec->patterns) some(StringSets::of_regex(pattern), value);
    if (!spec->additional || *spec->additional == kAny) continue;
    std::vector<std::string> listed;
    for (const auto& [name, value] : spec->properties) listed.push_back(name);
    StringSet others = strings_.complement(StringSets::of_values(std::move(listed)));
    for (const auto& [pattern, value] : spec->patterns)
      others = strings_.both(others, strings_.complement(StringSets::of_regex(pattern)));
    some(others, *spec->additional);
  }
  if (out.size() > kMaxShapes) return too_many_shapes();
  return out;
}

Result<std::vector<ArrayShape>> SchemaSets::complement(const ArrayShape& shape) {
  if (shape.unique) return unsupported("uniqueItems is negated");
  std::vector<ArrayShape> out;
  if (shape.min > 0) out.emplace_back().max = shape.min - 1;
  if (shape.max) out.emplace_back().min = *shape.max + 1;
  for (const auto& spec : shape.specs) {
    QUIRE_TRY(spend(static_cast<int64_t>(1 + spec->prefix.size())));
    for (size_t i = 0; i < spec->prefix.size(); ++i) {
      for (const ConjId negation : negations_of(spec->prefix[i])) {
        // Each shape has a list of its own, so they are counted before they are made.
        if (i >= kMaxPrefix) return unsupported("its list of items is too long");
        if (out.size() >= kMaxShapes) return too_many_shapes();
        QUIRE_TRY(spend(steps_of(i)));
        ItemSpec failing;
        failing.prefix.assign(i, kAny);
        failing.prefix.push_back(negation);
        ArrayShape& added = out.emplace_back();
        added.min = static_cast<int64_t>(i) + 1;
        added.specs.push_back(std::make_shared<ItemSpec>(std::move(failing)));
      }
    }
    for (const ConjId negation : negations_of(spec->rest)) {
      if (negation == kAny) {
        out.emplace_back().min = static_cast<int64_t>(spec->prefix.size()) + 1;
      } else {
        out.emplace_back().contains.push_back({negation, spec->prefix.size(), 1, std::nullopt});
      }
    }
  }
  for (const ContainsSpec& contains : shape.contains) {
    if (contains.min > 0) out.emplace_back().contains.push_back({contains.item, contains.from, 0, contains.min - 1});
    if (contains.max)
      out.emplace_back().contains.push_back({contains.item, contains.from, *contains.max + 1, std::nullopt});
  }
  if (out.size() > kMaxShapes) return too_many_shapes();
  return out;
}

Result<std::vector<ObjectShape>> SchemaSets::complement(const std::vector<ObjectShape>& shapes) {
  std::vector<ObjectShape> out(1);
  for (const ObjectShape& shape : shapes) {
    if (out.empty()) break;
    QUIRE_ASSIGN(const std::vector<ObjectShape> outside, complement(shape));
    QUIRE_ASSIGN(out, both(out, outside));
  }
  for (ObjectShape& shape : out) shape.evaluated.clear();
  return out;
}

Result<std::vector<ArrayShape>> SchemaSets::complement(const std::vector<ArrayShape>& shapes) {
  std::vector<ArrayShape> out(1);
  for (const ArrayShape& shape : shapes) {
    if (out.empty()) break;
    QUIRE_ASSIGN(const std::vector<ArrayShape> outside, complement(shape));
    QUIRE_ASSIGN(out, both(out, outside));
  }
  for (ArrayShape& shape : out) {
    shape.evaluated = 0;
    shape.all_evaluated = shape.some_evaluated = false;
  }
  return out;
}

Result<ValueSet> SchemaSets::complement(const ValueSet& a) {
  ValueSet out;
  out.has_null = !a.has_null;
  out.has_true = !a.has_true;
  out.has_false = !a.has_false;
  QUIRE_TRY(spend(steps_of(parts_of(a))));
  out.numbers = numbers_.complement(a.numbers);
  out.strings = strings_.complement(a.strings);
  QUIRE_ASSIGN(out.arrays, complement(a.arrays));
  QUIRE_ASSIGN(out.objects, complement(a.objects));
  return out;
}

// Of each set, what the sets that overlap with it leave.
template <typename Shape>
Result<std::vector<Shape>> SchemaSets::exactly_one_of(const std::vector<const std::vector<Shape>*>& all) {
  // Of many branches few have arrays or objects.
  std::vector<const std::vector<Shape>*> sets;
  std::copy_if(all.begin(), all.end(), std::back_inserter(sets), [](const auto* set) { return !set->empty(); });
  std::vector<std::vector<size_t>> overlaps(sets.size());
  for (size_t i = 0; i < sets.size(); ++i) {
    for (size_t j = i + 1; j < sets.size(); ++j) {
      QUIRE_ASSIGN(const std::vector<Shape> common, both(*sets[i], *sets[j]));
      if (common.empty()) continue;
      overlaps[i].push_back(j);
      overlaps[j].push_back(i);
    }
  }
  std::vector<Shape> out;
  for (size_t i = 0; i < sets.size(); ++i) {
    std::vector<Shape> left = *sets[i];
    for (const size_t j : overlaps[i]) {
      if (left.empty()) break;
      QUIRE_ASSIGN(const std::vector<Shape> outside, complement(*sets[j]));
      QUIRE_ASSIGN(left, both(left, outside));
    }
    append(out, left);
    if (out.size() > kMaxShapes) return too_many_shapes();
  }
  return out;
}

// What belongs to one of the sets alone. Listed values are counted together: to unite them one set at a time would copy
// them for each.
template <typename Sets, typename Set>
Result<Set> SchemaSets::only_one_of(Sets& algebra, const std::vector<const Set*>& sets) {
  decltype(Set::values) values, repeated;
  for (const Set* set : sets) {
    if (set->form != Set::Form::kValues) continue;
    QUIRE_TRY(spend(steps_of(parts_of(*set))));
    append(values, set->values);
  }
  std::sort(values.begin(), values.end());
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] == values[i - 1]) repeated.push_back(values[i]);
  }
  Set some = Sets::of_values(std::move(values)), twice = Sets::of_values(std::move(repeated));
  for (const Set* set : sets) {
    if (set->form == Set::Form::kValues) continue;
    QUIRE_TRY(spend(1 + steps_of(parts_of(some))));
    const Set again = algebra.both(some, *set);
    if (!algebra.is_none(again)) twice = algebra.either(twice, again);
    some = algebra.either(some, *set);
  }
  return algebra.both(some, algebra.complement(twice));
}

Result<ValueSet> SchemaSets::exactly_one(const std::vector<ValueSet>& sets) {
  ValueSet out;
  int nulls = 0, trues = 0, falses = 0;
  std::vector<const NumberSet*> numbers;
  std::vector<const StringSet*> strings;
  std::vector<const std::vector<ArrayShape>*> arrays;
  std::vector<const std::vector<ObjectShape>*> objects;
  for (const ValueSet& set : sets) {
    QUIRE_TRY(spend(4));
    nulls += set.has_null;
    trues += set.has_true;
    falses += set.has_false;
    numbers.push_back(&set.numbers);
    strings.push_back(&set.strings);
    arrays.push_back(&set.arrays);
    objects.push_back(&set.objects);
  }
  out.has_null = nulls == 1;
  out.has_true = trues == 1;
  out.has_false = falses == 1;
  QUIRE_ASSIGN(out.numbers, only_one_of(numbers_, numbers));
  QUIRE_ASSIGN(out.strings, only_one_of(strings_, strings));
  QUIRE_ASSIGN(out.arrays, exactly_one_of<ArrayShape>(arrays));
  QUIRE_ASSIGN(out.objects, exactly_one_of<ObjectShape>(objects));
  return out;
}

}  // namespace quire::grammar::schema
