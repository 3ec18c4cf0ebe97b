// The pictures: matrices as grids, shared memory line by line. Each is two canvases, colours and marks.

const theme = () => {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "faint", "empty", "plain", "dim"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
};

function fillOf(paint, e) {
  const key = paint.key(e);
  if (key < 0) return null;
  const group = Math.floor(key / paint.per) % hues.length;
  return (paint.odd && key % 2 ? odd : hues)[group];
}

const multiples = (count, step) => Array.from({ length: Math.floor(count / step) + 1 }, (_, i) => i * step);

const LETTER = 4.5; // pixels of the smallest letters: four in a cell of 14
const NAME_FONT = "11px system-ui, 'DejaVu Sans', sans-serif";
const namesOf = (down, across) => [down && `${down} \u2193`, across && `${across} \u2192`].filter(Boolean).join("   ");
const ruler = document.createElement("canvas").getContext("2d"); // measures text before a canvas has its size
function nameWidth(down, across) {
  ruler.font = NAME_FONT;
  return ruler.measureText(namesOf(down, across)).width;
}

// A picture of cells: `cells(e)` says where element e is drawn, `find(x, y)` what is drawn there.
class Picture {
  constructor(matrix, name, title, home) {
    Object.assign(this, { matrix, name, numbers: { rows: [], columns: [] } });
    const figure = document.createElement("figure");
    figure.dataset.picture = name;
    const caption = figure.appendChild(document.createElement("figcaption"));
    caption.appendChild(document.createElement("b")).textContent = name;
    caption.append(title);
    const layers = figure.appendChild(document.createElement("div"));
    layers.className = "layers";
    this.base = layers.appendChild(document.createElement("canvas"));
    this.over = layers.appendChild(document.createElement("canvas"));
    this.base.setAttribute("aria-hidden", "true");
    this.over.tabIndex = 0;
    this.over.setAttribute("role", "application");
    this.over.setAttribute("aria-roledescription", "element map");
    const how = "Arrow keys move from element to element, Enter selects who holds it.";
    this.over.setAttribute("aria-label", `${name}: ${title}. ${how}`);
    this.over.setAttribute("aria-describedby", "summary");
    this.figure = home.appendChild(figure);
    this.listen();
  }

