// SPDX-License-Identifier: Apache-2.0
// A small Markdown: code, lists, headings, quotes, bold, italics. It makes elements and text nodes, never HTML from text,
// and remembers where in the source each text is, so that tokens can be marked in it.

// The tokens of an answer as ranges of its text: [{begin, end, p, others}]. A token is [text, p, others, end], where end
// is how long the text was when the token had come. The texts say more exactly where tokens end, unless some of them are
// parts of characters.
function tokenRanges(text, tokens) {
  if (!tokens?.length || !text) return [];
  const found = tokens.map((token) => token[0]).join("").lastIndexOf(text);
  let at = found < 0 ? 0 : -found;
  return tokens.map(([piece, p, others, end]) => ({begin: at, end: (at = found < 0 ? end : at + piece.length), p, others}))
    .filter((range) => range.end > 0 && range.begin < text.length && range.end > range.begin);
}

class Markdown {
  constructor(text, ranges) {
    this.text = text;
    this.ranges = ranges;
  }

  // The source from begin to end as text, in spans of one token each.
  leaf(parent, begin, end) {
    if (!this.ranges.length) return parent.append(this.text.slice(begin, end));
    let low = 0;
    for (let high = this.ranges.length; low < high;) {
      const middle = (low + high) >> 1;
      if (this.ranges[middle].end <= begin) low = middle + 1;
      else high = middle;
    }
    while (begin < end) {
      const range = this.ranges[low];
      const inside = range && range.begin < end;
      if (!inside || range.begin > begin) {
        const stop = inside ? range.begin : end;
        parent.append(this.text.slice(begin, stop));
        begin = stop;
        continue;
      }
      const stop = Math.min(end, range.end);
      const span = el("span", {class: range.p < 0.3 ? "t low" : "t", "data-t": low}, this.text.slice(begin, stop));
      parent.append(span);
      begin = stop;
      ++low;
    }
  }

  inline(parent, begin, end) {
    const marks = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|(\*\*|__)(?=\S)([\s\S]*?\S)\3|(\*)(?=[^\s*])([^*]*?[^\s*])\*/g;
    const source = this.text.slice(begin, end);
    let at = 0;
    for (const found of source.matchAll(marks)) {
      this.leaf(parent, begin + at, begin + found.index);
      const mark = found[1] ?? found[3] ?? found[5];
      const inner = el(found[1] ? "code" : found[3] ? "strong" : "em");
      const from = begin + found.index + mark.length;
      const to = begin + found.index + found[0].length - mark.length;
      if (found[1]) this.leaf(inner, from, to);
      else this.inline(inner, from, to);
      parent.append(inner);
      at = found.index + found[0].length;
    }
    this.leaf(parent, begin + at, end);
  }

  // Appends the whole text to the element.
  render(parent) {
    const lines = [];
    for (const line of this.text.split("\n")) {
      const begin = lines.length ? lines.at(-1).end + 1 : 0;
      lines.push({line, begin, end: begin + line.length});
    }
    const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+/;
    const special = (line) => /^\s*(```|#{1,6}\s|>)/.test(line) || item.test(line) || !line.trim();
    for (let i = 0; i < lines.length;) {
      const {line, begin, end} = lines[i];
      let found;
      if (!line.trim()) {
        ++i;
      } else if ((found = /^\s*```\s*(\S*)/.exec(line))) {
        let last = i + 1;
        while (last < lines.length && !/^\s*```\s*$/.test(lines[last].line)) ++last;
        const code = el("code", {}), from = Math.min(end + 1, this.text.length);
        const to = last > i + 1 ? lines[last - 1].end : from;
        const json = found[1] === "json" ? pretty(this.text.slice(from, to)) : null;
        if (json) code.append(json);
        else this.leaf(code, from, to);
        parent.append(el("pre", {tabindex: 0, role: "region", "aria-label": json ? "JSON" : "Code", class: json ? "json" : null}, code));
        i = last + 1;
      } else if ((found = /^\s*(#{1,6})\s+/.exec(line))) {
        const heading = el(`h${Math.min(5, found[1].length + 2)}`);
        this.inline(heading, begin + found[0].length, end);
        parent.append(heading);
        ++i;
      } else if ((found = /^\s*>\s?/.exec(line))) {
        const quote = el("blockquote");
        this.inline(quote, begin + found[0].length, end);
        parent.append(quote);
        ++i;
      } else if ((found = item.exec(line))) {
        i = this.list(parent, lines, i, item, found[1].length);
      } else {
        let last = i + 1;
        while (last < lines.length && !special(lines[last].line)) ++last;
        const paragraph = el("p");
        this.inline(paragraph, begin, lines[last - 1].end);
        parent.append(paragraph);
        i = last;
      }
    }
  }

  // The list that begins at line i; returns the line after it.
  list(parent, lines, i, item, indent) {
    const first = /^\s*(\d+)/.exec(lines[i].line);
    const list = el(first ? "ol" : "ul", first ? {start: first[1]} : {});
    for (let found; i < lines.length && (found = item.exec(lines[i].line)) && found[1].length >= indent;) {
      if (found[1].length > indent + 1 && list.lastElementChild) {
        i = this.list(list.lastElementChild, lines, i, item, found[1].length);
        continue;
      }
      const entry = el("li");
      this.inline(entry, lines[i].begin + found[0].length, lines[i].end);
      list.append(entry);
      ++i;
    }
    parent.append(list);
    return i;
  }
}

// JSON text as a fragment with its names and values told apart; null if it is not an object or a list.
function pretty(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  if (value === null || typeof value !== "object") return null;
  const out = document.createDocumentFragment();
  const indented = JSON.stringify(value, null, 2);
  let at = 0;
  for (const found of indented.matchAll(/("(?:[^"\\]|\\.)*")(:)?|\b(?:true|false|null)\b|-?\d[\d.eE+-]*/g)) {
    out.append(indented.slice(at, found.index), el(found[2] ? "b" : "i", {}, found[1] ?? found[0]), found[2] ?? "");
    at = found.index + found[0].length;
  }
  out.append(indented.slice(at));
  return out;
}
