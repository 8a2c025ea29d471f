// Tokens of SQL and the highlighted copy of the text that lies behind the text area.

const KEYWORDS = new Set(
  ("select from where group by order having qualify limit offset with recursive as on using join inner left right full outer cross " +
    "semi anti asof lateral union all distinct except intersect case when then else end and or not in is null like ilike between " +
    "exists interval filter over partition rows range preceding following unbounded current row asc desc nulls first last true false " +
    "cast try_cast describe summarize show tables values pivot unpivot for exclude replace columns sample lambda any window").split(" "),
);
const TOKEN = new RegExp(
  [
    "(?<comment>--[^\\n]*|/\\*[^]*?(?:\\*/|$))",
    "(?<string>'(?:[^']|'')*(?:'|$))",
    '(?<quoted>"(?:[^"]|"")*(?:"|$))',
    "(?<number>\\b\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?\\b)",
    "(?<name>[\\p{L}_][\\p{L}\\p{N}_$]*)",
  ].join("|"),
  "giu",
);

/** The tokens of a statement: [{kind, text, start}]. Kinds: comment, string, quoted, number, keyword, function, name. */
function tokensOf(sql) {
  const found = [];
  for (const match of sql.matchAll(TOKEN)) {
    let kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    if (kind === "name") {
      if (/^\s*\(/.test(sql.slice(match.index + match[0].length, match.index + match[0].length + 8))) kind = "function";
      if (KEYWORDS.has(match[0].toLowerCase()) && sql[match.index - 1] !== ".") kind = "keyword";
    }
    found.push({ kind, text: match[0], start: match.index });
  }
  return found;
}

/** The index in UTF-16 units of a character that is counted in code points. */
function unitsBefore(text, codePoints) {
  return [...text].slice(0, codePoints).join("").length;
}

/** [start, end] of the marked text: the token at the position of the error, or the character before it at the end. */
function markOf(sql, codePoints) {
  const at = Math.min(unitsBefore(sql, codePoints), sql.length);
  const token = tokensOf(sql).find((one) => one.start <= at && at < one.start + one.text.length);
  if (token) return [at, token.start + token.text.length];
  return at < sql.length && sql[at] !== "\n" ? [at, at + 1] : [Math.max(0, at - 1), at];
}

/** A copy of the text: one element for each line, with spans of colour and the mark of an error. */
function highlighted(sql, mark) {
  const pieces = [];
  let end = 0;
  for (const token of tokensOf(sql)) {
    if (token.start > end) pieces.push({ kind: "", start: end, end: token.start });
    end = token.start + token.text.length;
    pieces.push({ kind: token.kind, start: token.start, end });
  }
  if (end < sql.length) pieces.push({ kind: "", start: end, end: sql.length });

  const lines = document.createDocumentFragment();
  let line = lines.appendChild(lineElement());
  const put = (start, stop, kind, marked) => {
    sql.slice(start, stop).split("\n").forEach((text, index) => {
      if (index > 0) line = lines.appendChild(lineElement());
      if (!text) return;
      const span = line.appendChild(document.createElement("span"));
      span.className = [kind && `sql-is-${kind}`, marked && "sql-error"].filter(Boolean).join(" ");
      span.textContent = text;
    });
  };
  for (const piece of pieces) {
    const cuts = [piece.start, piece.end];
    if (mark) cuts.push(...mark.filter((at) => at > piece.start && at < piece.end));
    cuts.sort((a, b) => a - b);
    for (let i = 0; i + 1 < cuts.length; i++) {
      put(cuts[i], cuts[i + 1], piece.kind, Boolean(mark) && cuts[i] >= mark[0] && cuts[i] < mark[1]);
    }
  }
  return lines;
}

function lineElement() {
  const line = document.createElement("div");
  line.className = "sql-line";
  return line;
}

/** The rectangle of the position in the highlighted copy. */
function rectangleOf(copy, sql, at) {
  const before = sql.slice(0, at).split("\n");
  const line = copy.children[before.length - 1];
  let rest = before.at(-1).length;
  for (const span of line.children) {
    const length = span.firstChild.length;
    if (rest <= length) {
      const range = document.createRange();
      range.setStart(span.firstChild, rest);
      return range.getBoundingClientRect();
    }
    rest -= length;
  }
  return line.getBoundingClientRect();
}
