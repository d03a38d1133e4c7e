# SPDX-License-Identifier: Apache-2.0
"""Hand-written templates, grouped by what they test; each is rendered by both engines."""

CONTEXT = {
    "n": 7, "neg": -3, "zero": 0, "f": 2.5, "big": 123456789012, "yes": True, "no": False, "nil": None,
    "s": "Hello, World", "empty": "", "sp": "  padded \n", "uni": "h\u00e9llo w\u00f6rld \u4f60\u597d \U0001f600", "quo": "it's \"q\"",
    "html": "<b>&amp;\"x\"'y'</b>", "lines": "one\ntwo\r\nthree\n\nfive", "csv": "a,b,,c",
    "xs": [3, 1, 2], "ys": ["b", "A", "c", "a"], "mixed": [1, "a", None, 2.5, True, [1], {"k": 1}],
    "nested": [[1, 2], [3, [4, 5]]], "nothing": [], "d": {"b": 2, "a": 1, "C": 3}, "ed": {},
    "users": [{"name": "Bo", "age": 30, "tags": ["x"]}, {"name": "al", "age": 25, "tags": []}, {"name": "Cy", "age": 30}],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}],
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
                 {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": [1, 2.0, None]}}}]}],
}

EXPRESSIONS = """
n + 1|n - 10|n * 2|n / 2|n // 2|n % 4|n ** 2|2 ** -1|-n|+n|-n ** 2|2 ** 3 ** 2|neg // 2|neg % 2|-7 // 2|-7 % 3|7 % -3|7.5 // 2
7.5 % 2|-7.5 % 2|-7.5 // 2|1 / 3|10 / 5|0.1 + 0.2|1e100|1e16|1e15|123456789.123456789|1e-5|0.0001|1.0|100.0|-0.0|1e22|1.5e300 * 1e10|5 // 0.3
n // 0|n / 0|n % 0|0.0 / 0|2 ** 0.5|0 ** -1|4 ** 0.5|True + True|True * 3|yes + 1|no - 1|n + f|f * 2|big * 1000|1_000 + 1|0x1F|0o17|0b101|1_0.5e1_0
"a" + "b"|"a" ~ 1 ~ none ~ true ~ 2.5|"ab" * 3|3 * "ab"|"ab" * 0|"ab" * -1|[1] * 3|[1] + [2]|(1,) + (2,)|"a" + 1|1 + "a"|[1] + (2,)|none + 1|"a" - "b"|{} + {}
1 < 2|1 < 2 < 3|1 < 3 < 2|3 > 2 >= 2 != 1|1 == 1.0|"a" < "b"|"a" < "B"|[1, 2] < [1, 3]|(1, 2) < (1, 2, 0)|[1] == (1,)|{"a": 1} == {"a": 1.0}|1 < "a"|none < 1|{} < {}|none == none|none == false|0 == false|1 == true|"1" == 1
yes and no|yes or no|not yes|not nil|n and s|zero or s|nil or empty or "x"|not n == 7|not (yes and no)|1 in xs|9 in xs|9 not in xs|"a" in d|"z" not in d|"ell" in s|"" in s|1 in "a"|1 in 5|none in xs|"a" in nothing|not 1 in xs
"y" if yes else "n"|"y" if no else "n"|"y" if no|("y" if no) is undefined|"a" if yes else "b" if no else "c"|1 if nothing else 2|(1 if yes else 2) + 1
s[0]|s[-1]|s[1:4]|s[::-1]|s[::2]|s[-3:]|s[:-3]|s[100]|s[100:]|s[5:2]|s[-100:3]|s[10:0:-3]|uni[1]|uni[-1]|uni[1:8]|uni[::-1]|uni|length|s[1:none]|s["a"]|s[1.0]
xs[0]|xs[-1]|xs[5]|xs[1:]|xs[::-1]|xs[5:]|xs[:2]|xs[true]|xs.0|xs["0"]|nested[1][1][0]|nested.1.1.0|(1, 2, 3)[1]|(1, 2, 3)[1:]|xs[::0]|xs["a":]|d[1:]|none[0]|nil[1:]|n[0]|range(10)[2]|range(10)[2:8:2]|range(5)[-1]
d.a|d["a"]|d.zz|d["zz"]|d.zz.y|d["items"] is callable|nope|nope.x|nope["x"]|nope[1:]|nope + 1|nope()|"a" ~ nope ~ "b"|nope == nope2|nope is defined|d.zz is defined|nope or "dflt"|nope|length|nope|list|not nope|nope in xs|nope < 1|-nope|[nope]|{"a": nope}|xs[nope]|nope == none|"x" in nope
[1, 2.0, "a", none, true, [1], (1,), (), {}, {"a": 1}]|(1,)|()|[]|{}|{"a": "it's", 1: 2, none: 3, true: 4, 2.5: 5}|("a", "b")|["\\n", "\\t", "'", '"', "\\\\", "\\x00", "\\x7f", "\\xa0", "\\u2028", "\\ud7ff", "é", "😀"]|[1, 2,]|(1, 2,)|{"a": 1,}|["'", "\\"", "'\\""]
s.upper()|s.lower()|s.title()|s.capitalize()|s.swapcase()|uni.upper()|uni.title()|"ß".upper()|"ǆ".title()|"ΑΣ".lower()|"ΑΣ Σ".lower()|"İ".lower()|"ŉ".upper()|"ﬁn".capitalize()|"ﬁ".upper()|"straße".casefold()|"they're bill's".title()|"hello world-foo_bar".title()
sp.strip()|sp.lstrip()|sp.rstrip()|"xxaxx".strip("x")|"abcba".lstrip("ab")|"abcba".rstrip("ab")|"  a ".strip(none)|"é a é".strip("é")|"\\u3000a\\u2003".strip()|"a".strip(1)|"\\x1ca\\x85".strip()
csv.split(",")|csv.split(",", 1)|csv.rsplit(",", 1)|csv.split(",", maxsplit=2)|"a b  c ".split()|"a b  c ".split(" ")|" a b  c ".split(none, 1)|" a b  c ".rsplit(none, 1)|"".split()|"".split(",")|"a".split("")|"aXXbXXc".split("XX")|"aXXbXXc".rsplit("XX", 1)|"a b".split(sep=" ")|"a\\u00a0b".split()|"abc".split(1)|"a,b,c".rsplit(",")|"a,b".split(",", -1)|"a,b".split(",", 0)
lines.splitlines()|lines.splitlines(true)|lines.splitlines(keepends=true)|"".splitlines()|"\\n".splitlines()|"a\\x0bb\\x85c\\u2028d".splitlines()
s.replace("l", "L")|s.replace("l", "L", 1)|s.replace("", "-")|s.replace("", "-", 3)|s.replace("zz", "y")|"aaa".replace("aa", "b")|s.replace("l")|s.replace(1, 2)|"abc".replace("b", "")
s.startswith("He")|s.startswith(("x", "He"))|s.startswith("e", 1)|s.endswith("ld")|s.endswith(("a", "d"))|s.endswith("World", 3)|s.startswith("")|s.startswith(1)|s.startswith(["He"])|s.startswith("He", 0, 1)|"".startswith("")|"".startswith("", 1)
s.find("o")|s.rfind("o")|s.find("z")|s.index("o")|s.index("z")|s.rindex("l")|s.count("l")|s.count("")|s.find("o", 5)|s.find("o", 5, 6)|s.find("", 100)|uni.find("w")|uni.find("你")|uni.rfind("o")|s.count("l", 3)|"".count("")|s.find("H", -100)
"-".join(ys)|"-".join([])|"-".join([1])|"".join("abc")|", ".join(d)|"-".join(ys, 1)|s.partition(",")|s.partition("z")|s.rpartition("o")|s.rpartition("z")|s.partition("")
"abc".isalpha()|"abc1".isalnum()|"12".isdigit()|"²".isdigit()|"²".isdecimal()|"½".isnumeric()|"".isdigit()|" \\t".isspace()|"".isspace()|"Abc".istitle()|"ABC".isupper()|"abc".islower()|"abC".islower()|"123".isupper()|"a1".islower()|"é".isalpha()|"你好".isalpha()|"a b".isidentifier()|"_a1".isidentifier()|"1a".isidentifier()|"abc".isascii()|"é".isascii()|"a\\n".isprintable()|"".isprintable()|"ǅ".istitle()|"ǅ".isupper()
"a".center(5)|"ab".center(5)|"a".center(4, "*")|"a".ljust(3)|"a".rjust(3, "-")|"5".zfill(3)|"-5".zfill(4)|"+5".zfill(4)|"abc".zfill(2)|"a".center(5, "ab")|"é".center(5, "é")|"a\\tb".expandtabs()|"a\\tb".expandtabs(4)|"x".removeprefix("x")|"xyx".removesuffix("x")|"abc".removeprefix("z")|"abc".removesuffix("")
"{} {}".format(1, "a")|"{0} {1} {0}".format(1, 2)|"{a}-{b}".format(a=1, b=2)|"{:>5}|{:<5}|{:^5}".format(1, 2, 3)|"{:*^9}".format("ab")|"{:05d}".format(42)|"{:+d}".format(42)|"{:x} {:X} {:o} {:b} {:#x}".format(255, 255, 8, 5, 255)|"{:.2f}".format(3.14159)|"{:e}".format(12345.678)|"{:g}".format(0.00001)|"{:,}".format(1234567)|"{:_}".format(1234567)|"{:,.2f}".format(1234567.891)|"{:%}".format(0.25)|"{!r} {!s}".format("a", "a")|"{{}}".format()|"{0.a}".format(d)|"{0[a]}".format(d)|"{0[1]}".format(xs)|"{:.3}".format("abcdef")|"{:{}}".format("a", 5)|"{".format()|"}".format()|"{}".format()|"{x}".format()|"{:d}".format("a")|"{:s}".format(1)|"{}".format(none)|"{:5}".format(true)|"{:>{w}}".format("a", w=4)|"{:.3g}".format(1234.5)|"{:10.3}".format(1234.5)|"{:.5}".format(1.0)|"{:.0f}".format(2.5)|"{:f}".format(1)|"{:08.3f}".format(-3.14159)|"{:c}".format(65)|"{} {0}".format(1)|"{:<08}".format(5)|"{:n}".format(5)|"{:.2%}".format(0.12345)|"{a}".format_map({"a": 1})|"{:5}|".format(none)|"{:}".format(1.5)|"{:.1}".format(1234.5)|"{:.4}".format(1234.5)
"%s" % 1|"%s %s" % (1, "a")|"%d" % 3.7|"%5.2f|" % 3.14159|"%-5s|" % "a"|"%05d" % 42|"%+d" % 5|"%x %X %o" % (255, 255, 8)|"%#x" % 255|"%r" % "a"|"%%"|"%%" % ()|"%(a)s-%(b)d" % d|"%e" % 12345.678|"%g" % 1e-10|"%c" % 65|"%c" % "a"|"%s" % none|"%s" % [1]|"%s" % (1, 2)|"%s %s" % 1|"%d" % "a"|"%z" % 1|"%5s|%-5s|" % ("a", "b")|"%.2s" % "abc"|"%*d" % (5, 1)|"% d" % 5|"%s" % {"a": 1}|"%(z)s" % d|"%i %u" % (1, 2)|"%.0f" % 0.5|"%.3d" % 5|"%s" % nope|"%08.2f" % -1.5|"abc" % ()|"abc" % 1|"abc" % d|"abc" % xs
d.keys()|list(d)|d.keys()|list|d.values()|list|d.items()|list|d.items()|d.keys()|d.values()|d.get("a")|d.get("z")|d.get("z", 5)|d.get()|d.copy()|d.get([1])|dict(a=1, b=2)|dict({"a": 1}, b=2)|dict([("a", 1)])|dict()|d|length|d|list|"a" in d.keys()|1 in d.values()|("a", 1) in d.items()|d.items()[0]|d.keys()|length|d.keys() == {"C": 0, "a": 0, "b": 0}.keys()
xs.index(1)|xs.index(9)|xs.count(1)|xs.copy()|(1, 2, 1).count(1)|(1, 2).index(2)|xs.append(1)|d.update({})|d.pop("a")|xs.pop()|xs.sort()|xs.append is defined|d.clear is defined|xs.reverse()|xs.zzz|d.__class__|s.__len__|xs._private|d._x|n.real|n.numerator|f.imag|n.bit_length()|f.is_integer()|(2.0).is_integer()|n.zzz
xs|length|s|length|n|length|nil|length|xs|count|xs|first|xs|last|nothing|first|nothing|last|s|first|s|last|d|first|d|last|n|first|none|first|"" | first|xs|list|s|list|n|list|d.items()|first|range(3)|last|d.values()|last|nope|first|nope|last
xs|sort|xs|sort(reverse=true)|ys|sort|ys|sort(case_sensitive=true)|ys|sort(true)|users|sort(attribute="name")|map(attribute="name")|list|users|sort(attribute="age,name")|map(attribute="name")|list|users|sort(attribute="age", reverse=true)|map(attribute="name")|list|mixed|sort|nothing|sort|d|sort|s|sort|join|[[2], [1]]|sort|[none, 1]|sort|[2, 1.5, true]|sort
xs|join|xs|join(", ")|ys|join("-")|users|join(", ", attribute="name")|mixed|join("|")|s|join("-")|d|join(",")|nothing|join(",")|n|join|nope|join(",")|[1, [2]]|join(1)|xs|join(none)|xs|join(d="+")
xs|map("string")|list|ys|map("upper")|list|users|map(attribute="name")|list|users|map(attribute="zz")|list|users|map(attribute="zz", default="?")|list|users|map(attribute="tags.0", default="-")|list|ys|map("replace", "a", "z")|list|xs|map("nofilter")|list|xs|map()|list|nothing|map()|list|users|map("items")|map("list")|list|nested|map("length")|list|nested|map(attribute=0)|list|xs|map("round", 1, "floor")|list|users|map(attribute="age")|sum|nope|map("upper")|list|n|map("upper")|list|ys|map(attribute="x", foo=1)|list
xs|select|list|xs|select("odd")|list|xs|reject("odd")|list|xs|select("gt", 1)|list|xs|select("in", [1, 2])|list|mixed|select("string")|list|mixed|select("number")|list|mixed|reject("none")|list|users|selectattr("tags")|map(attribute="name")|list|users|selectattr("age", "eq", 30)|map(attribute="name")|list|users|selectattr("age", "equalto", 30)|list|length|users|rejectattr("age", "==", 30)|map(attribute="name")|list|users|selectattr("tags", "defined")|list|length|users|selectattr("tags", "undefined")|map(attribute="name")|list|users|rejectattr("tags")|map(attribute="name")|list|xs|select("divisibleby", 3)|list|xs|select("nosuch")|list|xs|selectattr()|list|xs|select("odd")|length|xs|select("odd")|first|xs|select("odd") is iterable|xs|select("odd") is sequence|(xs|select("gt", 100)) and "truthy"|xs|select("odd")|tojson|xs|select("odd")|last|xs|select("odd")|sort|xs|select("odd")|join(",")|xs|select("odd", 1)|list|users|selectattr("name", "in", ["Bo"])|list|length|none|select|list|users|selectattr("zz.yy")|list
xs|reverse|list|s|reverse|d|reverse|list|nothing|reverse|list|n|reverse|(xs|reverse) is sequence|xs|reverse|first|xs|map("string")|reverse|list|range(3)|reverse|list|uni|reverse|nope|reverse|list
xs|sum|xs|sum(start=10)|users|sum(attribute="age")|nothing|sum|ys|sum|[[1], [2]]|sum(start=[])|[0.1, 0.2]|sum|["a"]|sum(start="")|xs|min|xs|max|ys|min|ys|max|ys|min(case_sensitive=true)|nothing|min|nothing|max|users|min(attribute="age")|users|max(attribute="age")|mixed|max|d|max|s|max|[1, 2.5]|max
ys|unique|list|["a", "A", "b"]|unique|list|["a", "A", "b"]|unique(case_sensitive=true)|list|users|unique(attribute="age")|map(attribute="name")|list|[1, 1.0, true]|unique|list|[[1], [1]]|unique|list|nothing|unique|list
xs|batch(2)|list|xs|batch(2, 0)|list|xs|batch(0)|list|nothing|batch(2)|list|range(7)|batch(3, "x")|list|xs|slice(2)|list|range(7)|slice(3)|list|range(7)|slice(3, "x")|list|xs|slice(0)|list|xs|slice(5)|list|xs|batch|list
users|groupby("age")|list|users|groupby("age")|map(attribute="grouper")|list|users|groupby("age")|map(attribute="list")|map("length")|list|users|groupby("tags", default=[])|list|users|groupby("zz")|length|["a", "A", "b"]|groupby(0)|users|groupby("name", case_sensitive=true)|map("first")|list|users|groupby("zz", default="none")|list
d|dictsort|d|dictsort(true)|d|dictsort(by="value")|d|dictsort(reverse=true)|d|dictsort(false, "value")|d|dictsort(by="x")|xs|dictsort|d|items|list|xs|items|list|nope|items|list|{"b": 1, "a": "x"}|dictsort(by="value")
s|upper|s|lower|s|title|s|capitalize|n|upper|"foo-bar (baz) {qux} <a>it's"|title|"ǆx"|title|"hELLO wORLD"|title|none|upper|uni|title|sp|trim|"xxaxx"|trim("x")|n|trim|nope|trim|nope|upper|s|trim(none)
s|replace("l", "L")|s|replace("l", "L", 1)|n|replace("7", "8")|s|replace(1, 2)|xs|replace("1", "x")|s|replace("", "-")|s|replace("l")|s|center(20)|s|center|n|center(5)|"ab"|center(5)
lines|indent|lines|indent(2)|lines|indent(2, true)|lines|indent(2, true, true)|lines|indent(2, blank=true)|lines|indent("> ")|lines|indent(width="> ", first=true)|""|indent|""|indent(2, true)|n|indent|"a\\n"|indent|"a\\n\\n"|indent(1)|nope|indent|"\\n\\n"|indent(2, true, true)|s|indent(0)|s|indent(-1)
s|truncate(5)|s|truncate(5, true)|s|truncate(8, leeway=0)|s|truncate(8, true, leeway=0)|s|truncate(8, true, "", 0)|s|truncate(2)|"foo bar baz qux"|truncate(9)|"foo bar baz qux"|truncate(9, true)|"foo bar baz qux"|truncate(11)|"foo bar baz qux"|truncate(11, false, "...", 0)|"foobarbazqux"|truncate(5, false, "..", 0)|n|truncate(3)
"The quick brown fox jumps over the lazy dog"|wordwrap(10)|"aaaaaaaaaaaa bb"|wordwrap(5)|"aaaaaaaaaaaa bb"|wordwrap(5, false)|"well-known semi-colon e-mail"|wordwrap(8)|"well-known semi-colon"|wordwrap(8, break_on_hyphens=false)|"a b c"|wordwrap(3, wrapstring="|")|"foo--bar baz"|wordwrap(5)|"a\\n\\nb c d"|wordwrap(3)|""|wordwrap|"a  b   c"|wordwrap(2)|"a-b-c-d-e"|wordwrap(4)|"x"|wordwrap(0)|"hello-world-foo"|wordwrap(6)|"--option=foo-bar"|wordwrap(6)|"  lead and trail  "|wordwrap(8)|"you're--well, not"|wordwrap(6)
s|wordcount|uni|wordcount|""|wordcount|n|wordcount|"a-b c_d"|wordcount|"3.14"|float|"abc"|float|"abc"|float(1.5)|"1e3"|float|" 2.5 "|float|none|float|n|float|"inf"|float|"-Infinity"|float|"nan"|float|"1_000.5"|float|"1__0"|float|""|float|[1]|float|true|float|"0x1p3"|float|".5"|float|"5."|float|nope|float
"42"|int|"abc"|int|"abc"|int(7)|"3.9"|int|3.9|int|-3.9|int|"0x1F"|int(base=16)|"ff"|int(0, 16)|"0b11"|int(base=0)|" 42 "|int|"1_000"|int|none|int|none|int(5)|true|int|"inf"|int|"nan"|int|""|int|[1]|int|nope|int|"1e3"|int|"٣"|int|"-5"|int|"+5"|int|"--5"|int|"010"|int|"010"|int(0, 0)|"z"|int(base=36)|"12"|int(base=1)
3.14159|round|3.14159|round(2)|2.5|round|3.5|round|-2.5|round|0.125|round(2)|2.675|round(2)|1234.5|round(-2)|1250|round(-2)|1350|round(-2)|7|round|7|round(2)|3.1|round(method="ceil")|3.9|round(0, "floor")|3.14159|round(2, "ceil")|"a"|round|3.2|round(1, "x")|15|round(-1)|25|round(-1)|-15|round(-1)|1e20|round|1.005|round(2)|5|round(0, "ceil")|0.5|round|1.5|round(0)|12345.678|round(-3)|true|round
-5|abs|(-5)|abs|neg|abs|(-2.5)|abs|"a"|abs|true|abs|nope|abs|nope|default("d")|nope|d("d")|nil|default("d")|empty|default("d", true)|empty|default("d")|n|default(1)|d.zz|default("x")|nope|default|zero|default(5, boolean=true)|nope|default(default_value=3)
html|e|html|escape|html|safe|html|safe|e|html|forceescape|html|e|e|html|e|forceescape|(html|e) is escaped|html is escaped|("<"|safe) + "<"|"<" + ("<"|safe)|("<"|safe) ~ "<"|["<"|safe, "<"]|join("&")|("<%s>"|safe) % "&"|("<{}>"|safe).format("&")|("<a>"|e).upper()|("a"|safe) * 2|[html|safe]|("<a> <b>"|safe).split()|("&"|safe).join(["<", "<"|safe])|("<a>"|safe).replace("a", "&")|("a b"|safe)[0]|("x"|safe)|tojson|("X"|safe)|lower is escaped|("X"|safe)|string is escaped|("a\\nb"|safe)|indent|"<b>hi &amp; <i>bye</i></b> <!-- c -->"|striptags|"a < b"|striptags|n|e|nil|safe|nope|e|("<"|safe) == "<"|xs|e|(("a"|safe)|replace("a", "<"))
"a b/c?d=é&x"|urlencode|{"a b": 1, "c": "é/"}|urlencode|[("a", 1), ("b", "x y")]|urlencode|n|urlencode|{"class": "a b", "id": none, "x": "<"}|xmlattr|{"a": 1}|xmlattr(false)|{}|xmlattr|{"a b": 1}|xmlattr|{"z": nope}|xmlattr
1|filesizeformat|999|filesizeformat|1000|filesizeformat|1234567|filesizeformat|1024|filesizeformat(true)|123456789|filesizeformat(binary=true)|"1000"|filesizeformat|0|filesizeformat|-5|filesizeformat|1e30|filesizeformat|1.5|filesizeformat|"x"|filesizeformat
d|tojson|mixed|tojson|s|tojson|uni|tojson|quo|tojson|html|tojson|nil|tojson|1.0|tojson|1e20|tojson|d|tojson(indent=2)|nested|tojson(indent=2)|ed|tojson(indent=2)|nothing|tojson(indent=2)|d|tojson(indent=0)|d|tojson(indent="\\t")|d|tojson(sort_keys=true)|uni|tojson(ensure_ascii=true)|uni|tojson(true)|d|tojson(separators=(",", ":"))|d|tojson(indent=4, separators=(", ", " : "))|{1: 2, none: 3, true: 4, 1.5: 5}|tojson|{(1, 2): 3}|tojson|(1, 2)|tojson|nope|tojson|range(3)|tojson|d.items()|tojson|"\\x00\\x1f\\x7f\\u2028/"|tojson|"\\x7f😀"|tojson(ensure_ascii=true)|[[], {}]|tojson(indent=1)|messages|tojson|{"b": 1, 2: 1}|tojson(sort_keys=true)|namespace()|tojson|d|tojson(indent=none)|d|tojson(indent=true)
d|pprint|users|pprint|s|pprint|("word " * 30)|pprint|[("word " * 30)]|pprint|messages|pprint|n|pprint|range(60)|list|pprint|{"k" * 20: ["v" * 30, "w" * 30]}|pprint|("a" * 50, "b" * 50)|pprint|("x" * 100,)|pprint|"a\\nb\\n" * 20|pprint
d|attr("items") is callable|d|attr("a")|nope|attr("x")|s|attr("upper") is defined|n|attr("real")|"%s-%s"|format("a", 1)|"%(a)s"|format(a=1)|"%s"|format("a", a=1)|"%d"|format(3)|n|format
n is odd|n is even|n is divisibleby 7|n is divisibleby(2)|s is string|n is number|f is number|yes is number|n is integer|yes is integer|f is integer|f is float|n is float|yes is boolean|n is boolean|yes is true|no is false|n is true|nil is none|n is none|d is mapping|xs is mapping|xs is sequence|s is sequence|d is sequence|n is sequence|xs is iterable|s is iterable|n is iterable|nil is iterable|d.items() is sequence|d.items() is iterable|range is callable|s is callable|nope is callable|nope is iterable|nope is sequence|nope is string|n is sameas n|nil is sameas none|xs is sameas xs|xs is sameas [3, 1, 2]|s is lower|"abc" is lower|"ABC" is upper|n is lower|n is eq 7|n is equalto 7|n is ne 7|n is gt 5|n is lt 5|n is ge 7|n is le 7|n is greaterthan 5|n is lessthan 5|1 is in xs|1 is not in xs|s is not string|"upper" is filter|"nofilter" is filter|"odd" is test|"x" is test|s is odd|n is nosuch|1.5 is odd|n is not none and yes|n is defined and n > 3|s is in "Hello, World!"|f is in [2.5]|true is true|none is none|1 is true|(1, 2) is sequence|"a" is number|namespace() is mapping|n is odd(1)|n is defined(1)
range(3)|list|range(1, 3)|list|range(5, 0, -2)|list|range(0)|list|range(3)|range(1, 10, 3)|range(100001)|range(1, 2, 0)|range("a")|range()|range(2.0)|3 in range(5)|2.5 in range(5)|range(3) == range(0, 3)|range(3)|length|range(-3)|list|range(nope)|range(1, 2, 3, 4)|range(5)|sum
namespace(a=1).a|namespace(a=1).b|namespace(a=1)|namespace({"a": 1}, b=2)|namespace(a=1)["a"]|namespace()|namespace(items=1).items|namespace(1)|namespace() == namespace()|namespace(_x=1)._x
strftime_now("%Y-%m-%d %H:%M:%S")|strftime_now("%d %b %Y, %A %B %j %p %I %y %a")|strftime_now("%%")|strftime_now("")|strftime_now("%f|%z|%Z|")|strftime_now(1)|strftime_now("%-d %e")|raise_exception("no")|raise_exception()|cycler()|joiner()()|joiner("-")()|cycler(1, 2).next()|cycler(1, 2).current
{"a": 1}["a"]|{"a": {"b": [1, 2]}}.a.b[1]|[1, 2][0]|"abc"[1]|"a" "b"|"a" 'b' "c"|"\\u00e9\\x41\\101\\n|\\q"|'\\''|"tab\\there"|"\\U0001F600"|true|True|false|False|none|None|1.|.5|1..real|1.0.real
users[0].name|users[0]["name"]|users[-1].tags|users[0].tags[0]|users.0.name|messages[2].tool_calls[0].function.arguments.a|messages[2].content is none|messages[0]["role"] == "system"|messages[1:]|length|(messages|last).tool_calls|length|messages|map(attribute="role")|join(",")|messages|selectattr("role", "equalto", "user")|map(attribute="content")|first
s|upper|lower|length + 1|s|length > 3 and n|-n|abs|-(n|abs)|not s|length|n|string + "a"|"a" + n|string|n + 1|string|(n + 1)|string|xs|first + 1|1 + xs|first|"x" ~ n|string ~ "y"|s|replace("H", "J")|upper|1 if n|string == "7" else 2|s.split(", ")|join("-")|upper|s|list|length|xs|map("string")|join("+")|length
""".strip()

