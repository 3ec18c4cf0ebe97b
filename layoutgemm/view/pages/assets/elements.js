"use strict";
// Draws what layoutgemm computed: every number that is shown comes out of the tables of `data`. An element of a matrix
// is numbered row * columns + column; the marks of all elements are made anew whenever something else is pointed at.

const data = JSON.parse(document.getElementById("data").textContent);
const { hues, odd } = JSON.parse(document.getElementById("palette").textContent);
// The element itself; what it makes or is made of; what its holder holds; what meets it in a bank.
const SAME = 1, LINKED = 2, HELD = 4, RIVAL = 8;
const LEFT = 46, TOP = 32; // room for the numbers of rows and columns, in pixels
const NAMES = 24; // from the cells up to the middle of the axes' names, which have a line of their own
const LARGEST = 1 << 24; // pixels of one picture: browsers refuse much larger ones
const SMALLEST = 3; // pixels of a cell, unless a smaller one is asked for
const SIZES = [3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 34, 38];
const dark = matchMedia("(prefers-color-scheme: dark)");

function table(number, columns) {
  const form = data.tables[number];
  if (form.join === "+") return (e) => form.rows[Math.floor(e / columns)] + form.columns[e % columns];
  if (form.join === "^") return (e) => form.rows[Math.floor(e / columns)] ^ form.columns[e % columns];
  const raw = Uint8Array.from(atob(form.base64), (c) => c.charCodeAt(0)).buffer;
  const values = form.bytes === 1 ? new Int8Array(raw) : form.bytes === 2 ? new Int16Array(raw) : new Int32Array(raw);
  return (e) => values[e];
}

function holderWords(number) {
  const { name, count, size, group, inner } = data.holder;
  if (count <= size) return `${name} ${number}`;
  return `${name} ${number} (${group} ${Math.floor(number / size)}, ${inner} ${number % size})`;
}

class Matrix {
  constructor(spec) {
    Object.assign(this, spec);
    const [rows, columns] = spec.extent;
    this.count = rows * columns;
    this.marks = new Uint8Array(this.count);
    this.labels = spec.holders?.labels ?? [];
    const at = (number) => table(number, columns);
    const texts = (all) => all.map((text) => ({ prefix: text.prefix, of: at(text.table) }));
    const paint = (p) => ({ ...p, key: at(p.table), texts: texts(p.texts) });
    const facts = (all) => all.map((fact) => ({ ...fact, of: at(fact.table) }));
    this.facts = facts(spec.facts);
    this.rivals = spec.rivals === null ? null : at(spec.rivals);
    this.paints = spec.paints.map(paint);
    if (spec.holders) {
      this.layers = spec.holders.threads.map((t, i) => ({ thread: at(t), value: at(spec.holders.values[i]) }));
      this.holding = new Map(); // holder -> [value, element], in order of the values
      for (const { thread, value } of this.layers) {
        for (let e = 0; e < this.count; e++) {
          const who = thread(e);
          if (who < 0) continue;
          if (!this.holding.has(who)) this.holding.set(who, []);
          this.holding.get(who).push([value(e), e]);
        }
      }
      for (const held of this.holding.values()) held.sort((a, b) => a[0] - b[0]);
    }
    if (spec.memory) {
      const m = spec.memory;
      this.memory = { ...m, start: at(m.start), facts: facts(m.facts), paint: m.paint && paint(m.paint) };
    }
  }
  coord(e) { return [Math.floor(e / this.extent[1]), e % this.extent[1]]; }
  // The coordinate along every dimension, those of planes included, and the element of such a coordinate.
  get axes() { return [...this.dims, ...(this.planes?.names ?? [])]; }
  get extents() { return this.planes ? [this.extent[0], this.planes.width, ...this.planes.extents] : this.extent; }
  full(e) {
    const [row, column] = this.coord(e);
    if (!this.planes) return [row, column];
    return [row, column % this.planes.width, ...this.plane(Math.floor(column / this.planes.width))];
  }
  plane(number) {
    return this.planes.extents.map((extent) => {
      const at = number % extent;
      number = Math.floor(number / extent);
      return at;
    });
  }
  elementAt([row, column, ...rest]) {
    const { extents, width } = this.planes ?? { extents: [], width: 0 };
    const plane = extents.reduceRight((number, extent, d) => number * extent + rest[d], 0);
    return this.element(row, column + plane * width);
  }
  // Planes side by side and below each other, about as wide as a window: [in a row, rows].
  get grid() {
    if (!this.planes) return [1, 1];
    const count = this.extent[1] / this.planes.width, [tall] = this.extent;
    const ratio = (1.6 * count * (tall + 2)) / (this.planes.width + 1);
    const across = Math.max(1, Math.min(count, Math.ceil(Math.sqrt(ratio))));
    return [across, Math.ceil(count / across)];
  }
  // Cells across and down, with room between planes.
  get span() {
    const across = this.extent[this.across], down = this.extent[1 - this.across];
    return this.planes ? [this.grid[0] * (this.planes.width + 1), this.grid[1] * (down + 2)] : [across, down];
  }
  element(i, j) { return i * this.extent[1] + j; }
  twin(other) { return other !== this && this.dims.every((dim, d) => dim === other.dims[d]); }
  heldBy(e) {
    if (!this.layers) return [];
    return this.layers.map(({ thread, value }) => [thread(e), value(e)]).filter(([thread]) => thread >= 0);
  }
}

