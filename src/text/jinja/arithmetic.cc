// SPDX-License-Identifier: Apache-2.0
// Python's arithmetic on values. Integers have 64 bits; overflow is an error.
#include <cmath>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace quire::text::jinja {

void fail_large_int() {
  fail("an integer is larger than 64 bits, which is not supported");
}

namespace {

[[noreturn]] void fail_operands(const char* symbol, const Value& a, const Value& b) {
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  fail({"unsupported operand type(s) for ", symbol, ": '", python_type_name(a), "' and '", python_type_name(b), "'"});
}

bool both_int(const Value& a, const Value& b) {
  return a.is_int_like() && b.is_int_like();
}
bool both_numbers(const Value& a, const Value& b) {
  return a.is_number() && b.is_number();
}

Value repeat(Heap& heap, const Value& value, int64_t count) {
  if (count < 0) count = 0;
  const auto times = static_cast<uint64_t>(count);
  const uint64_t size = value.is_string() ? value.text().size() : value.list().items.size();
  if (size > 0 && times > (uint64_t{1} << 40) / size) fail("the repeated sequence is too long");
  if (value.is_string()) {
    heap.touch(size * times);
    heap.charge(size * times);
    heap.discharge(size * times);
    MarkedText out;
    out.text.reserve(size * times);
    for (uint64_t i = 0; i < times && size > 0; ++i) out.add(value.text(), value.origins(), value.text());
    return heap.string(std::move(out), value.is_markup());
  }
  heap.step(size * times);
  heap.charge(size * times * sizeof(Value));
  Values items;
  items.reserve(size * times);
  for (uint64_t i = 0; i < times && size > 0; ++i) {
    items.insert(items.end(), value.list().items.begin(), value.list().items.end());
  }
  return value.is(Type::kList) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

MarkedText joined(const Value& a, const Value& b) {
  MarkedText out;
  out.text.reserve(a.text().size() + b.text().size());
  out.add(a.text(), a.origins(), a.text());
  out.add(b.text(), b.origins(), b.text());
  return out;
}

double python_float_mod(double a, double b) {
  double m = std::fmod(a, b);
  if (m != 0) {
    if ((b < 0) != (m < 0)) m += b;
  } else {
    m = std::copysign(0.0, b);
  }
  return m;
}

double python_float_floor_divide(double a, double b) {
  double m = std::fmod(a, b);
  double quotient = (a - m) / b;
  if (m != 0 && ((b < 0) != (m < 0))) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_large_int();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_large_int();
  }
  return result;
}

}  // namespace

Value add(Heap& heap, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    if (a.is_markup() || b.is_markup()) {
      const Value left = escape(heap, a), right = escape(heap, b);
      return heap.string(joined(left, right), true);
    }
    heap.charge(a.text().size() + b.text().size());
    heap.discharge(a.text().size() + b.text().size());
    return heap.string(joined(a, b));
  }
  if (both_int(a, b)) {
    int64_t sum;
    if (__builtin_add_overflow(a.as_int(), b.as_int(), &sum)) fail_large_int();
    return Value::integer(sum);
  }
  if (both_numbers(a, b)) return Value::real(a.as_real() + b.as_real());
  if (a.is_sequence() && a.type() == b.type()) {
    Values items = a.list().items;
    items.insert(items.end(), b.list().items.begin(), b.list().items.end());
    heap.step(items.size());
    return a.is(Type::kList) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
  }
  if (a.is_string() && !b.is_undefined()) {
    fail({"can only concatenate str (not \"", python_type_name(b), "\") to str"});
  }
  fail_operands("+", a, b);
}

Value subtract(const Value& a, const Value& b) {
  if (both_int(a, b)) {
    int64_t difference;
    if (__builtin_sub_overflow(a.as_int(), b.as_int(), &difference)) fail_large_int();
    return Value::integer(difference);
  }
  if (both_numbers(a, b)) return Value::real(a.as_real() - b.as_real());
  fail_operands("-", a, b);
}

Value multiply(Heap& heap, const Value& a, const Value& b) {
  if (both_int(a, b)) {
    int64_t product;
    if (__builtin_mul_overflow(a.as_int(), b.as_int(), &product)) fail_large_int();
    return Value::integer(product);
  }
  if (both_numbers(a, b)) return Value::real(a.as_real() * b.as_real());
  if ((a.is_string() || a.is_sequence()) && b.is_int_like()) return repeat(heap, a, b.as_int());
  if ((b.is_string() || b.is_sequence()) && a.is_int_like()) return repeat(heap, b, a.as_int());
  fail_operands("*", a, b);
}

Value divide(const Value& a, const Value& b) {
  if (!both_numbers(a, b)) fail_operands("/", a, b);
  if (b.as_real() == 0) fail("division by zero");
  return Value::real(a.as_real() / b.as_real());
}

Value floor_divide(const Value& a, const Value& b) {
  if (!both_numbers(a, b)) fail_operands("//", a, b);
  if (b.as_real() == 0) fail("integer division or modulo by zero");
  if (!both_int(a, b)) return Value::real(python_float_floor_divide(a.as_real(), b.as_real()));
  const int64_t x = a.as_int(), y = b.as_int();
  if (y == -1) return negate(a);  // the only quotient that can overflow
  const int64_t quotient = x / y;
  return Value::integer(x % y != 0 && ((x < 0) != (y < 0)) ? quotient - 1 : quotient);
}

Value modulo(Interpreter& interpreter, const Value& a, const Value& b) {
  if (a.is_string()) return format_percent(interpreter, a, b);
  if (!both_numbers(a, b)) fail_operands("%", a, b);
  if (b.as_real() == 0) fail("integer modulo by zero");
  if (!both_int(a, b)) return Value::real(python_float_mod(a.as_real(), b.as_real()));
  const int64_t x = a.as_int(), y = b.as_int();
  if (y == -1) return Value::integer(0);
  const int64_t rest = x % y;
  return Value::integer(rest != 0 && ((rest < 0) != (y < 0)) ? rest + y : rest);
}

Value power(const Value& a, const Value& b) {
  if (!both_numbers(a, b)) fail_operands("**", a, b);
  if (both_int(a, b) && b.as_int() >= 0) return Value::integer(integer_power(a.as_int(), b.as_int()));
  const double base = a.as_real(), exponent = b.as_real();
  if (base == 0 && exponent < 0) fail("0.0 cannot be raised to a negative power");
  if (base < 0 && std::isfinite(base) && std::isfinite(exponent) && exponent != std::floor(exponent)) {
    fail("a negative number has no real fractional power");
  }
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) fail("numerical result out of range");
  return Value::real(result);
}

Value negate(const Value& a) {
  if (a.is(Type::kFloat)) return Value::real(-a.as_real());
  if (a.is_int_like()) {
    if (a.as_int() == INT64_MIN) fail_large_int();
    return Value::integer(-a.as_int());
  }
  if (a.is_undefined()) fail_undefined(a);
  fail({"bad operand type for unary -: '", python_type_name(a), "'"});
}

Value positive(const Value& a) {
  if (a.is(Type::kFloat)) return a;
  if (a.is_int_like()) return Value::integer(a.as_int());
  if (a.is_undefined()) fail_undefined(a);
  fail({"bad operand type for unary +: '", python_type_name(a), "'"});
}

}  // namespace quire::text::jinja
