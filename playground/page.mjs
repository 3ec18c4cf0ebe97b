// Cells with their results, pictures that are linked by offset, and the cells in the address of the page.
import { Pixels, painted as drawing } from "./paint.mjs";

const START = ["A = Layout((4, 8), (8, 1))\nA.zipped_divide((2, 4))\nA @ Layout((4, 4), (1, 8))\nprove(A, Layout((4, 8)))"];
const home = document.getElementById("cells"), status = document.getElementById("status");
const FEW_CELLS = 1024; // more of a picture are painted
const PATIENCE = 3000; // ms after which an edit ends the run before it
const cells = []; // {area, results, shown: the JSON of each line on the page}
const drawings = new Map(); // number of a picture -> its SVG document
let worker, turn = 0, ready = false, busy = false, again = false, began = 0;

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
  const cell = { area, results, shown: [] };
  cells.push(cell);
  const part = make("section", null, area, results);
  home.append(part);
  const grow = () => { area.rows = Math.max(2, area.value.split("\n").length + 1); };
  area.addEventListener("input", () => { ask(); grow(); keep(); }); // Python works while the address changes
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
  if (busy && performance.now() - began > PATIENCE) return begin(); // cells that do not end
  if (busy) { again = true; return; }
  busy = true;
  began = performance.now();
  worker.postMessage({ turn: ++turn, cells: JSON.stringify(cells.map((cell) => cell.area.value)) });
}

function begin() {
  worker?.terminate();
  drawings.clear();
  ready = busy = again = false;
  status.textContent = "loading Python";
  worker = new Worker("worker.mjs", { type: "module" });
  worker.addEventListener("message", ({ data }) => heard(data));
  worker.addEventListener("error", (event) => { status.textContent = `Python could not be loaded: ${event.message}`; });
}

function heard(data) {
  if ("ready" in data) {
    ready = true;
    Object.assign(status.dataset, { ready: data.ready, from: data.from });
    status.textContent = "";
    return ask();
  }
  if ("loading" in data) { status.textContent = `loading ${data.loading}`; return; }
  if ("picture" in data) return showPicture(data);
  if ("warm" in data) { status.dataset.warm = data.warm; return; }
  if ("rehearsal" in data) return rehearse(data.rehearsal);
  status.textContent = "";
  data.cells.forEach((lines, i) => { if (cells[i]) showLines(cells[i], lines); });
  busy = false;
  onScreen("results", { turn: data.turn });
  if (again) { again = false; ask(); } else askPictures();
}

// Before the first edit: paints what the worker has drawn, or a grid, on no page. The first painting takes the longest.
const GRID = [...Array(34).keys()].map((i, _, all) => all.map((j) => i * j));
function rehearse(svg) {
  if (busy) return;
  if (svg) drawing(svg, home.clientWidth);
  else picture({ planes: [GRID], rest: [] }, []);
}

// Notes the ms from the edit until this frame is on the screen.
function onScreen(what, facts) {
  const start = began;
  requestAnimationFrame(() => setTimeout(() => Object.assign(status.dataset, { [what]: performance.now() - start, ...facts })));
}

// ---------------------------------------------------------------------------------- pictures that follow their results

// Asks for the pictures on the page that are not drawn yet, and forgets those that left it.
function askPictures() {
  const wanted = new Set([...home.querySelectorAll("[data-picture]")].map((part) => Number(part.dataset.picture)));
  for (const number of drawings.keys()) if (!wanted.has(number)) drawings.delete(number);
  const pictures = [...wanted].filter((number) => !drawings.has(number));
  if (pictures.length) worker.postMessage({ pictures });
}

function showPicture({ picture, svg }) {
  drawings.set(picture, svg);
  for (const part of home.querySelectorAll(`[data-picture="${picture}"]`)) showIn(part, svg);
  onScreen("pictures", { picture });
}

const showIn = (part, svg) => put(part, svg ? drawing(svg, home.clientWidth, part.querySelector("canvas")) : null);

// Puts a picture into the part of a line, in place of the one that was there.
function put(part, made) {
  const before = part.querySelector("canvas");
  if (before !== made) before?.remove();
  if (made) part.append(made);
}

