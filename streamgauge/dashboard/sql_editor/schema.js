// The list of tables and columns beside the editor, with a search.

const MAX_FOUND = 200;

/** Draw the tables whose name, comment or columns have the searched text. `insert(name)` is called for a click on a name. */
function drawSchema(list, catalog, search, insert) {
  const text = search.trim().toLowerCase();
  const has = (...values) => values.some((value) => value && value.toLowerCase().includes(text));
  let found = 0;
  list.replaceChildren();
  for (const table of catalog.tables) {
    const byName = !text || has(table.name, table.comment);
    const columns = byName ? table.columns : table.columns.filter(([name, , comment]) => has(name, comment));
    if (!byName && columns.length === 0) continue;
    if ((found += byName ? 1 : columns.length) > MAX_FOUND) break;
    list.append(tableElement(table, columns, Boolean(text) && !byName, insert));
  }
  if (!list.hasChildNodes()) list.append(element("p", "sql-none", catalog.tables.length ? "No matches." : "No tables yet."));
}

function tableElement(table, columns, isOpen, insert) {
  const item = element("div", "sql-table");
  const row = item.appendChild(element("div", "sql-row"));
  const toggle = row.appendChild(element("button", "sql-toggle"));
  toggle.type = "button";
  toggle.setAttribute("aria-label", `Columns of ${table.name}`);
  row.append(nameButton(table.name, table.kind, insert));
  if (table.comment) {
    const comment = item.appendChild(element("p", "sql-note", table.comment));
    comment.title = table.comment;
  }
  let drawn = null;
  const show = (open) => {
    toggle.setAttribute("aria-expanded", String(open));
    if (open && !drawn) drawn = item.appendChild(columnsElement(columns, insert));
    if (drawn) drawn.hidden = !open;
  };
  toggle.addEventListener("click", () => show(toggle.getAttribute("aria-expanded") !== "true"));
  show(isOpen);
  return item;
}

function columnsElement(columns, insert) {
  const list = element("ul", "sql-columns");
  for (const [name, type, comment] of columns) {
    const item = list.appendChild(element("li"));
    item.append(nameButton(name, type.toLowerCase(), insert));
    if (comment) item.appendChild(element("p", "sql-note", comment)).title = comment;
  }
  return list;
}

function nameButton(name, kind, insert) {
  const button = element("button", "sql-name");
  button.type = "button";
  button.title = `Insert ${name}`;
  button.append(element("code", "", name), " ", element("span", "sql-kind", kind));
  button.addEventListener("click", () => insert(name));
  return button;
}

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