  listen() {
    const at = (event) => {
      const e = this.find(event.offsetX - LEFT, event.offsetY - TOP);
      return e === null ? null : { matrix: this.matrix, e };
    };
    this.over.addEventListener("pointermove", (event) => {
      const found = at(event);
      if (found?.matrix === state.hover?.matrix && found?.e === state.hover?.e) return;
      state.hover = found;
      update();
    });
    this.over.addEventListener("pointerleave", () => { state.hover = null; update(); });
    this.over.addEventListener("click", (event) => {
      const found = at(event);
      if (found) choose(found);
    });
    this.over.addEventListener("focus", () => {
      if (state.cursor?.matrix === this.matrix || !this.over.matches(":focus-visible")) return;
      state.cursor = { matrix: this.matrix, e: 0 };
      update();
    });
    this.over.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const steps = {
        ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
        Home: [-Infinity, 0], End: [Infinity, 0], PageUp: [0, -8], PageDown: [0, 8],
      };
      if (event.key in steps) {
        event.preventDefault();
        const e = state.cursor?.matrix === this.matrix ? state.cursor.e : 0;
        state.hover = null;
        state.cursor = { matrix: this.matrix, e: this.step(e, ...steps[event.key]) };
        update();
        this.reveal();
      } else if ((event.key === "Enter" || event.key === " ") && state.cursor?.matrix === this.matrix) {
        event.preventDefault();
        choose(state.cursor);
      }
    });
  }

  size() {
    const [w, h] = this.area();
    return [Math.max(LEFT + w, nameWidth(...this.names())) + 4, TOP + h + 4];
  }

  // Both canvases at the device's resolution, as far as LARGEST allows.
  resize() {
    const [width, height] = this.size();
    const ratio = Math.min(devicePixelRatio || 1, Math.sqrt(LARGEST / (width * height)));
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.ceil(width * ratio);
      canvas.height = Math.ceil(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
  }

  // `more`: beside numbers that are drawn already.
  axis(context, texts, horizontal, size, more = false) {
    // As many numbers as fit; those of eight-element groups first.
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    context.fillStyle = theme().faint;
    const need = horizontal ? Math.max(...texts.map((t) => context.measureText(t[0]).width)) + 6 : 12;
    let every = 1;
    while (every * size < need) every *= 2;
    context.textAlign = horizontal ? "center" : "right";
    context.textBaseline = "middle";
    const which = horizontal ? "columns" : "rows";
    const shown = this.numbers[which] = more ? this.numbers[which] : []; // [from, to] in pixels of the canvas
    texts.forEach(([text, centre], i) => {
      if (i % every) return;
      const half = horizontal ? context.measureText(text).width / 2 : 6, middle = (horizontal ? LEFT : TOP) + centre;
      shown.push([middle - half, middle + half]);
      if (horizontal) context.fillText(text, LEFT + centre, TOP - 8);
      else context.fillText(text, LEFT - 5, TOP + centre);
    });
  }

  // The texts of all elements in letters of one size, at which the longest fits; none where those are too small.
  write(context, paint, boxes) {
    const written = boxes.map((box, e) => [box, paint.texts.map((t) => t.prefix + t.of(e))]).filter((_, e) => fillOf(paint, e));
    let size = 11;
    for (const [[, , width, height], lines] of written) {
      const longest = Math.max(0, ...lines.map((line) => line.length));
      size = Math.min(size, (width - 2) / (0.61 * longest), (height - 2) / (1.15 * lines.length));
    }
    if (size < LETTER) return;
    context.font = `${size}px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace`;
    context.fillStyle = "#111111"; // on the hues, in either theme
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const [[x, y, width, height], lines] of written) lines.forEach((line, i) => {
      context.fillText(line, LEFT + x + width / 2, TOP + y + height / 2 + (i - (lines.length - 1) / 2) * 1.15 * size);
    });
  }

  draw(paint) {
    this.resize();
    const context = this.base.getContext("2d"), colors = theme();
    context.clearRect(0, 0, this.base.width, this.base.height);
    context.fillStyle = paint ? colors.empty : colors.plain;
    for (const [x, y, width, height] of this.regions()) context.fillRect(LEFT + x, TOP + y, width, height);
    const boxes = [];
    for (let e = 0; e < this.matrix.count; e++) {
      const box = this.cell(e), fill = paint && fillOf(paint, e);
      boxes.push(box);
      if (!fill) continue;
      context.fillStyle = fill;
      context.fillRect(LEFT + box[0], TOP + box[1], box[2], box[3]);
    }
    this.rules(context, colors);
    if (paint) this.write(context, paint, boxes);
    this.axes(context);
  }

  lines(context, color, xs, ys) {
    context.strokeStyle = color;
    context.lineWidth = 1;
    context.beginPath();
    for (const [left, top, width, height] of this.regions()) {
      const from = LEFT + left + 0.5, down = TOP + top + 0.5;
      for (const x of xs) { context.moveTo(from + x, down - 0.5); context.lineTo(from + x, down + height - 0.5); }
      for (const y of ys) { context.moveTo(from - 0.5, down + y); context.lineTo(from + width - 0.5, down + y); }
    }
    context.stroke();
  }

  // What is marked keeps its colour, all else is dimmed: a hole in a veil, not one more colour.
  light() {
    const context = this.over.getContext("2d"), { paper, ink, dim } = theme(), { marks, count } = this.matrix;
    context.clearRect(0, 0, this.over.width, this.over.height);
    let lit = 0;
    for (let e = 0; e < count; e++) if (marks[e]) lit++;
    const marked = (bit) => marks.filter((mark) => mark & bit).length;
    Object.assign(this.figure.dataset, { lit, same: marked(SAME), linked: marked(LINKED), held: marked(HELD), rivals: marked(RIVAL) });
    const at = shown();
    if (!lit && !at && state.holder === null) return;
    context.globalAlpha = Number(dim);
    context.fillStyle = paper;
    for (const [x, y, width, height] of this.regions()) context.fillRect(LEFT + x, TOP + y, width, height);
    context.globalAlpha = 1;
    for (let e = 0; e < count; e++) {
      if (!marks[e]) continue;
      const [x, y, w, h] = this.cell(e), rule = h >= 7 ? 1 : 0; // the lines between cells stay under the veil
      context.clearRect(LEFT + x + (w >= 7 ? rule : 0), TOP + y + rule, w - (w >= 7 ? rule : 0), h - rule);
    }
    context.fillStyle = "#111111";
    for (let e = 0; e < count; e++) {
      if (!(marks[e] & HELD)) continue;
      const [x, y, w, h] = this.cell(e), r = Math.max(0.8, Math.min(2, Math.min(w, h) * 0.16));
      context.beginPath(); // a dot, or under the text of a larger cell a bar
      if (w < 12) context.arc(LEFT + x + w / 2, TOP + y + h / 2, r, 0, 7);
      else context.rect(LEFT + x + w * 0.15, TOP + y + h - 2.2, w * 0.7, 2.2);
      context.fill();
    }
    context.strokeStyle = "#111111";
    for (let e = 0; e < count; e++) { // a frame inside of each that meets another in a bank
      if (!(marks[e] & RIVAL)) continue;
      const [x, y, w, h] = this.cell(e);
      context.lineWidth = Math.min(w, h) < 10 ? 0.6 : 1.5;
      context.strokeRect(LEFT + x + 1.5, TOP + y + 1.5, Math.max(1, w - 2), Math.max(1, h - 2));
    }
    for (const box of this.frames(at)) {
      const grow = box[4];
      for (const [color, thick] of grow ? [[paper, 5], [ink, 2.5]] : [[ink, 1]]) {
        context.strokeStyle = color;
        context.lineWidth = thick;
        context.strokeRect(LEFT + box[0] - 0.5, TOP + box[1] - 0.5, box[2] + 1, box[3] + 1);
      }
    }
    if (at?.matrix === this.matrix) this.here(context, at.e);
  }

  regions() { return [[0, 0, ...this.area()]]; } // the grids, [left, top, width, height]

  frames(at) {
    return at?.matrix === this.matrix ? [[...this.cell(at.e), true]] : [];
  }

  // The names of the axes, on a line above the columns' numbers.
  nameAxes(context, down, across) {
    context.font = NAME_FONT;
    context.fillStyle = theme().faint;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(namesOf(down, across), 0, TOP - NAMES);
  }

  // The numbers of the element's row and column, in ink. A number of the axis that one would cut is covered whole.
  tag(context, text, x, y, right) {
    const { paper, ink } = theme();
    context.font = "bold 11px system-ui, 'DejaVu Sans', sans-serif";
    context.textBaseline = "middle";
    context.textAlign = right ? "right" : "center";
    const width = context.measureText(text).width + 6, middle = right ? y : x, half = right ? 5 : width / 2;
    const near = right ? ([a, b]) => Math.abs((a + b) / 2 - middle) < 10 : ([a, b]) => a < middle + half && b > middle - half;
    const cut = this.numbers[right ? "rows" : "columns"].filter(near);
    const from = Math.min(middle - half, ...cut.map(([a]) => a)), to = Math.max(middle + half, ...cut.map(([, b]) => b));
    context.fillStyle = paper;
    if (right) context.fillRect(0, from, LEFT - 2, to - from);
    else context.fillRect(from, y - 7, to - from, 14);
    context.fillStyle = ink;
    context.fillText(text, x, y);
  }

  reveal() {
    const stage = document.getElementById("stage"), [x, y, w, h] = this.cell(state.cursor.e);
    const box = this.over.getBoundingClientRect(), frame = stage.getBoundingClientRect();
    const left = box.left + LEFT + x, top = box.top + TOP + y;
    if (left < frame.left + LEFT) stage.scrollBy(left - frame.left - LEFT, 0);
    if (left + w > frame.right) stage.scrollBy(left + w - frame.right + LEFT, 0);
    if (top < 10) scrollBy(0, top - 40);
    if (top + h > innerHeight) scrollBy(0, top + h - innerHeight + 40);
  }
}

