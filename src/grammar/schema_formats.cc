// SPDX-License-Identifier: Apache-2.0
// The formats of JSON Schema as regular expressions, after the RFCs that define them.
#include "grammar/schema_formats.h"

#include <string>
#include <vector>

namespace quire::grammar::schema {

namespace {

// RFC 3339. Years are 0001 to 9999; the 29th of February is there in leap years alone.
const std::string kDate =
    "(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-"
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)";
const std::string kHour = "(?:[01][0-9]|2[0-3])";
const std::string kMinute = "[0-5][0-9]";
const std::string kFraction = "(?:\\.[0-9]+)?";

const std::string kOctet = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
const std::string kIpv4 = "(?:" + kOctet + "(?:\\." + kOctet + "){3})";

std::string ipv6() {
  const std::string h = "[0-9A-Fa-f]{1,4}";
  const std::string last = "(?:" + h + ":" + h + "|" + kIpv4 + ")";
  auto before = [&](int count) {  // at most `count` groups before "::"
    return count == 0 ? std::string() : "(?:(?:" + h + ":){0," + std::to_string(count - 1) + "}" + h + ")?";
  };
  std::string out = "(?:(?:" + h + ":){6}" + last;
  for (int after = 5; after >= 0; --after) {  // groups between "::" and the last two
    out += "|" + before(5 - after) + "::" + (after > 0 ? "(?:" + h + ":){" + std::to_string(after) + "}" : "") + last;
  }
  return out + "|" + before(6) + "::" + h + "|" + before(7) + "::)";
}

// The pieces of RFC 3986, or with `wide` of RFC 3987.
struct UriSyntax {
  explicit UriSyntax(bool wide) {
    const std::string ucs = wide ? "\\u{A0}-\\u{D7FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}\\u{10000}-\\u{1FFFD}"
                                   "\\u{20000}-\\u{2FFFD}\\u{30000}-\\u{3FFFD}\\u{40000}-\\u{4FFFD}"
                                 : "";
    const std::string own = wide ? "\\u{E000}-\\u{F8FF}\\u{F0000}-\\u{FFFFD}\\u{100000}-\\u{10FFFD}" : "";
    const std::string unreserved = "A-Za-z0-9._~" + ucs;
    const std::string sub = "!$&'()*+,;=";
    const std::string percent = "%[0-9A-Fa-f]{2}";
    const std::string pchar = "(?:[" + unreserved + sub + ":@\\-]|" + percent + ")";
    const std::string no_colon = "(?:[" + unreserved + sub + "@\\-]|" + percent + ")";
    const std::string name = "(?:[" + unreserved + sub + "\\-]|" + percent + ")*";
    const std::string user = "(?:[" + unreserved + sub + ":\\-]|" + percent + ")*";
    const std::string future = "[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:\\-]+";
    const std::string authority =
        "(?:" + user + "@)?(?:\\[(?:" + ipv6() + "|" + future + ")\\]|" + name + ")(?::[0-9]*)?";
    const std::string more = "(?:/" + pchar + "*)*";
    const std::string absolute = "/(?:" + pchar + "+" + more + ")?";
    tail = "(?:\\?(?:[" + own + unreserved + sub + ":@/?\\-]|" + percent + ")*)?(?:#(?:[" + unreserved + sub +
           ":@/?\\-]|" + percent + ")*)?";
    uri =
        "[A-Za-z][A-Za-z0-9+.\\-]*:(?://" + authority + more + "|" + absolute + "|" + pchar + "+" + more + ")?" + tail;
    reference =
        "(?:" + uri + "|(?://" + authority + more + "|" + absolute + "|" + no_colon + "+" + more + ")?" + tail + ")";
  }
  std::string tail, uri, reference;
};

const std::string kPointer = "(?:/(?:[^~/]|~[01])*)*";

std::string uri_template() {
  const std::string percent = "%[0-9A-Fa-f]{2}";
  const std::string letter = "(?:[A-Za-z0-9_]|" + percent + ")";
  const std::string variable = letter + "(?:\\.?" + letter + ")*(?::[1-9][0-9]{0,3}|\\*)?";
  return "(?:[!#$&'()*+,\\-./0-9:;=?@A-Z\\[\\]_a-z~\\u{A0}-\\u{D7FF}\\u{E000}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}"
         "\\u{10000}-\\u{1FFFD}\\u{20000}-\\u{2FFFD}]|" +
         percent + "|\\{[+#./;?&=,!@|]?" + variable + "(?:," + variable + ")*\\})*";
}

const std::string kDuration =
    "P(?:(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
    "(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|"
    "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)|[0-9]+W)";

std::string two_digits(int value) {
  return std::string{static_cast<char>('0' + value / 10), static_cast<char>('0' + value % 10)};
}

// The second 60 exists only where it is 23:59 in UTC. Which hours and which minutes go with which offset are two
// conditions on the same text, so they are intersected.
Regex leap_second(RegexStore& store) {
  const Regex digit = store.bytes(ByteSet::range('0', '9'));
  const Regex two = store.repeat(digit, 2, 2), sign = store.bytes(ByteSet::of("+-"));
  const Regex second =
      store.concat(store.literal(":60"), store.optional(store.concat(store.literal("."), store.repeat(digit, 1))));
  // Each is a text HH:MM:60+HH:MM with some of its numbers given.
  auto text = [&](Regex hour, Regex minute, Regex zone, Regex zone_hour, Regex zone_minute) {
    const Regex colon = store.literal(":");
    return store.concat(std::vector<Regex>{hour, colon, minute, second, zone, zone_hour, colon, zone_minute});
  };
  auto number = [&](int value) { return store.literal(two_digits(value)); };
  const Regex plus = store.literal("+"), minus = store.literal("-");
  std::vector<Regex> even, plus_hours, plus_minutes, minus_hours, minus_minutes;
  for (int hour = 0; hour < 24; ++hour) {
    even.push_back(text(number((23 + hour) % 24), number(59), plus, number(hour), number(0)));
    plus_hours.push_back(text(number(hour), two, plus, number(hour), two));
    minus_hours.push_back(text(number(23 - hour), two, minus, number(hour), two));
  }
  for (int minute = 0; minute < 60; ++minute) {
    if (minute > 0) plus_minutes.push_back(text(two, number(minute - 1), sign, two, number(minute)));
    minus_minutes.push_back(text(two, number(59 - minute), sign, two, number(minute)));
  }
  const Regex utc = store.concat(store.literal("23:59"), store.concat(second, store.bytes(ByteSet::of("zZ"))));
  return store.either(std::vector<Regex>{utc, store.either(even),
                                         store.both(store.either(plus_hours), store.either(plus_minutes)),
                                         store.both(store.either(minus_hours), store.either(minus_minutes))});
}

Result<Regex> time_regex(RegexStore& store) {
  QUIRE_ASSIGN(const Regex ordinary, parse_regex(store, kHour + ":" + kMinute + ":[0-5][0-9]" + kFraction +
                                                            "(?:[zZ]|[+\\-]" + kHour + ":" + kMinute + ")"));
  return store.either(ordinary, leap_second(store));
}

Result<Regex> date_time_regex(RegexStore& store) {
  QUIRE_ASSIGN(const Regex date, parse_regex(store, kDate + "[tT]"));
  QUIRE_ASSIGN(const Regex time, time_regex(store));
  return store.concat(date, time);
}

// RFC 1123, of at most 253 characters. Labels with "--" in the third and fourth place are encodings whose validity no
// regular expression can tell, so they are left out unless `plain`.
Result<Regex> hostname_regex(RegexStore& store, bool plain) {
  if (plain) {
    const std::string any_label = "[A-Za-z0-9](?:[A-Za-z0-9\\-]{0,61}[A-Za-z0-9])?";
    QUIRE_ASSIGN(const Regex any_name, parse_regex(store, any_label + "(?:\\." + any_label + ")*"));
    return store.both(any_name, store.repeat(store.any_char(), 1, 253));
  }
  const std::string label =
      "(?:[A-Za-z0-9]{1,2}|[A-Za-z0-9][A-Za-z0-9\\-][A-Za-z0-9]|"
      "[A-Za-z0-9][A-Za-z0-9\\-](?:[A-Za-z0-9][A-Za-z0-9\\-]|-[A-Za-z0-9])(?:[A-Za-z0-9\\-]{0,58}[A-Za-z0-9])|"
      "[A-Za-z0-9][A-Za-z0-9\\-][A-Za-z0-9\\-][A-Za-z0-9])";
  QUIRE_ASSIGN(const Regex name, parse_regex(store, label + "(?:\\." + label + ")*"));
  return store.both(name, store.repeat(store.any_char(), 1, 253));
}

// RFC 5321: a dotted or a quoted local part, and a host name or an address.
Result<Regex> email_regex(RegexStore& store) {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-]+";
  QUIRE_ASSIGN(const Regex dotted, parse_regex(store, atom + "(?:\\." + atom + ")*"));
  QUIRE_ASSIGN(const Regex quoted, parse_regex(store, "\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\""));
  const Regex local = store.both(store.either(dotted, quoted), store.repeat(store.any_char(), 1, 64));
  QUIRE_ASSIGN(const Regex host, hostname_regex(store, true));
  QUIRE_ASSIGN(const Regex address, parse_regex(store, "\\[(?:" + kIpv4 + "|IPv6:" + ipv6() + ")\\]"));
  return store.concat(local, store.concat(store.literal("@"), store.either(host, address)));
}

