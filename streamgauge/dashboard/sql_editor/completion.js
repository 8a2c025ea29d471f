// What completes a word: tables, columns of the tables that the statement reads, functions and keywords.

const MAX_OFFERED = 12; // all are visible: a list that scrolls would need the focus
const MIN_CHARACTERS = 2;
const BEFORE_TABLE = /\b(?:from|join|describe|summarize|table)\s+$/i;

/** Name → how often the recipes use it. Names that are used often are offered first. */
function usesOf(recipes) {
  const uses = new Map();
  for (const { sql } of recipes.flatMap(([, cards]) => cards)) {
    for (const { text } of tokensOf(sql)) uses.set(text.toLowerCase(), (uses.get(text.toLowerCase()) ?? 0) + 1);
  }
  return uses;
}

/** [{name, kind, detail}] for the word before `at`, best first, and the start of that word. `asked`: also for an empty word. */
function completionsAt(catalog, uses, sql, at, asked) {
  const before = sql.slice(0, at);
  const word = /[\p{L}_][\p{L}\p{N}_]*$/u.exec(before)?.[0] ?? "";
  const start = at - word.length;
  const inText = tokensOf(sql).some(
    (one) => ["comment", "string", "quoted"].includes(one.kind) && one.start < at && at <= one.start + one.text.length,
  );
  const owner = /([\p{L}_][\p{L}\p{N}_]*)\.$/u.exec(before.slice(0, start))?.[1];
  const afterFrom = BEFORE_TABLE.test(before.slice(0, start));
  if (inText || (!asked && word.length < MIN_CHARACTERS && !owner && !afterFrom)) return { start, offered: [] };

  const read = tablesRead(catalog, sql);
  let candidates;
  if (owner) {
    candidates = columnsOf([read.get(owner.toLowerCase()) ?? tableOf(catalog, owner)].filter(Boolean));
  } else {
    const tables = catalog.tables.map((one) => ({ name: one.name, kind: one.kind, detail: one.comment }));
    const rest = afterFrom
      ? []
      : [
          ...columnsOf([...new Set(read.values())]),
          ...catalog.functions.map(([name, detail]) => ({ name, kind: "function", detail })),
          ...[...KEYWORDS].map((name) => ({ name: name.toUpperCase(), kind: "keyword", detail: "" })),
        ];
    candidates = afterFrom ? tables : [...rest, ...tables];
  }
  const offered = matching(candidates, uses, word.toLowerCase());
  const isComplete = offered.length > 0 && offered[0].name.toLowerCase() === word.toLowerCase();
  return { start, offered: isComplete && !asked ? [] : offered };
}

/** The candidates that begin with the word, those used often first, then those in which a part after "_" begins with it. */
function matching(candidates, uses, word) {
  const used = (one) => uses.get(one.name.toLowerCase()) ?? 0;
  const begins = candidates.filter((one) => one.name.toLowerCase().startsWith(word)).sort((a, b) => used(b) - used(a));
  const part = word ? candidates.filter((one) => one.name.toLowerCase().includes(`_${word}`) && !begins.includes(one)) : [];
  const seen = new Set();
  return [...begins, ...part].filter((one) => !seen.has(one.name) && seen.add(one.name)).slice(0, MAX_OFFERED);
}

function tableOf(catalog, name) {
  return catalog.tables.find((one) => one.name.toLowerCase() === name.toLowerCase());
}

/** Name or alias → table, of the tables after FROM and JOIN. */
function tablesRead(catalog, sql) {
  const found = new Map();
  for (const [, name, alias] of sql.matchAll(/\b(?:from|join)\s+(?:main\.)?(\w+)(?:\s+(?:as\s+)?(\w+))?/gi)) {
    const table = tableOf(catalog, name);
    if (!table) continue;
    found.set(name.toLowerCase(), table);
    if (alias && !KEYWORDS.has(alias.toLowerCase())) found.set(alias.toLowerCase(), table);
  }
  return found;
}

function columnsOf(tables) {
  return tables.flatMap((table) =>
    table.columns.map(([name, type]) => ({ name, kind: "column", detail: tables.length > 1 ? `${type}, ${table.name}` : type })),
  );
}