STATEMENTS = [
    "{% for x in xs %}{{ x }},{% endfor %}", "{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for x in nothing %}a{% else %}none{% endfor %}", "{% for x in nope %}a{% else %}none{% endfor %}", "{% for x in none %}{% endfor %}", "{% for x in 5 %}{% endfor %}",
    "{% for x in xs if x > 1 %}{{ loop.index }}:{{ x }} {{ loop.last }} {{ loop.length }};{% else %}e{% endfor %}", "{% for x in xs if x > 9 %}a{% else %}e{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|items %}{{ k }}={{ v }}{{ loop.last }};{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", "{% for a, b in [(1,)] %}{{ a }}{% endfor %}", "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}", "{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, in [(1,)] %}{{ a }}{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in uni %}[{{ c }}]{% endfor %}", "{% for x in range(3) %}{{ loop.previtem }}|{{ loop.nextitem }};{% endfor %}",
    "{% for x in range(3) %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for x in range(5) %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in range(3) %}{{ loop.cycle() }}{% endfor %}", "{% for x in xs %}{{ loop }}{% endfor %}", "{% for x in xs|map('string') %}{{ loop.length }}{{ loop.revindex }}{{ x }}{{ loop.last }}{% endfor %}",
    "{% for x in xs|map('string') %}{{ loop.last }}{{ loop.length }}{{ x }}{% endfor %}", "{% for x in xs %}{% for y in xs %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in xs %}{% set outer = loop %}{% for y in xs %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}", "{% for n in tree recursive %}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{{ loop.depth }}{{ loop.depth0 }},{% endfor %}",
    "{% for n in tree recursive %}[{{ n.v }}{{ loop(n.c) }}]{% else %}-{% endfor %}", "{% for n in tree if n.v != 3 recursive %}{{ n.v }}{{ loop(n.c) }}{% endfor %}", "{% for x in xs %}{{ loop(xs) }}{% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in xs %}{% break %}{% else %}else{% endfor %}",
    "{% for x in xs %}{% continue %}{% else %}else{% endfor %}", "{% for x in xs %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% else %}else{% endfor %}", "{% for x in xs %}{% for y in xs %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %}|{% endfor %}",
    "{% break %}", "{% for x in nothing %}{% else %}{% break %}{% endfor %}", "{% for z in xs %}{% for x in nothing %}{% else %}{% break %}{% endfor %}{{ z }}{% endfor %}", "{% for x in xs %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for x in xs %}{% set y = x %}{% endfor %}{{ y }}", "{% set y = 0 %}{% for x in xs %}{% set y = y + x %}{{ y }},{% endfor %}{{ y }}", "{% set ns = namespace(t=0) %}{% for x in xs %}{% set ns.t = ns.t + x %}{% endfor %}{{ ns.t }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns }}", "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "{% set q = 1 %}{% set q.a = 1 %}", "{% set zz.a = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = 'xy' %}{{ a }}{{ b }}", "{% set (a, b), c = (1, 2), 3 %}{{ a }}{{ b }}{{ c }}", "{% set a = 1, 2 %}{{ a }}", "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}",
    "{% set a, b = 1 %}", "{% set 1 = 2 %}", "{% set none = 2 %}", "{% set x %}block {{ n }}{% endset %}[{{ x }}]", "{% set x | upper %}block {{ n }}{% endset %}[{{ x }}]", "{% set x | upper | replace('B', '!') %}block{% endset %}[{{ x }}]",
    "{% set x %}{% for i in xs %}{{ i }}{% endfor %}{% endset %}{{ x|length }}", "{% set ns = namespace() %}{% set ns.x %}blk{% endset %}{{ ns.x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y }}", "{% set x = 1 %}{% set x %}{{ x }}{% set x = 5 %}{{ x }}{% endset %}{{ x }}",
    "{% if yes %}a{% elif no %}b{% else %}c{% endif %}", "{% if no %}a{% elif yes %}b{% else %}c{% endif %}", "{% if no %}a{% elif no %}b{% else %}c{% endif %}", "{% if nope %}a{% endif %}b", "{% if yes %}{% set w = 1 %}{% endif %}{{ w }}",
    "{% if no %}{% set w = 1 %}{% endif %}[{{ w }}]", "{% if no %}{% set n = 1 %}{% endif %}{{ n }}", "{% if yes %}{% set n = 1 %}{% else %}{% set n = 2 %}{% endif %}{{ n }}", "{% for i in xs %}{% if i == 1 %}{% set n = 'in' %}{% endif %}{{ n }};{% endfor %}{{ n }}",
    "{% for i in xs %}{% if i == 1 %}{% set q = 'in' %}{% endif %}{{ q }};{% endfor %}{{ q }}", "{% for i in [1] %}{{ n }}{% endfor %}{% set n = 5 %}{{ n }}", "{{ n }}{% set n = 5 %}{{ n }}", "{% set n = n %}{{ n }}", "{% set n = n + 1 %}{{ n }}",
    "{% if yes, %}a{% endif %}", "{% if %}a{% endif %}", "{% macro m(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=4) }}{{ m(a=0) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}", "{% macro m() %}{{ varargs|length }}{% endmacro %}{{ m() }}{{ m(1,2) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}", "{% macro m(a=n) %}{{ a }}{% endmacro %}{{ m() }}{% set n = 9 %}{{ m() }}", "{% macro m() %}{{ n }}{% endmacro %}{% set n = 9 %}{{ m() }}", "{% macro m() %}{{ z }}{% endmacro %}{% set z = 9 %}{{ m() }}",
    "{% macro m() %}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}", "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro m() %}{{ m }}{% endmacro %}{{ m() }}", "{% macro m(a, b=1) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.caller }}",
    "{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}{{ m(none) }}{{ m(nope) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, a) %}{% endmacro %}", "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in {{ n }}{% endcall %}", "{% macro m() %}[{{ caller(1, 2) }}]{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}{% endcall %}", "{% macro m(x) %}{{ x }}{{ caller() }}{% endmacro %}{% for i in xs %}{% call m(i) %}<{{ i }}>{% endcall %}{% endfor %}", "{% macro m() %}{{ caller(x=1) }}{% endmacro %}{% call(x, y=5) m() %}{{ x }}{{ y }}{% endcall %}",
    "{% macro m() %}{% if caller %}c{{ caller() }}{% else %}n{% endif %}{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}", "{% macro m(caller) %}{{ caller }}{% endmacro %}{{ m(1) }}", "{% macro m(caller=none) %}{{ caller }}{% endmacro %}{{ m() }}", "{% call n %}{% endcall %}", "{% call n() %}{% endcall %}",
    "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% if yes %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}", "{% for i in xs %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(*a) %}{% endmacro %}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(5, **{'b': 6}) }}{{ m(*xs) }}", "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(a=1, a=2) }}", "{% macro m() %}{{ kwargs|dictsort }}{% endmacro %}{{ m(b=1, **{'a': 2}) }}", "{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(a=1, **{'a': 2}) }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter upper|replace('A', 'z') %}abc{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% filter nosuch %}a{% endfilter %}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}{{ a }}",
    "{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}", "{% raw %}{{ x }}{% if %}{% endraw %}", "{%- raw -%}  {{ x }}  {%- endraw -%}  a", "a  {% raw %}\n  b {% endraw %}\n c", "{% raw %}{{ x }}", "{# comment #}a{# b -#}  c", "a  {#- x #}b", "{# {% if %} #}", "{# unclosed",
    "{% generation %}a{{ n }}{% set g = 1 %}{% endgeneration %}{{ g }}", "{% for m in messages %}{% generation %}{{ m.role }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% do xs.append(1) %}", "{% do n + 1 %}x", "{% print n, s %}", "{% print %}", "{% include 'a' %}", "{% import 'a' as b %}", "{% extends 'a' %}",
    "{% nosuchtag %}", "{% endif %}", "{% if yes %}", "{% for x in xs %}", "{{ n", "{{ }}", "{{ n n }}", "{% if yes %}{% endfor %}", "{{ (1 }}", "{{ [1 }}", "{{ 1] }}", "{{ 'a }}", "{{ a.1b }}", "{{ a. }}", "{{ a..b }}", "{{ 1 + }}", "{{ $ }}", "{{ a ! b }}", "{{ a & b }}", "{{ n|nosuch }}", "{% if no %}{{ n|nosuch }}{% endif %}ok", "{% if yes %}{{ n|nosuch }}{% endif %}",
    "{{ n|nosuch if no else 'ok' }}", "{% for x in nothing %}{{ x|nosuch }}{% endfor %}ok", "{% if no %}{% for x in xs %}{{ x|nosuch }}{% endfor %}{% endif %}ok", "{% if no %}{{ n is nosuch }}{% endif %}ok", "{% macro m() %}{{ n|nosuch }}{% endmacro %}ok", "{{ n|f.g }}", "{% if no %}{{ n|f.g }}{% endif %}ok",
    "{% for loop in xs %}{% endfor %}", "{% for x in xs %}{% set loop = 1 %}{% endfor %}", "{% set loop = 5 %}{{ loop }}", "{{ loop }}", "{% for x in xs %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}", "{% for x in xs %}{% with %}{{ loop.index }}{% endwith %}{% endfor %}",
    "{{ n }}\n", "{{ n }}\n\n", "a\n{% if yes %}\nb\n{% endif %}\nc\n", "  {% if yes %}  \n  b  {% endif %}  \n", "a {%- if yes -%} b {%- endif -%} c", "a {%+ if yes +%}\n b {% endif %}", "x\n   {%+ if yes %}\n   y\n   {%+ endif %}\n", "{%- for x in xs %}\n {{- x }}\n{%- endfor %}", "a\n\n  {{- n -}}  \n\nb", "\r\na\r{% if yes %}\r\nb{% endif %}\r\n",
    "{% if yes %}\n\n  a\n{% endif %}", "   {{ n }}   ", "\t{% set x = 1 %}\t\n{{ x }}", "{{ n }}   {% set x = 1 %}\n{{ x }}", "a {# c #}\n b", "  {# c #}\nb", "{{- n }}", " \u00a0{%- if yes %}x{% endif %}", "a{{ '\n' }}b", "{{ '}}' }}", "{{ '{%' }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': {}} }}", "{{ {} }}", "{%if yes%}a{%endif%}", "{{n}}{{s}}", "{{-n-}}", "{% if yes -%}  a{%- endif %}", "{{ 1 -}} x", "{{ 1 +}} x", "{%\nif\nyes\n%}a{%\nendif\n%}",
    "{{ 'a\nb' }}", "{{ n  |  string  |  length }}", "{{ xs [0] }}", "{{ s . upper ( ) }}", "{{ n is\ndefined }}", "{{ not\nyes }}", "{{ (1,\n2) }}", "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% for x in (1, 2) if x %}{{ x }}{% endfor %}", "{{ 1, 2 }}", "{{ 1, }}", "{{ () }}", "{{ foo(1)(2) }}", "{{ range(3)|list()|length() }}", "{{ xs|join(',')|upper() }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.pos }}", "{% set j = joiner('|') %}{% for x in xs %}{{ j() }}{{ x }}{% endfor %}", "{% set g = xs|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = d.items() %}{{ g|list }}{{ g|list|length }}", "{% set g = xs|select('odd') %}{% if g %}y{% endif %}{{ g|first }}{{ g|list }}",
    "{% set xs2 = [] %}{% for x in xs %}{% set xs2 = xs2 + [x * 2] %}{% endfor %}{{ xs2 }}", "{% set a = [] %}{% set b = a %}{{ a is sameas b }}{{ [] is sameas [] }}", "{{ [xs, xs]|unique|list }}", "{% for u in users|sort(attribute='age') %}{{ u.name }}{{ u['tags']|default('no', true) }}{% endfor %}", "{% for g in users|groupby('age') %}{{ g.grouper }}:{{ g.list|length }}:{{ g[0] }};{% endfor %}",
    "{% for age, us in users|groupby('age') %}{{ age }}{{ us|map(attribute='name')|join }}{% endfor %}", "{% for a in xs|batch(2) %}{{ a }}{{ loop.last }}{% endfor %}", "{{ raise_exception('bad ' ~ n) }}", "{% if messages[0].role == 'system' %}{{ messages[0]['content'] }}{% endif %}", "{{ messages[0].content.split(' ')[-1].strip('.') }}", "{{ messages|length }} {{ messages|selectattr('role', 'ne', 'user')|list|length }}",
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.content is string %}{{ m.content|trim }}{% endif %}{% if m.tool_calls is defined and m.tool_calls %}{% for t in m.tool_calls %}{{ t.function|tojson }}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'x' }}{% endif %}",
    "{% set x = {'a': [1, {'b': 2}]} %}{{ x }}{{ x.a[1].b }}", "{{ {'x': n, s: 1} }}", "{{ {[1]: 2} }}", "{{ {none: 1}[none] }}", "{{ {1: 'a'}[1.0] }}{{ {1: 'a'}[true] }}", "{{ {(1, 2): 'a'}[1, 2] }}{{ {(1, 2): 'a'}[(1, 2)] }}", "{{ d[[1]] }}", "{{ xs[1:2, 3] }}", "{{ [1, 2, 3][1:][0] }}", "{% set x = namespace(**d) %}{{ x.a }}", "{{ dict(d, z=1)|length }}", "{{ dict(xs) }}",
    "{% for x in 'abc' recursive %}{{ x }}{% endfor %}", "{% set f = s.upper %}{{ f() }}", "{{ (s.upper)() }}", "{{ s['upper']() }}", "{{ ''.join(['a', 'b']) }}", "{{ 'a'.join }}"[:0] + "x", "{{ caller }}", "{{ kwargs }}", "{{ varargs }}", "{{ self }}"[:0] + "y", "{% set if = 1 %}{{ if }}", "{{ true and false or none }}", "{{ 1 if 0 else 2 if 0 else 3 }}", "{{ x if x is defined else 'u' }}", "{{ n is defined if yes else 3 }}",
    "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}", "{% set ns = namespace(i=0) %}{% macro inc() %}{% set ns.i = ns.i + 1 %}{{ ns.i }}{% endmacro %}{{ inc() }}{{ inc() }}{{ ns.i }}", "{% set a %}{% endset %}{{ a == '' }}", "{% for a in [[1, 2], [3, 4]] %}{% for b in a %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for i in range(3) %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "\ufeffa", "{{ 'é' }}é{{ uni }}", "{% set é = 1 %}{{ é }}", "{{ 名 }}", "{% set a·b = 2 %}{{ a·b }}", "{{ ² }}",
]

