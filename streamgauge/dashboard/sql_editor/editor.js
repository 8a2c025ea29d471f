// The editor: a text area above its highlighted copy, with completion, the schema and the recipes.
// Streamlit calls the default export after each run of the page whose data changed. The elements stay between these calls.

const ONE_COLUMN = "(max-width: 900px)"; // as in editor.css
const INDENT = /^[ \t]*/;

export default function (component) {
  const { parentElement, data } = component;
  parentElement.sqlEditor ??= createEditor(parentElement);
  parentElement.sqlEditor.update(data, (sql) => component.setTriggerValue("run", sql));
  return () => parentElement.sqlEditor.close(); // when the page is left
}

function createEditor(parent) {
  const find = (name) => parent.querySelector(`.sql-${name}`);
  const [root, area, copy, list, status, search, schema] = [
    "editor", "area", "copy", "completions", "status", "search", "tables",
  ].map(find);
  const state = { data: null, run: null, uses: new Map(), mark: null, offered: [], start: 0, selected: 0, inserting: false };

  const draw = () => copy.replaceChildren(highlighted(area.value, state.mark));
  const say = (text) => (status.textContent = text);
  const close = () => {
    if (list.matches(":popover-open")) list.hidePopover();
    state.offered = [];
    area.removeAttribute("aria-activedescendant");
  };
  const insert = (text, start = area.selectionStart, end = area.selectionEnd) => {
    area.focus();
    area.setSelectionRange(start, end);
    state.inserting = true;
    document.execCommand("insertText", false, text); // keeps the history of Ctrl+Z, unlike setRangeText
    state.inserting = false;
    close();
  };
  const select = (index) => {
    state.selected = (index + state.offered.length) % state.offered.length;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === state.selected)));
    area.setAttribute("aria-activedescendant", list.children[state.selected].id);
  };
  const accept = (index = state.selected) => {
    const { name, kind } = state.offered[index];
    const end = area.selectionStart;
    const call = kind === "function" && area.value[end] !== "(";
    insert(name + (call ? "(" : ""), state.start, end);
  };
  const complete = (asked) => {
    const at = area.selectionStart;
    const { start, offered } = completionsAt(state.data, state.uses, area.value, at, asked);
    if (!offered.length || at !== area.selectionEnd) return close();
    Object.assign(state, { start, offered });
    list.replaceChildren(...offered.map((one, index) => optionElement(list.id, one, index, () => accept(index))));
    if (!list.matches(":popover-open")) list.showPopover();
    place(list, rectangleOf(copy, area.value, start));
    select(0);
  };
  const run = () => {
    close();
    find("recipes").open = false;
    if (!area.value.trim()) return say("Cannot run: the editor is empty. Write a SELECT or choose a recipe.");
    say("");
    state.run(area.value);
  };
  area.addEventListener("input", (event) => {
    state.mark = null;
    say("");
    draw();
    if (state.inserting) return;
    if (event.inputType === "insertText" && event.data && /[\p{L}\p{N}_. ]/u.test(event.data)) complete(false);
    else if (event.inputType === "deleteContentBackward" && state.offered.length) complete(false);
    else close();
  });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    } else if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      complete(true);
    } else if (state.offered.length) {
      onListKey(event, { select, accept, close, state });
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      const line = area.value.slice(0, area.selectionStart).split("\n").at(-1);
      insert("\n" + INDENT.exec(line)[0]);
    }
  });
  area.addEventListener("blur", () => setTimeout(close, 150)); // after a click on an option
  area.addEventListener("click", close);
  const left = new AbortController();
  const onScroll = (event) => event.target !== area && close();
  document.addEventListener("scroll", onScroll, { capture: true, passive: true, signal: left.signal });
  find("run").addEventListener("click", run);
  find("link").addEventListener("click", () => copyLink(area.value, state.data.maxLinkChars, say));
  search.addEventListener("input", () => drawSchema(schema, state.data, search.value, insert));
  if (/mac/i.test(navigator.platform)) find("keys").textContent = find("keys").textContent.replace("Ctrl+Enter", "⌘+Enter");
  find("schema").open = !window.matchMedia(ONE_COLUMN).matches;
  find("schema").addEventListener("toggle", () => root.classList.toggle("sql-alone", !find("schema").open));
  root.classList.toggle("sql-alone", !find("schema").open);

  const update = (data, send) => {
    const before = state.data;
    state.data = data;
    state.run = send;
    if (before?.revision !== data.revision) area.value = data.sql;
    area.maxLength = data.maxChars;
    const failed = data.error && data.error.sql === area.value && data.error.position !== null;
    state.mark = failed ? markOf(area.value, data.error.position) : null;
    area.setAttribute("aria-invalid", String(Boolean(failed)));
    draw();
    if (failed && before) area.setSelectionRange(state.mark[0], state.mark[0]);
    if (JSON.stringify(before?.tables) !== JSON.stringify(data.tables)) drawSchema(schema, data, search.value, insert);
    if (JSON.stringify(before?.recipes) !== JSON.stringify(data.recipes)) {
      state.uses = usesOf(data.recipes);
      drawRecipes(find("recipes"), data.recipes, (sql) => {
        insert(sql, 0, area.value.length);
        root.scrollIntoView({ block: "nearest" });
        run();
      });
    }
    if (!before) find("recipes").open = data.openRecipes;
  };
  return { update, close: () => left.abort() };
}

