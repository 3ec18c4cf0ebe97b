// Cells with their results, pictures that are linked by offset, and the cells in the address of the page.
const START = ["A = Layout((4, 8), (8, 1))\nA.zipped_divide((2, 4))\nA @ Layout((4, 4), (1, 8))\nprove(A, Layout((4, 8)))"];
const home = document.getElementById("cells"), status = document.getElementById("status");
const worker = new Worker("worker.mjs", { type: "module" });
const cells = []; // {text: null or the words between code, source, area, results}
let turn = 0, ready = false, busy = false, again = false, began = 0;

const make = (tag, text = null, ...children) => {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  made.append(...children);
  return made;
};

// ------------------------------------------------------------------------------------------- the address of the page

const encode = (value) => btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(value))))
  .replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
function decode(text) {
  const bytes = Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
  const found = JSON.parse(new TextDecoder().decode(bytes));
  if (!Array.isArray(found) || !found.every((each) => typeof each === "string")) throw new Error("not cells");
  return found;
}
function keep() { history.replaceState(null, "", `#${encode(cells.filter((c) => c.area).map((c) => c.area.value))}`); }

// ------------------------------------------------------------------------------------------------------------- cells

function addCell(source) {
  const area = make("textarea"), results = make("div");
  Object.assign(area, { value: source, spellcheck: false });
  area.setAttribute("aria-label", `cell ${cells.length + 1}`);
  results.className = "results";
  const cell = { area, results };
  cells.push(cell);
  const part = make("section", null, area, results);
  home.append(part);
  const grow = () => { area.rows = Math.max(2, area.value.split("\n").length + 1); };
  area.addEventListener("input", () => { grow(); keep(); ask(); });
  grow();
  return cell;
}

function show(sources, words = []) {
  cells.length = 0;
  home.replaceChildren();
  sources.forEach((source, i) => {
    if (words[i]) home.append(make("p", words[i]));
    addCell(source);
  });
  keep();
  ask();
}

function ask() {
  if (!ready) return;
  if (busy) { again = true; return; }
  busy = true;
  began = performance.now();
  worker.postMessage({ turn: ++turn, cells: JSON.stringify(cells.map((cell) => cell.area.value)) });
}

worker.addEventListener("message", ({ data }) => {
  if ("ready" in data) {
    ready = true;
    status.dataset.ready = data.ready;
    status.textContent = "";
    return ask();
  }
  JSON.parse(data.answers).forEach((lines, i) => cells[i]?.results.replaceChildren(...lines.map(result)));
  busy = false;
  status.dataset.turn = data.turn;
  status.dataset.took = performance.now() - began;
  if (again) { again = false; ask(); }
});
worker.addEventListener("error", (event) => { status.textContent = `Python could not be loaded: ${event.message}`; });

// ----------------------------------------------------------------------------------------------------------- results

// The input beside its result; below them the picture.
function result(line) {
  const said = line.error ?? [line.printed?.trimEnd(), line.text].filter(Boolean).join("\n");
  const text = make("pre", said);
  text.className = line.error ? "error" : line.holds === false ? "false" : line.holds ? "holds" : "";
  const source = make("code", line.error && line.source.includes("\n") ? `line ${line.first}` : line.source);
  const row = make("div", null, source, text);
  row.className = "row";
  const parts = [row];
  if (line.grid) parts.push(picture(line.grid));
  return make("article", null, ...parts);
}

function picture({ planes, rest }) {
  const box = make("div");
  box.className = "planes";
  const numbers = planes.flat(2).filter(Number.isInteger), most = Math.max(1, ...numbers);
  planes.forEach((rows, number) => {
    const table = make("table");
    if (rest.length) table.createCaption().textContent = where(number, rest);
    const head = table.createTHead().insertRow();
    head.append(make("th"), ...rows[0].map((_, j) => make("th", String(j))));
    rows.forEach((cells, i) => {
      const row = (table.tBodies[0] ?? table.createTBody()).insertRow();
      row.append(make("th", String(i)), ...cells.map((value) => {
        const cell = make("td", String(value));
        cell.dataset.offset = value;
        cell.className = `hue${Number.isInteger(value) ? Math.min(7, Math.floor((8 * value) / (most + 1))) : 0}`;
        return cell;
      }));
    });
    box.append(table);
  });
  return box;
}

function where(number, rest) {
  return `( , , ${rest.map((n) => { const at = number % n; number = Math.floor(number / n); return at; }).join(", ")})`;
}

home.addEventListener("pointerover", (event) => {
  for (const lit of home.querySelectorAll(".lit")) lit.classList.remove("lit");
  const offset = event.target.dataset?.offset;
  if (offset === undefined) return;
  for (const cell of home.querySelectorAll(`td[data-offset="${CSS.escape(offset)}"]`)) cell.classList.add("lit");
});

// ------------------------------------------------------------------------------------------------------------- tools

document.getElementById("add").addEventListener("click", () => { addCell("").area.focus(); keep(); });
document.getElementById("share").addEventListener("click", async () => {
  await navigator.clipboard.writeText(location.href);
  status.textContent = "copied";
});
const choice = document.getElementById("notebook");
const notebooks = await (await fetch("notebooks.json")).json();
choice.append(...notebooks.map(({ title }, i) => { const made = make("option", title); made.value = i; return made; }));
choice.addEventListener("change", () => {
  const found = notebooks[choice.value];
  if (found) show(found.cells.map((cell) => cell.source), found.cells.map((cell) => cell.words));
});
let sources = START;
try {
  if (location.hash.length > 1) sources = decode(location.hash.slice(1));
} catch {
  status.textContent = "the address holds no cells";
}
show(sources);