MUTABLE = [
    "{% do xs.append(9) %}{{ xs }}", "{% set a = [1] %}{% set b = a %}{% do b.append(2) %}{{ a }}", "{% do xs.extend([1, 2]) %}{{ xs }}", "{% do xs.insert(1, 'x') %}{{ xs }}", "{% do xs.insert(-1, 'x') %}{{ xs }}", "{% do xs.insert(100, 'x') %}{{ xs }}",
    "{{ xs.pop() }}{{ xs }}", "{{ xs.pop(0) }}{{ xs }}", "{{ xs.pop(9) }}", "{{ nothing.pop() }}", "{% do xs.remove(1) %}{{ xs }}", "{% do xs.remove(9) %}", "{% do xs.reverse() %}{{ xs }}", "{% do xs.sort() %}{{ xs }}", "{% do xs.sort(reverse=true) %}{{ xs }}", "{% do ys.sort(key=range) %}", "{% do xs.clear() %}{{ xs }}",
    "{% do d.update({'z': 1, 'a': 5}) %}{{ d }}", "{% do d.update(q=1) %}{{ d }}", "{{ d.pop('a') }}{{ d }}", "{{ d.pop('zz', 3) }}", "{{ d.pop('zz') }}", "{{ d.popitem() }}{{ d }}", "{{ d.setdefault('a', 9) }}{{ d.setdefault('q', 9) }}{{ d }}", "{% do d.clear() %}{{ d }}", "{% set a = [] %}{% do a.append(a) %}{{ a }}", "{% set a = {} %}{% do a.update(x=a) %}{{ a }}",
    "{% set a = [] %}{% do a.append(a) %}{{ a|tojson }}", "{% set a = [] %}{% do a.append(a) %}{{ a == a }}", "{% for k in d %}{% do d.update({k ~ '2': 1}) %}{% endfor %}", "{% for x in xs %}{% if loop.index < 5 %}{% do xs.append(x) %}{% endif %}{% endfor %}{{ xs }}", "{% set a = ([],) %}{% do a[0].append(1) %}{{ a }}", "{{ xs.append(1) }}{{ xs }}",
    "{% macro m(l) %}{% do l.append(1) %}{% endmacro %}{{ m(xs) }}{{ xs }}", "{% set c = d.copy() %}{% do c.update(n=1) %}{{ d }}{{ c }}",
]