function onListKey(event, { select, accept, close, state }) {
  const actions = {
    ArrowDown: () => select(state.selected + 1),
    ArrowUp: () => select(state.selected - 1),
    Enter: () => accept(),
    Tab: () => accept(),
    Escape: close,
  };
  const action = event.shiftKey ? undefined : actions[event.key];
  if (!action) return;
  event.preventDefault();
  event.stopPropagation();
  action();
}

function optionElement(listId, { name, kind, detail }, index, accept) {
  const option = element("li", "sql-option");
  option.id = `${listId}-${index}`;
  option.setAttribute("role", "option");
  option.append(element("code", "", name), element("span", "sql-kind", kind), element("span", "sql-detail", detail));
  option.addEventListener("mousedown", (event) => {
    event.preventDefault(); // the text area keeps the focus
    accept();
  });
  return option;
}

/** Put the list below the position, or above it if it would leave the window. */
function place(list, { left, top, bottom }) {
  const below = bottom + list.offsetHeight + 8 < window.innerHeight;
  list.style.top = `${below ? bottom + 2 : Math.max(4, top - list.offsetHeight - 2)}px`;
  list.style.left = `${Math.max(4, Math.min(left, window.innerWidth - list.offsetWidth - 8))}px`;
}

function drawRecipes(details, recipes, choose) {
  const groups = details.querySelector(".sql-groups");
  groups.replaceChildren();
  for (const [group, cards] of recipes) {
    groups.append(element("h2", "sql-group", group));
    const grid = groups.appendChild(element("div", "sql-cards"));
    for (const { title, answers, sql } of cards) {
      const card = grid.appendChild(element("button", "sql-card"));
      card.type = "button";
      card.append(element("strong", "", title), element("span", "", answers));
      card.addEventListener("click", () => choose(sql));
    }
  }
}

async function copyLink(sql, maxChars, say) {
  const chars = new URLSearchParams({ sql }).toString().length - "sql=".length;
  if (chars > maxChars) {
    const [has, limit] = [chars, maxChars].map((n) => n.toLocaleString("en"));
    return say(`Cannot copy a link: the query takes ${has} characters in an address; the limit is ${limit}. Shorten the query.`);
  }
  const link = new URL(window.location.href);
  if (sql !== link.searchParams.get("sql")) ["x", "y", "colour"].forEach((name) => link.searchParams.delete(name));
  link.searchParams.set("sql", sql);
  try {
    await navigator.clipboard.writeText(link.href);
    say("Link copied.");
  } catch {
    window.prompt("Cannot write to the clipboard: the browser does not allow it. Copy the link from here.", link.href);
  }
}
