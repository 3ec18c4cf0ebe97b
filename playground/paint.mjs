// Paints an SVG document of this library: a browser takes several times as long to place thousands of its texts.
const INHERITED = ["fill", "stroke", "stroke-width", "font-size", "font-family", "font-weight", "text-anchor", "stroke-dasharray"];
const SLICE = 12; // ms of painting before the page gets its turn
const ANCHORS = { start: "left", middle: "center", end: "right" };

// The colours of the roles in a dark page, from the document's style sheet: {"lgf-ink": "#F2F2F2", ...}
const dark = (sheet) => Object.fromEntries([...sheet.matchAll(/\.(lg[fs]-\w+)\{\w+:(#\w+)\}/g)].map((rule) => rule.slice(1)));

// Number attributes of an element, by name.
const numbers = (element, ...names) => names.map((name) => Number(element.getAttribute(name)));

class Painter {
  constructor(pen, roles) { Object.assign(this, { pen, roles }); }

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

// The document as a canvas, at most `room` pixels wide. A large one goes on being painted after the frame that shows it.
export function painted(text, room) {
  const [whole, sheet] = text.match(/<style>([^<]*)<\/style>/) ?? ["", ""];
  const plain = text.replace(whole, "").replace(/ style="[^"]*"/, ""); // the page's policy lets no document style itself
  const svg = new DOMParser().parseFromString(plain, "image/svg+xml").documentElement;
  const made = document.createElement("canvas"), [width, height] = numbers(svg, "width", "height");
  const fit = Math.min(1, room / width), scale = fit * (devicePixelRatio || 1);
  Object.assign(made, { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
  Object.assign(made.style, { width: `${width * fit}px`, height: `${height * fit}px` });
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", svg.querySelector("title").textContent);
  const pen = made.getContext("2d", { alpha: false });
  pen.scale(scale, scale);
  inSlices(new Painter(pen, matchMedia("(prefers-color-scheme: dark)").matches ? dark(sheet) : {}).inside(svg, {}));
  return made;
}

// Takes all steps of a generator, and lets the page have its turn in between.
export function inSlices(steps) {
  const start = performance.now();
  while (!steps.next().done) if (performance.now() - start > SLICE) return setTimeout(() => inSlices(steps));
}