template <typename Pattern>
Result<std::optional<Regex>> parsed(RegexStore& store, const Pattern& pattern) {
  QUIRE_ASSIGN(const Regex regex, parse_regex(store, pattern));
  return std::optional<Regex>(regex);
}

Result<std::optional<Regex>> optional_of(Result<Regex> regex) {
  if (!regex.ok()) return regex.failure();
  return std::optional<Regex>(*regex);
}

}  // namespace

Result<std::optional<Regex>> format_regex(RegexStore& store, std::string_view name, bool plain_host_names) {
  if (name == "date-time") return optional_of(date_time_regex(store));
  if (name == "date") return parsed(store, kDate);
  if (name == "time") return optional_of(time_regex(store));
  if (name == "duration") return parsed(store, kDuration);
  if (name == "email") return optional_of(email_regex(store));
  if (name == "hostname" || name == "host-name") return optional_of(hostname_regex(store, plain_host_names));
  if (name == "ipv4" || name == "ip-address") return parsed(store, kIpv4);
  if (name == "ipv6") return parsed(store, ipv6());
  if (name == "uuid") return parsed(store, "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}");
  if (name == "uri") return parsed(store, UriSyntax(false).uri);
  if (name == "uri-reference") return parsed(store, UriSyntax(false).reference);
  if (name == "iri") return parsed(store, UriSyntax(true).uri);
  if (name == "iri-reference") return parsed(store, UriSyntax(true).reference);
  if (name == "uri-template") return parsed(store, uri_template());
  if (name == "json-pointer") return parsed(store, kPointer);
  if (name == "relative-json-pointer") return parsed(store, "(?:0|[1-9][0-9]*)(?:#|" + kPointer + ")");
  if (name == "regex" || name == "idn-email" || name == "idn-hostname")
    return unsupported({"the format \"", name, "\" is not supported"});
  return std::optional<Regex>();
}

}  // namespace quire::grammar::schema