def expressions():
    """The expressions above: several in a row, separated by bars that are not filters; brackets and quotes decide which
    are."""
    out = []
    for row in EXPRESSIONS.split("\n"):
        out.extend(split_row(row))
    return out


FILTER_NAMES = set(
    "abs attr batch capitalize center count d default dictsort e escape filesizeformat first float forceescape format groupby indent int join last "
    "length list lower items map min max pprint random reject rejectattr replace reverse round safe select selectattr slice sort string "
    "striptags sum title trim truncate unique upper urlencode urlize wordcount wordwrap xmlattr tojson nosuch".split()
)


def split_row(row):
    """Splits at bars outside of quotes and brackets, unless the name of a filter follows."""
    parts, current, depth, quote, i = [], "", 0, None, 0
    while i < len(row):
        c = row[i]
        if quote:
            current += c
            if c == "\\":
                current += row[i + 1]
                i += 1
            elif c == quote:
                quote = None
        elif c in "\"'":
            quote = c
            current += c
        elif c in "([{":
            depth += 1
            current += c
        elif c in ")]}":
            depth -= 1
            current += c
        elif c == "|" and depth == 0:
            word = ""
            for k in row[i + 1:].lstrip():
                if not (k.isalnum() or k == "_"):
                    break
                word += k
            after = row[i + 1:].lstrip()[len(word):]
            is_filter = word in FILTER_NAMES and not (word == "d" and after[:1] in ".[| ")
            if is_filter:
                current += c
            else:
                parts.append(current)
                current = ""
        else:
            current += c
        i += 1
    parts.append(current)
    return [part.strip() for part in parts if part.strip()]