const matrices = data.matrices.map((spec) => new Matrix(spec));

const state = { cursor: null, hover: null, holder: null, turn: 0, cell: 0, paint: null };
const shown = () => state.hover ?? state.cursor; // {matrix, e}, or null

// What an element fixes: dimension -> [first, last + 1]. One dimension may count blocks of another.
function fixed({ matrix, e }) {
  const at = matrix.coord(e), found = {};
  matrix.dims.forEach((dim, d) => { found[dim] = [at[d], at[d] + 1]; });
  for (const [dim, [of, size]] of Object.entries(data.blocks)) {
    if (of in found) found[dim] ??= [Math.floor(found[of][0] / size), Math.ceil(found[of][1] / size)];
    else if (dim in found) found[of] = found[dim].map((x) => x * size);
  }
  return found;
}

function mark() {
  const at = shown();
  for (const matrix of matrices) matrix.marks.fill(0);
  if (at) {
    const value = fixed(at);
    for (const other of matrices) {
      if (other === at.matrix) continue;
      if (!other.dims.some((dim) => dim in value)) continue;
      const [rows, columns] = other.dims.map((dim, d) => value[dim] ?? [0, other.extent[d]]);
      for (let r = rows[0]; r < rows[1]; r++)
        for (let c = columns[0]; c < columns[1]; c++) other.marks[other.element(r, c)] |= LINKED;
    }
    const memory = at.matrix.memory;
    if (memory && !memory.banked) // two coordinates of a layout may have one offset
      for (let e = 0; e < at.matrix.count; e++)
        if (memory.start(e) === memory.start(at.e)) at.matrix.marks[e] |= LINKED;
    at.matrix.marks[at.e] |= SAME;
    for (const matrix of matrices) {
      const group = matrix.rivals && (matrix === at.matrix || at.matrix.twin(matrix)) ? matrix.rivals(at.e) : -1;
      if (group >= 0) for (let e = 0; e < matrix.count; e++) if (matrix.rivals(e) === group) matrix.marks[e] |= RIVAL;
    }
    if (state.holder === null && data.holder?.count > 1) {
      const first = at.matrix.heldBy(at.e)[0];
      if (first) for (const [, e] of at.matrix.holding.get(first[0])) at.matrix.marks[e] |= HELD;
    }
  }
  if (state.holder !== null)
    for (const matrix of matrices)
      for (const [, e] of matrix.holding?.get(state.holder) ?? []) matrix.marks[e] |= HELD;
}

function update() {
  mark();
  for (const picture of pictures) picture.light();
  tell();
}