// ----------------------------------------------------------------------------------------------------------- results

// Only lines that are new are drawn: the others keep their place on the page.
function showLines(cell, lines) {
  const before = new Map(cell.shown.map((text, i) => [text, cell.results.children[i]]));
  const parts = lines.map((text, i) => {
    const kept = before.get(text);
    before.delete(text);
    if (kept) return kept;
    const gone = lines.includes(cell.shown[i]) ? null : cell.results.children[i]; // not one that keeps its place elsewhere
    const made = result(JSON.parse(text), gone);
    const { picture } = made.dataset;
    if (drawings.get(Number(picture))) showIn(made, drawings.get(Number(picture)));
    else if (picture && gone?.dataset.picture) put(made, gone.querySelector("canvas")); // until its own is drawn: nothing jumps
    return made;
  });
  if (parts.some((part, i) => part !== cell.results.children[i])) cell.results.replaceChildren(...parts);
  else while (cell.results.children.length > parts.length) cell.results.lastChild.remove();
  cell.shown = lines;
}

// The input beside its result; below them the picture.
function result(line, gone) {
  const said = line.error ?? [line.printed?.trimEnd(), line.text].filter(Boolean).join("\n");
  const text = make("pre", said);
  text.className = line.error ? "error" : line.holds === false ? "false" : line.holds ? "holds" : "";
  const source = make("code", line.error && line.source.includes("\n") ? `line ${line.first}` : line.source);
  const row = make("div", null, source, text);
  row.className = "row";
  const parts = [row];
  if (line.grid) parts.push(picture(line.grid, [...gone?.querySelectorAll(".bands") ?? []]));
  const made = make("article", null, ...parts);
  if (Number.isInteger(line.picture)) made.dataset.picture = line.picture;
  return made;
}

// Canvases of the line before it are painted anew where their sizes are the same.
function picture({ planes, rest }, spare) {
  const box = make("div");
  box.className = "planes";
  const flat = planes.flat(2), most = flat.reduce((a, b) => (Number.isInteger(b) && b > a ? b : a), 1);
  const hue = (value) => (Number.isInteger(value) ? Math.max(0, Math.min(7, Math.floor((8 * value) / (most + 1)))) : 0);
  const wide = Math.max(...flat.map((value) => String(value).length), 2) + 2; // characters
  planes.forEach((rows, number) => {
    const made = flat.length > FEW_CELLS ? bands(rows, hue, wide, [...spare[number]?.children ?? []]) : table(rows, hue, wide);
    box.append(rest.length ? make("figure", null, make("figcaption", where(number, rest)), made) : made);
  });
  return box;
}

// One text, parsed at once. Values are integers, or coordinates in signs that HTML does not read.
function table(rows, hue, wide) {
  const head = rows[0].map((_, j) => `<th>${j}</th>`).join("");
  const body = rows.map((cells, i) => `<tr><th>${i}</th>${cells.map((value) =>
    `<td data-offset="${value}" class="hue${hue(value)}">${value}</td>`).join("")}</tr>`).join("");
  const made = make("table");
  made.innerHTML = `<thead><tr><th></th>${head}</tr></thead><tbody>${body}</tbody>`;
  made.style.width = `${(rows[0].length + 1) * wide}ch`; // known in advance: no cell is measured
  return made;
}

// A browser takes a fifth of a second to place 4096 cells of a table, and a hundredth to paint them. A canvas takes its
// time by its pixels: the columns that the page shows have one, the others another, painted after the frame with the first.
const painted = new WeakMap(); // canvas -> how to surround the cells of an offset, and the offset at a point
const FONT = { size: 11, family: "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" };
function bands(rows, hue, wide, spare) {
  const across = rows[0].length, w = Math.ceil(wide * 6.2), seen = Math.min(across, Math.max(1, Math.ceil(home.clientWidth / w) - 1));
  const first = sized(rows, 0, seen, w, spare[0]), row = make("div", null, first.made);
  row.className = "bands";
  first.made.setAttribute("role", "img");
  first.made.setAttribute("aria-label", `${rows.length} by ${across} offsets, the first ${rows[0][0]}`);
  paintCells(first, hue);
  if (seen === across) return row;
  const rest = sized(rows, seen, across, w, spare[1]);
  rest.made.setAttribute("aria-hidden", "true");
  row.append(rest.made);
  requestAnimationFrame(() => setTimeout(() => { if (rest.made.isConnected) paintCells(rest, hue); }));
  return row;
}

