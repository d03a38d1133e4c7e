// SPDX-License-Identifier: Apache-2.0
// What a JSON Schema accepts, as a set of values that can be intersected, united and complemented.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "grammar/number_ranges.h"
#include "grammar/regex.h"
#include "grammar/schema_document.h"
#include "grammar/schema_strings.h"

namespace quire::grammar::schema {

// A subschema, or its negation.
struct Literal {
  uint32_t node = 0;  // of the SchemaDocument
  bool negated = false;
  auto operator<=>(const Literal&) const = default;
};

// The values that all of some literals accept; an index into Conjunctions. The schemas of properties and items are kept
// like this and looked into only when they are needed, so that recursive schemas end.
using ConjId = uint32_t;
inline constexpr ConjId kAny = 0;    // no literals: every value
inline constexpr ConjId kNever = 1;  // no value

inline constexpr size_t kMaxPrefix = 10'000;  // positions of an array that have schemas of their own

class Conjunctions {
 public:
  Conjunctions();
  ConjId of(Literal literal) { return intern({literal}); }
  ConjId both(ConjId a, ConjId b);
  const std::vector<Literal>& literals(ConjId id) const { return all_[id]; }

 private:
  ConjId intern(std::vector<Literal> literals);
  std::vector<std::vector<Literal>> all_;
  std::map<std::vector<Literal>, ConjId> index_;
};

// What one schema says of an object's members: `properties`, `patternProperties` and `additionalProperties`.
struct PropertySpec {
  std::vector<std::pair<std::string, ConjId>> properties;  // in the order in which they are written
  std::unordered_map<std::string_view, size_t> index;      // name to position; the names are those of `properties`
  std::vector<std::pair<Regex, ConjId>> patterns;
  std::optional<ConjId> additional;
  bool any_order = false;  // the order of `properties` means nothing: they are the members of a constant
};

// That at least one member has a name of this set and a value of this kind.
struct ExistsSpec {
  StringSet names;
  ConjId value = kAny;
};

// The objects that meet all of these.
struct ObjectShape {
  std::vector<std::shared_ptr<const PropertySpec>> specs;
  std::vector<std::string> required;  // unique, in the order in which they were named
  StringSet names;                    // that every name belongs to
  std::vector<ExistsSpec> exists;
  int64_t min = 0;
  std::optional<int64_t> max;
  std::vector<std::shared_ptr<const PropertySpec>> evaluated;  // what unevaluatedProperties leaves alone
};

// What one schema says of an array's items: the first ones, and all others.
struct ItemSpec {
  std::vector<ConjId> prefix;
  ConjId rest = kAny;
};

// That of the items from one position on, so many are of this kind.
struct ContainsSpec {
  ConjId item = kAny;
  size_t from = 0;
  int64_t min = 0;
  std::optional<int64_t> max;
};

// The arrays that meet all of these.
struct ArrayShape {
  std::vector<std::shared_ptr<const ItemSpec>> specs;
  std::vector<ContainsSpec> contains;
  int64_t min = 0;
  std::optional<int64_t> max;
  bool unique = false;
  size_t evaluated = 0;  // how many items unevaluatedItems leaves alone
  bool all_evaluated = false;
  bool some_evaluated = false;  // those that `contains` matched, wherever they are
};

// A set of JSON values. Each type is a set of its own; arrays and objects are the union of their shapes.
struct ValueSet {
  bool has_null = false, has_true = false, has_false = false;
  NumberSet numbers = NumberSets::none();
  StringSet strings = StringSets::none();
  std::vector<ArrayShape> arrays;
  std::vector<ObjectShape> objects;
};

// The algebra of these sets. What cannot be told exactly is an error (unsupported) whose message names no place; the
// caller adds it. Every operation takes fuel, also for the values that
// it goes through; once it is used up, everything fails. Not thread-safe.
class SchemaSets {
 public:
  SchemaSets(RegexStore& store, bool strict_integers);
  virtual ~SchemaSets() = default;

  static ValueSet all();
  static ValueSet none() { return {}; }
  Result<ValueSet> both(const ValueSet& a, const ValueSet& b);
  Result<ValueSet> either(const ValueSet& a, const ValueSet& b);
  // The values of at least one of the sets. What they list is joined once, so that many constants take linear time.
  Result<ValueSet> any_of(const std::vector<std::shared_ptr<const ValueSet>>& sets);
  Result<ValueSet> complement(const ValueSet& a);
  // The values that belong to exactly one of the sets.
  Result<ValueSet> exactly_one(const std::vector<ValueSet>& sets);
  // Whether no value belongs to the set; false if that cannot be told cheaply.
  bool is_none(const ValueSet& a);

  // The values of a conjunction. Remembered.
  virtual Result<std::shared_ptr<const ValueSet>> values(ConjId id) = 0;
  // What an object of this shape demands of the member of this name.
  ConjId member_of(const ObjectShape& shape, std::string_view name);
  ConjId member_of(const PropertySpec& spec, std::string_view name);
  // What an array of this shape demands of the item at this position, and of those after all prefixes.
  ConjId item_of(const ArrayShape& shape, size_t position);
  static size_t longest_prefix(const ArrayShape& shape);
  static size_t required_positions(const ArrayShape& shape);

  RegexStore& store() { return store_; }
  NumberSets& numbers() { return numbers_; }
  StringSets& strings() { return strings_; }
  Conjunctions& conjunctions() { return conjunctions_; }
  const Conjunctions& conjunctions() const { return conjunctions_; }
  // Takes fuel, some microseconds' worth for each unit; an error if there is none left. This bounds the time, and the
  // memory of what is remembered, of schemas whose size says little of either: references, combinations, long lists.
  Status spend(int64_t amount);

  // The conjunctions that together hold exactly the values outside of a conjunction.
  std::vector<ConjId> negations_of(ConjId id);

  // A shape that demands this of one member, without demanding that there is such a member.
  static ObjectShape shape_of_member(std::string_view name, ConjId value);

 protected:
  bool is_none(const ObjectShape& shape);
  bool is_none(const ArrayShape& shape);
  bool proven_none(ConjId id);
  Result<std::vector<ObjectShape>> both(const std::vector<ObjectShape>& a, const std::vector<ObjectShape>& b);
  Result<std::vector<ArrayShape>> both(const std::vector<ArrayShape>& a, const std::vector<ArrayShape>& b);
  Result<std::vector<ObjectShape>> complement(const std::vector<ObjectShape>& shapes);
  Result<std::vector<ArrayShape>> complement(const std::vector<ArrayShape>& shapes);
  Result<std::vector<ObjectShape>> complement(const ObjectShape& shape);
  Result<std::vector<ArrayShape>> complement(const ArrayShape& shape);
  template <typename Sets, typename Set>
  Result<Set> union_of(Sets& algebra, const std::vector<const Set*>& sets);
  template <typename Sets, typename Set>
  Result<Set> only_one_of(Sets& algebra, const std::vector<const Set*>& sets);
  template <typename Shape>
  Result<std::vector<Shape>> exactly_one_of(const std::vector<const std::vector<Shape>*>& all);

 private:
  RegexStore& store_;
  NumberSets numbers_;
  StringSets strings_;
  Conjunctions conjunctions_;
  int64_t fuel_ = 400'000;
  int depth_ = 0;                                // of proven_none
  std::unordered_map<ConjId, bool> known_none_;  // what proven_none has found; false while it looks
};

std::shared_ptr<const PropertySpec> make_spec(PropertySpec spec);

}  // namespace quire::grammar::schema