const APART = [18, 26]; // pixels between two planes, across and down: a plane's name is below it

class MatrixPicture extends Picture {
  constructor(matrix, home) {
    super(matrix, matrix.name, matrix.title, home);
    this.figure.classList.add(matrix.place);
    this.wide = matrix.planes?.width ?? matrix.extent[matrix.across];
    this.tall = matrix.extent[1 - matrix.across];
    this.count = matrix.planes ? matrix.extent[1] / this.wide : 1; // planes
    this.grid = matrix.grid;
  }
  get pitch() { return [this.wide * state.cell + APART[0], this.tall * state.cell + APART[1]]; }
  corner(plane) { return [(plane % this.grid[0]) * this.pitch[0], Math.floor(plane / this.grid[0]) * this.pitch[1]]; }
  regions() {
    const size = [this.wide * state.cell, this.tall * state.cell];
    return Array.from({ length: this.count }, (_, plane) => [...this.corner(plane), ...size]);
  }
  area() {
    if (!this.matrix.planes) return [this.wide * state.cell, this.tall * state.cell];
    return [this.grid[0] * this.pitch[0] - APART[0], this.grid[1] * this.pitch[1]];
  }
  // [across, down, plane] of an element, and the element there.
  place(e) {
    const at = this.matrix.coord(e), across = at[this.matrix.across];
    return [across % this.wide, at[1 - this.matrix.across], Math.floor(across / this.wide)];
  }
  at(x, y, plane) {
    const across = x + plane * this.wide;
    return this.matrix.across === 1 ? this.matrix.element(y, across) : this.matrix.element(across, y);
  }
  cell(e) {
    const [x, y, plane] = this.place(e), [left, top] = this.corner(plane);
    return [left + x * state.cell, top + y * state.cell, state.cell, state.cell];
  }
  find(px, py) {
    if (px < 0 || py < 0) return null;
    const [right, down] = this.matrix.planes ? this.pitch : [Infinity, Infinity];
    const across = Math.floor(px / right), below = Math.floor(py / down), plane = across + this.grid[0] * below;
    const x = Math.floor((px - (across && across * right)) / state.cell);
    const y = Math.floor((py - (below && below * down)) / state.cell);
    return across < this.grid[0] && plane < this.count && x < this.wide && y < this.tall ? this.at(x, y, plane) : null;
  }
  step(e, dx, dy) { // through the planes as if they were one grid
    const [x, y, plane] = this.place(e), [across, down] = this.grid;
    const clamp = (at, most) => Math.max(0, Math.min(most - 1, at));
    const column = clamp((plane % across) * this.wide + x + dx, across * this.wide);
    const row = clamp(Math.floor(plane / across) * this.tall + y + dy, down * this.tall);
    const below = Math.floor(row / this.tall) * across, there = below + Math.floor(column / this.wide);
    if (there < this.count) return this.at(column % this.wide, row % this.tall, there);
    return dy ? e : this.at(this.wide - 1, row % this.tall, this.count - 1); // the last row of planes may be short
  }
  paint() { return this.matrix.paints.find((p) => p.name === state.paint) ?? this.matrix.paints[0] ?? null; }
  redraw() { this.draw(this.paint()); }
  rules(context, colors) {
    const range = (count, step) => multiples(count, step).map((at) => at * state.cell);
    if (state.cell >= 7) this.lines(context, colors.paper, range(this.wide, 1), range(this.tall, 1));
    this.lines(context, colors.faint, range(this.wide, 8), range(this.tall, 8));
    this.lines(context, colors.faint, [this.wide * state.cell], [this.tall * state.cell]);
  }
  axes(context) {
    const numbers = (count, from) => Array.from({ length: count }, (_, i) => [String(i), from + (i + 0.5) * state.cell]);
    for (let i = 0; i < this.grid[0]; i++)
      this.axis(context, numbers(this.wide, i && i * this.pitch[0]), true, state.cell, i > 0);
    for (let i = 0; i < this.grid[1]; i++)
      this.axis(context, numbers(this.tall, i && i * this.pitch[1]), false, state.cell, i > 0);
    this.nameAxes(context, ...this.names());
    if (this.matrix.planes) this.nameAxesOfPlanes(context);
  }
  nameAxesOfPlanes(context) {
    context.font = NAME_FONT;
    context.fillStyle = theme().ink;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const { names } = this.matrix.planes;
    this.regions().forEach(([x, y, , height], plane) => {
      const text = this.matrix.plane(plane).map((at, d) => `${names[d]} = ${at}`).join(", ");
      context.fillText(text, LEFT + x, TOP + y + height + 11, this.pitch[0]);
    });
  }
  names() { const { dims, across } = this.matrix; return [dims[1 - across], dims[across]]; }
  here(context, e) {
    const [x, y, plane] = this.place(e), [left, top] = this.corner(plane);
    this.tag(context, String(x), LEFT + left + (x + 0.5) * state.cell, TOP - 8, false);
    this.tag(context, String(y), LEFT - 5, TOP + top + (y + 0.5) * state.cell, true);
  }
}

