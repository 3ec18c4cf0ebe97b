// Makes the pictures, sizes them, and connects the controls.

const pictures = [];
const [product, memories] = ["product", "memories"].map((id) => document.getElementById(id));
for (const matrix of matrices) pictures.push(new MatrixPicture(matrix, product));
for (const matrix of matrices) if (matrix.memory) pictures.push(new MemoryPicture(matrix, memories));

// The size of a cell at which all fits into the window, with the memories at the right, in a column or a row, or below.
// Of a page that does not fit the width does: what cannot be seen at once is scrolled downwards rather than sideways.
function fit() {
  const sum = (values) => values.reduce((a, b) => a + b, 0), most = (values) => Math.max(0, ...values);
  const at = (place) => matrices.filter((matrix) => matrix.place === place);
  const wide = (place) => most(at(place).map((matrix) => matrix.span[0]));
  const tall = (place) => most(at(place).map((matrix) => matrix.span[1]));
  // Pictures beside and above each other: of a product two, or three with block scales; others as they fit better.
  const alone = at("alone").length, stacked = alone > 1 && wide("alone") > 2 * tall("alone");
  const scales = at("farleft").length;
  product.classList.toggle("stacked", stacked);
  product.classList.toggle("scaled", scales > 0);
  const [pair, pile] = alone ? (stacked ? [1, alone] : [alone, 1]) : [2 + scales, 2 + scales];
  const width = alone ? wide("alone") * pair : wide("farleft") + wide("left") + wide("middle");
  const height = alone ? tall("alone") * pile : tall("fartop") + tall("top") + tall("middle");
  const lower = pictures.filter((picture) => picture instanceof MemoryPicture);
  const across = lower.map(({ matrix }) => (matrix.memory.banked ? 64 : matrix.memory.line)); // in cells
  const down = lower.map((picture) => picture.rows), count = lower.length;
  // [name, cells across, cells down, pictures across, pictures down]
  const ways = [
    ["column", width + most(across), Math.max(height, sum(down)), pair + 1, Math.max(pile, count)],
    ["row", width + sum(across), Math.max(height, most(down)), pair + count, pile],
    ["below", Math.max(width, sum(across)), height + most(down), Math.max(pair, count), pile + (count ? 1 : 0)],
  ];
  const stage = document.getElementById("stage"), frame = [64, 52]; // pixels beside and above a picture's cells
  const sized = ways.map(([name, w, h, nx, ny]) => {
    const x = (stage.clientWidth - frame[0] * nx) / w, y = (innerHeight - stage.offsetTop - frame[1] * ny) / h;
    return { name, across: x, both: Math.min(x, y) };
  });
  const best = sized.reduce((a, b) => (b.both > a.both ? b : a));
  const widest = sized.reduce((a, b) => (b.across > a.across ? b : a));
  const chosen = best.both >= SMALLEST ? best : widest;
  stage.className = chosen.name;
  const size = best.both >= SMALLEST ? best.both : Math.min(widest.across, 6);
  return Math.max(SMALLEST, Math.min(30, Math.floor(size)));
}

function legends() {
  const active = new Map(); // each legend once
  for (const picture of pictures) {
    const paint = picture instanceof MatrixPicture ? picture.paint() : null;
    if (paint?.legend.length) active.set(JSON.stringify(paint.legend), paint);
  }
  document.getElementById("legend").replaceChildren(...[...active.values()].map((paint) => {
    const line = element("div", null, [element("b", paint.name)]);
    for (const [hue, meaning] of paint.legend) {
      const entry = line.appendChild(element("span", null, [element("i", null), meaning]));
      entry.firstChild.style.background = hues[hue];
    }
    if (paint.odd) line.append("odd ones lighter");
    return line;
  }));
}

function redraw() {
  legends();
  for (const picture of pictures) picture.redraw();
  update();
}

function zoom(by) {
  const largest = Math.max(...matrices.map((m) => m.count));
  const next = by > 0 ? SIZES.find((size) => size > state.cell) : SIZES.findLast((size) => size < state.cell);
  if (next === undefined || next * next * largest > LARGEST) return;
  state.cell = next;
  redraw();
}

document.getElementById("controls").addEventListener("submit", (event) => {
  event.preventDefault();
  jump(document.getElementById("jump").value);
});
document.getElementById("jump").placeholder = placeholder();
document.getElementById("smaller").addEventListener("click", () => zoom(-1));
document.getElementById("larger").addEventListener("click", () => zoom(1));
document.getElementById("clear").addEventListener("click", clear);
addEventListener("keydown", (event) => { if (event.key === "Escape") clear(); });
dark.addEventListener("change", redraw);

const paints = [...new Set(matrices.flatMap((matrix) => matrix.paints.map((paint) => paint.name)))];
const select = document.getElementById("paint");
select.append(...paints.map((name) => element("option", name)));
select.parentElement.hidden = !matrices.some((matrix) => matrix.paints.length > 1);
select.addEventListener("change", () => { state.paint = select.value; redraw(); });
state.paint = paints[0] ?? null;
legends();
state.cell = fit();
redraw();
// `fit` counts cells: a title that is wider than its picture moves the pictures beside it.
const stage = document.getElementById("stage");
while (stage.scrollWidth > stage.clientWidth && state.cell > SMALLEST) {
  state.cell -= 1;
  redraw();
}