// A canvas for the columns [from, end): the one that was there, where its size is the same.
function sized(rows, from, end, w, spare) {
  const scale = devicePixelRatio || 1, h = 17, lead = from ? 0 : w; // the row numbers stand before the first column
  const size = [(end - from) * w + lead, (rows.length + 1) * h], [wide, high] = size.map((n) => Math.round(n * scale));
  const same = spare?.width === wide && spare.height === high;
  const made = same ? spare : Object.assign(make("canvas"), { width: wide, height: high });
  [made.style.width, made.style.height] = size.map((n) => `${n}px`);
  return { made, rows: rows.map((cells) => cells.slice(from, end)), from, scale, size, w, h, lead };
}

function paintCells({ made, rows, from, scale, size, w, h, lead }, hue) {
  const style = getComputedStyle(home), hues = getComputedStyle(document.documentElement);
  const colors = [...Array(8).keys()].map((i) => hues.getPropertyValue(`--hue${i}`).trim());
  const pen = made.getContext("2d", { alpha: false });
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.fillStyle = hues.getPropertyValue("--paper").trim();
  pen.fillRect(0, 0, made.width, made.height);
  const [x, y] = [w, h].map((n) => Math.round(n * scale)), pixels = new Pixels(rows[0].length * x, rows.length * y);
  rows.forEach((cells, i) => pixels.row(i * y, x, y, cells.map((value) => colors[hue(value)])));
  const across = rows[0].map((_, j) => (j + 0.5) * x), down = rows.map((_, i) => (i + 0.5) * y + 3.5 * scale);
  const font = { ...FONT, size: FONT.size * scale, ink: "#111" };
  pixels.texts(font, rows.flatMap(() => across), rows.flatMap((cells, i) => cells.map(() => down[i])), rows.flat().map(String));
  pen.putImageData(pixels.image, Math.round(lead * scale), y);
  pen.scale(scale, scale);
  Object.assign(pen, { font: `${FONT.size}px ${FONT.family}`, textAlign: "center", textBaseline: "middle", fillStyle: style.color });
  rows[0].forEach((_, j) => pen.fillText(from + j, lead + (j + 0.5) * w, h / 2));
  if (lead) rows.forEach((_, i) => pen.fillText(i, w / 2, (i + 1.5) * h));
  let plain = null; // the picture without frames, from the first of them on
  const surround = (offset) => {
    if (plain === null) {
      plain = new OffscreenCanvas(made.width, made.height);
      plain.getContext("2d").drawImage(made, 0, 0);
    }
    pen.drawImage(plain, 0, 0, ...size);
    [pen.strokeStyle, pen.lineWidth] = ["#111", 3];
    rows.forEach((cells, i) => cells.forEach((value, j) => {
      if (value === offset) pen.strokeRect(lead + j * w + 1.5, (i + 1) * h + 1.5, w - 4, h - 4);
    }));
  };
  painted.set(made, { surround, at: (left, top) => rows[Math.floor(top / h) - 1]?.[Math.floor((left - lead) / w)] });
}

function where(number, rest) {
  return `( , , ${rest.map((n) => { const at = number % n; number = Math.floor(number / n); return at; }).join(", ")})`;
}

let lit;
home.addEventListener("pointermove", (event) => {
  const { target } = event;
  const offset = String(target.dataset?.offset ?? painted.get(target)?.at(event.offsetX, event.offsetY) ?? "");
  if (offset === lit) return;
  lit = offset;
  for (const cell of home.querySelectorAll(".lit")) cell.classList.remove("lit");
  if (lit) for (const cell of home.querySelectorAll(`td[data-offset="${CSS.escape(lit)}"]`)) cell.classList.add("lit");
  const value = /^-?\d+$/.test(lit) ? Number(lit) : lit;
  for (const made of home.querySelectorAll("canvas")) painted.get(made)?.surround(value);
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
begin();