class MemoryPicture extends Picture {
  constructor(matrix, home) {
    const memory = matrix.memory;
    super(matrix, memory.name, memory.title, home);
    this.rows = Math.ceil(memory.size / memory.line);
    this.owner = new Int32Array(this.rows * memory.line).fill(-1); // grain -> the first element in it
    for (let e = matrix.count - 1; e >= 0; e--)
      for (let g = 0; g < memory.grains; g++) this.owner[memory.start(e) + g] = e;
  }
  // A unit of 16 bytes is as wide as eight cells: elements of 16 bits are square.
  get grainWidth() {
    const { unit, banked } = this.matrix.memory;
    return banked ? Math.max(1, Math.round((8 * state.cell) / unit)) : state.cell;
  }
  area() { return [this.matrix.memory.line * this.grainWidth, this.rows * state.cell]; }
  cell(e) {
    const { line, grains, start } = this.matrix.memory, at = start(e);
    const x = (at % line) * this.grainWidth, y = Math.floor(at / line) * state.cell;
    return [x, y, grains * this.grainWidth, state.cell];
  }
  find(px, py) {
    const { line } = this.matrix.memory, x = Math.floor(px / this.grainWidth), y = Math.floor(py / state.cell);
    if (x < 0 || y < 0 || x >= line || y >= this.rows) return null;
    const e = this.owner[y * line + x];
    return e < 0 ? null : e;
  }
  step(e, dx, dy) { // to the next place that holds an element
    const { line, grains, start } = this.matrix.memory, at = start(e);
    if (Math.abs(dx) === Infinity) {
      const first = at - (at % line), row = this.owner.slice(first, first + line).filter((x) => x >= 0);
      return dx < 0 ? row[0] : row[row.length - 1];
    }
    const by = dx * grains + dy * line;
    for (let next = at + by; next >= 0 && next < this.owner.length; next += Math.sign(by) * (dx ? 1 : line))
      if (this.owner[next] >= 0 && this.owner[next] !== e) return this.owner[next];
    return e;
  }
  redraw() {
    const { banked, paint, start, line, unit } = this.matrix.memory;
    if (!banked) return this.draw(this.matrix.paints.find((p) => p.name === state.paint) ?? paint);
    const of = this.matrix.coord.bind(this.matrix);
    this.draw({
      key: (e) => Math.floor((start(e) % line) / unit), per: 1, odd: false,
      texts: [{ prefix: "", of: (e) => of(e)[0] }, { prefix: "", of: (e) => of(e)[1] }],
    });
  }
  rules(context, colors) {
    const { line, unit, grains } = this.matrix.memory, w = this.grainWidth;
    const range = (count, step, size) => multiples(count, step).map((at) => at * size);
    if (w * grains >= 7) this.lines(context, colors.paper, range(line, grains, w), []);
    if (state.cell >= 7) this.lines(context, colors.paper, [], range(this.rows, 1, state.cell));
    const bottom = this.rows * state.cell;
    this.lines(context, colors.faint, range(line, unit, w), [...range(this.rows, 8, state.cell), bottom]);
  }
  axes(context) {
    const { ticks, unit, per_line, banked } = this.matrix.memory, w = unit * this.grainWidth;
    const lines = multiples(this.rows - 1, 1).map((i) => [String(i * per_line), (i + 0.5) * state.cell]);
    this.axis(context, ticks.map((tick, i) => [String(tick), i * w + (banked ? 6 : this.grainWidth / 2)]), true, w);
    this.axis(context, lines, false, state.cell);
    this.nameAxes(context, ...this.names());
  }
  names() { return this.matrix.memory.banked ? ["byte", "bank"] : ["offset", ""]; }
  frames(at) {
    if (at?.matrix !== this.matrix) return [];
    const { line, unit, start, banked } = this.matrix.memory, first = start(at.e) - (start(at.e) % unit);
    const x = (first % line) * this.grainWidth, y = Math.floor(first / line) * state.cell;
    const own = [...this.cell(at.e), true];
    return banked ? [[x, y, unit * this.grainWidth, state.cell, false], own] : [own];
  }
  here(context, e) {
    const { line, per_line, banked, start } = this.matrix.memory, [x, y, w] = this.cell(e);
    const column = banked ? this.matrix.memory.facts.find((fact) => fact.name === "bank").of(e) : start(e) % line;
    this.tag(context, String(Math.floor(start(e) / line) * per_line), LEFT - 5, TOP + y + state.cell / 2, true);
    this.tag(context, String(column), LEFT + x + w / 2, TOP - 8, false);
  }
}
