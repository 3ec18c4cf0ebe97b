// Paints an SVG document of this library: a browser takes several times as long to place thousands of its texts.
const INHERITED = ["fill", "stroke", "stroke-width", "font-size", "font-family", "font-weight", "text-anchor", "stroke-dasharray"];
const SLICE = 12; // ms of painting before the page gets its turn
const ANCHORS = { start: "left", middle: "center", end: "right" };

// The colours of the roles in a dark page, from the document's style sheet: {"lgf-ink": "#F2F2F2", ...}
const dark = (sheet) => Object.fromEntries([...sheet.matchAll(/\.(lg[fs]-\w+)\{\w+:(#\w+)\}/g)].map((rule) => rule.slice(1)));

// Number attributes of an element, by name.
const numbers = (element, ...names) => names.map((name) => Number(element.getAttribute(name)));

class Painter {
  constructor(pen, roles) { Object.assign(this, { pen, roles, grids: new Map() }); }

  // The whole document. The texts of all its grids come last, at once: each canvas for them takes its time.
  *document(svg) {
    yield* this.inside(svg, {});
    for (const { font, xs, ys, lines } of this.grids.values()) {
      texts(this.pen, font, xs, ys, lines);
      yield;
    }
  }

  // Draws the elements inside `parent`, whose attributes hold where they have none of their own; yields after each.
  *inside(parent, above) {
    for (const element of parent.children) {
      const style = { ...above }, names = element.getAttributeNames();
      for (const name of names) if (INHERITED.includes(name)) style[name] = element.getAttribute(name);
      const role = element.getAttribute("class");
      if (role in this.roles) style[role[2] === "f" ? "fill" : "stroke"] = this.roles[role];
      if (element.tagName === "g") yield* this.group(element, style);
      else this[element.tagName]?.(element, style);
      yield;
    }
  }

  *group(element, style) {
    const { pen } = this, moves = element.getAttribute("transform");
    if (element.getAttribute("pointer-events")) return; // strokes that only carry titles
    pen.save();
    for (const [, verb, by] of (moves ?? "").matchAll(/(translate|scale)\(([^)]*)\)/g)) pen[verb](...by.split(/[ ,]+/).map(Number));
    this.font(style);
    if (style.fill) pen.fillStyle = style.fill;
    yield* this.inside(element, style);
    pen.restore();
  }

  font(style) {
    const { pen } = this;
    pen.font = `${style["font-weight"] ?? 400} ${style["font-size"] ?? 12}px ${style["font-family"] ?? "sans-serif"}`;
    pen.textAlign = ANCHORS[style["text-anchor"] ?? "start"];
  }

  // All texts of a grid: thousands of them are copied from drawn characters.
  cells(element, style) {
    const { a: scale, e, f } = this.pen.getTransform(), size = Number(style["font-size"]) * scale;
    const key = `${size} ${style["font-family"]} ${style.fill}`;
    if (!this.grids.has(key)) this.grids.set(key, { font: { size, family: style["font-family"], ink: style.fill }, xs: [], ys: [], lines: [] });
    const grid = this.grids.get(key);
    for (const x of element.getAttribute("x").split(" ")) grid.xs.push(x * scale + e);
    for (const y of element.getAttribute("y").split(" ")) grid.ys.push(y * scale + f);
    for (const line of element.textContent.split("|")) grid.lines.push(line);
  }

  // Texts of a few fonts: the numbers of rows and columns.
  texts(element) {
    const [xs, ys] = ["x", "y"].map((name) => element.getAttribute(name).split(" ").map(Number));
    element.textContent.split("|").forEach((line, i) => this.pen.fillText(line, xs[i], ys[i]));
  }

  text(element) { this.pen.fillText(element.textContent, ...numbers(element, "x", "y")); }

  path(element, style) { this.shape(new Path2D(element.getAttribute("d")), element, style); }

  circle(element, style) {
    const shape = new Path2D();
    shape.arc(...numbers(element, "cx", "cy", "r"), 0, 2 * Math.PI);
    this.shape(shape, element, style);
  }

  rect(element, style) {
    const shape = new Path2D(), whole = element.getAttribute("width") === "100%";
    shape.rect(...(whole ? [0, 0, 1e5, 1e5] : numbers(element, "x", "y", "width", "height")));
    this.shape(shape, element, style);
  }

  shape(shape, element, style) {
    const { pen } = this;
    if (style.fill !== "none") { pen.fillStyle = style.fill ?? "#000"; pen.fill(shape); }
    if (!style.stroke || style.stroke === "none") return;
    pen.globalAlpha = Number(element.getAttribute("stroke-opacity") ?? 1);
    Object.assign(pen, { strokeStyle: style.stroke, lineWidth: Number(style["stroke-width"] ?? 1) });
    pen.setLineDash((style["stroke-dasharray"] ?? "").split(" ").filter(Boolean).map(Number));
    pen.stroke(shape);
    pen.globalAlpha = 1;
  }
}

// ------------------------------------------------------------------------------------------ many texts in one font

// Drawn characters by font and colour: a browser takes ten times as long to place thousands of texts as to copy them.
const fonts = new Map();

// The pixels of a character: their places (dx, dy) from its left end on the baseline, and their colours.
function drawn(letter, size, family, ink) {
  const side = Math.ceil(2 * size), made = new OffscreenCanvas(side, side), pen = made.getContext("2d", { willReadFrequently: true });
  const [left, base] = [Math.ceil(size / 2), Math.ceil(1.4 * size)], at = [], colors = [];
  Object.assign(pen, { font: `${size}px ${family}`, fillStyle: ink });
  pen.fillText(letter, left, base);
  new Uint32Array(pen.getImageData(0, 0, side, side).data.buffer).forEach((color, i) => {
    if (color) { at.push((i % side) - left, Math.floor(i / side) - base); colors.push(color); }
  });
  return { at, colors, width: pen.measureText(letter).width };
}

// The pixel of a colour "#rrggbb", its bytes from the lowest on: red, green, blue, opaque.
const pixel = (color) => {
  const bytes = parseInt(color.slice(1), 16);
  return (255 << 24 | (bytes & 255) << 16 | bytes & 0xff00 | bytes >> 16) >>> 0;
};

// A pixel over an opaque one.
function over(color, under) {
  const a = color >>> 24, b = 255 - a;
  const part = (shift) => Math.round(((color >>> shift & 255) * a + (under >>> shift & 255) * b) / 255) << shift;
  return (255 << 24 | part(16) | part(8) | part(0)) >>> 0;
}

const kept = []; // the last sizes: new memory takes as long as all that is drawn into it
const KEPT = 3;

// A rectangle of pixels, in which boxes are filled and texts of a monospaced font are copied.
export class Pixels {
  constructor(width, height) {
    const at = kept.findIndex((image) => image.width === width && image.height === height);
    const image = at < 0 ? new ImageData(width, height) : kept.splice(at, 1)[0];
    if (at >= 0) image.data.fill(0);
    kept.unshift(image);
    kept.length = Math.min(kept.length, KEPT);
    this.image = image; // written to a canvas before another of its size is made
    [this.width, this.data] = [width, new Uint32Array(this.image.data.buffer)];
  }

  // Boxes side by side from y on, each `width` wide and a pixel less filled, in colours "#rrggbb".
  row(y, width, height, colors) {
    const { data } = this, from = y * this.width;
    colors.forEach((color, j) => data.fill(pixel(color), from + j * width, from + (j + 1) * width - 1));
    for (let k = 1; k < height - 1; k++) data.copyWithin(from + k * this.width, from, from + this.width);
  }

  // Texts with their middles at xs and their baselines at ys.
  texts({ size, family, ink }, xs, ys, lines) {
    const key = `${size} ${family} ${ink}`, { data, width } = this;
    if (!fonts.has(key)) fonts.set(key, new Map());
    const font = fonts.get(key);
    for (const letter of new Set(lines.join(""))) if (!font.has(letter)) font.set(letter, drawn(letter, size, family, ink));
    const step = font.values().next().value?.width ?? 0;
    const glyphs = new Map([...font].map(([letter, { at, colors }]) =>
      [letter.charCodeAt(0), { colors, offsets: colors.map((_, i) => at[2 * i + 1] * width + at[2 * i]) }]));
    lines.forEach((line, i) => {
      const left = xs[i] - (line.length * step) / 2, row = Math.round(ys[i]) * width;
      for (let k = 0; k < line.length; k++) {
        const { offsets, colors } = glyphs.get(line.charCodeAt(k)), from = row + Math.round(left + k * step);
        for (let p = 0; p < colors.length; p++) {
          const at = from + offsets[p];
          data[at] = data[at] === 0 ? colors[p] : over(colors[p], data[at]);
        }
      }
    });
  }
}

// Draws texts with their middles at xs and their baselines at ys, in pixels of the canvas, in a monospaced font.
function texts(pen, { size, family, ink }, xs, ys, lines) {
  const most = (values) => values.reduce((a, b) => Math.max(a, b)), least = (values) => values.reduce((a, b) => Math.min(a, b));
  const edge = Math.ceil(2 * size), longest = size * most(lines.map((line) => line.length));
  const [x0, y0] = [Math.floor(least(xs) - longest / 2) - edge, Math.floor(least(ys)) - edge];
  const width = Math.ceil(most(xs) + longest / 2) + edge - x0, height = Math.ceil(most(ys)) + edge - y0;
  const pixels = new Pixels(width, height), layer = new OffscreenCanvas(width, height);
  pixels.texts({ size, family, ink }, xs.map((x) => x - x0), ys.map((y) => y - y0), lines);
  layer.getContext("2d").putImageData(pixels.image, 0, 0);
  pen.save();
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.drawImage(layer, x0, y0);
  pen.restore();
}

const turns = new WeakMap(); // canvas -> the number of its latest painting

// The document as a canvas, at most `room` pixels wide. A large one goes on being painted after the frame that shows it.
export function painted(text, room, spare) {
  const [whole, sheet] = text.match(/<style>([^<]*)<\/style>/) ?? ["", ""];
  const plain = text.replace(whole, "").replace(/ style="[^"]*"/, ""); // the page's policy lets no document style itself
  const svg = new DOMParser().parseFromString(plain, "image/svg+xml").documentElement;
  const [width, height] = numbers(svg, "width", "height");
  const fit = Math.min(1, room / width), scale = fit * (devicePixelRatio || 1), pixels = [width, height].map((n) => Math.ceil(n * scale));
  const same = spare?.width === pixels[0] && spare.height === pixels[1]; // then it is painted anew: new memory takes its time
  const made = same ? spare : Object.assign(document.createElement("canvas"), { width: pixels[0], height: pixels[1] });
  Object.assign(made.style, { width: `${width * fit}px`, height: `${height * fit}px` });
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", svg.querySelector("title").textContent);
  const pen = made.getContext("2d", { alpha: false });
  pen.reset?.(); // a painting that ended early leaves its state
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  const turn = (turns.get(made) ?? 0) + 1;
  turns.set(made, turn);
  inSlices(new Painter(pen, matchMedia("(prefers-color-scheme: dark)").matches ? dark(sheet) : {}).document(svg), () => turns.get(made) === turn);
  return made;
}

// Takes all steps of a generator while they are wanted, and lets the page have its turn in between.
function inSlices(steps, wanted) {
  const start = performance.now();
  while (wanted() && !steps.next().done) if (performance.now() - start > SLICE) return setTimeout(() => inSlices(steps, wanted));
}
